"""How two runs of an SDK's suite are compared: what counts as a difference, and when a comparison proves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from conformance.comparing import ROUNDS, Result, Results, differences, results_of, settled, tally
from conformance.running import PLUGIN, ROOT, Run
from conformance.suites import SUITES, complaints_of, main

PASSED, FAILED = Result("passed"), Result("failed", "assert 2 == 3")
ASKING, SILENT = (next(suite for suite in SUITES if suite.infers is infers) for infers in (True, False))
CLEAN = settled([], lambda tests: ({}, {}))


FOREIGN = """
import httpx2, pytest, socket

@pytest.fixture
def broken():
    raise ValueError("no fixture")

def test_good():
    answer = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, json={}))).post(
        "https://api.openai.com/v1/chat/completions", json={"model": "m"})
    assert answer.status_code == 200

def test_bad():
    assert 2 == 3

def test_broken(broken):
    pass

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

def test_offline():
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("127.1", 443)  # resolves on every machine, network or not, but is no address as written
    assert socket.getaddrinfo("localhost", 80)
"""


def witness(folder: Path, **variables: str) -> tuple[dict[str, str], list[dict[str, int]]]:
    """Runs a foreign suite under the plugin; returns outcomes by test, and the counts of each process."""
    (folder / "api").mkdir()
    (folder / "test_foreign.py").write_text(FOREIGN)
    (folder / "api" / "test_served.py").write_text("def test_served(): pass\ndef test_mocked(tmp_path): pass\n")
    (folder / "counts").mkdir()
    paths = {"PYTHONPATH": os.pathsep.join([str(PLUGIN), str(ROOT / "src")]), "SUITE_COUNTS": str(folder / "counts")}
    paths |= {"SUITE_OUTCOMES": str(folder / "outcomes"), "SUITE_MOCKED": "api tmp_path"}
    command = [sys.executable, "-m", "pytest", "-p", "suite_witness", "-p", "no:cacheprovider", "-q", "--rootdir", "."]
    subprocess.run(command, cwd=folder, env={**os.environ, **paths, **variables}, capture_output=True, check=False)
    results = results_of(folder / "outcomes")
    counts = [json.loads(path.read_text()) for path in (folder / "counts").iterdir()]
    return {test.rpartition("::")[2]: result.outcome for test, result in results.items()}, counts


OUTCOMES = {
    "test_good": "passed",
    "test_bad": "failed",
    "test_broken": "error",
    "test_skipped": "skipped",
    "test_expected": "xfailed",
    "test_offline": "passed",
    "test_mocked": "passed",
}


class ScriptedRounds:
    """Runs tests again as scripted: the outcomes without tidegate and with it, round by round."""

    def __init__(self, *rounds: tuple[Results, Results]) -> None:
        self.rounds = rounds
        self.asked: list[list[str]] = []

    def __call__(self, tests: Collection[str]) -> tuple[Results, Results]:
        self.asked.append(list(tests))
        return self.rounds[len(self.asked) - 1]


def run(results: Results, *, seen: int = 3, governed: int = 2, ended: str = "exit code 0") -> Run:
    return Run(results, seen, governed, 1.0, ended)


def test_equal_outcomes_do_not_differ_however_the_failure_reads() -> None:
    assert differences({"a": PASSED, "b": FAILED}, {"b": Result("failed", "other"), "a": PASSED}) == []


def test_a_test_that_comes_to_something_else_differs_and_says_why() -> None:
    (found,) = differences({"a": PASSED, "b": PASSED}, {"a": PASSED, "b": FAILED})
    assert str(found) == "b: passed -> failed (assert 2 == 3)"


def test_a_failure_that_is_mended_differs_too() -> None:
    (found,) = differences({"a": FAILED}, {"a": PASSED})
    assert str(found) == "a: failed -> passed (assert 2 == 3)"


def test_a_test_that_only_one_run_has_differs() -> None:
    found = differences({"a": PASSED}, {"b": PASSED})
    assert [str(each) for each in found] == ["a: passed -> absent", "b: absent -> passed"]


def test_a_difference_counts_when_the_test_differs_alone_in_every_round() -> None:
    found = differences({"a": PASSED}, {"a": FAILED})
    again = ScriptedRounds(*[({"a": PASSED}, {"a": FAILED})] * ROUNDS)
    assert settled(found, again) == (found, [])
    assert again.asked == [["a"]] * ROUNDS


def test_a_difference_passes_when_the_test_agrees_alone_once_and_is_not_run_again() -> None:
    found = differences({"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED})
    differs, agrees = ({"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED}), ({"b": PASSED}, {"b": PASSED})
    again = ScriptedRounds(
        differs, ({"a": PASSED, **agrees[0]}, {"a": FAILED, **agrees[1]}), ({"a": PASSED}, {"a": FAILED})
    )
    assert settled(found, again) == ([found[0]], [found[1]])
    assert again.asked == [["a", "b"], ["a", "b"], ["a"]]


def test_a_difference_counts_when_the_test_could_not_be_run_again() -> None:
    found = differences({"a": PASSED}, {"a": FAILED})
    assert settled(found, lambda tests: ({}, {})) == (found, [])


def test_where_very_many_differ_none_is_run_again() -> None:
    tests = [f"t{n}" for n in range(100)]
    found = differences(dict.fromkeys(tests, PASSED), dict.fromkeys(tests, FAILED))
    again = ScriptedRounds()
    assert settled(found, again) == (found, [])
    assert again.asked == []


def test_the_tally_counts_errors_as_failures_and_expected_failures_as_passed() -> None:
    outcomes = ("passed", "xfailed", "failed", "error", "xpassed", "skipped")
    assert tally({outcome: Result(outcome) for outcome in outcomes}) == "2/3/1"


def test_a_run_that_wrote_nothing_has_no_results(tmp_path: Path) -> None:
    assert results_of(tmp_path / "none") == {}


def test_outcomes_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "outcomes").write_text('["t.py::a[\\u00fc]", "failed", "why"]\n["t.py::b", "passed", ""]\n')
    assert results_of(tmp_path / "outcomes") == {"t.py::a[ü]": Result("failed", "why"), "t.py::b": PASSED}


def test_the_witness_writes_down_what_each_test_came_to_and_governs_nothing_unasked(tmp_path: Path) -> None:
    assert witness(tmp_path) == (OUTCOMES, [{"seen": 0, "governed": 0}])


def test_the_witness_installs_tidegate_and_counts_what_it_governs(tmp_path: Path) -> None:
    assert witness(tmp_path, SUITE_GOVERNED="1") == (OUTCOMES, [{"seen": 1, "governed": 1}])


def test_a_clean_comparison_has_no_complaint() -> None:
    assert complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, ended="exit code 1"), CLEAN) == []


@pytest.mark.parametrize(("seen", "governed"), [(0, 0), (7, 0)])
def test_a_comparison_in_which_nothing_was_governed_proves_nothing(seen: int, governed: int) -> None:
    (complaint,) = complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, seen=seen, governed=governed), CLEAN)
    assert complaint == f"proves nothing: {seen} calls seen, 0 governed"


def test_a_suite_that_asks_no_model_proves_that_calls_pass_through_if_any_is_seen() -> None:
    assert complaints_of(SILENT, run({"a": PASSED}), run({"a": PASSED}, governed=0), CLEAN) == []
    (complaint,) = complaints_of(SILENT, run({"a": PASSED}), run({"a": PASSED}, seen=0, governed=0), CLEAN)
    assert complaint == "proves nothing: 0 calls seen, 0 governed"


def test_a_comparison_without_a_test_proves_nothing() -> None:
    assert complaints_of(ASKING, run({}), run({}), CLEAN) == ["no test was run"]


def test_a_run_that_was_stopped_is_a_complaint() -> None:
    (complaint,) = complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, ended="stopped after 9 s"), CLEAN)
    assert complaint == "the run with tidegate: stopped after 9 s"


def test_lasting_differences_are_a_complaint() -> None:
    found = differences({"a": PASSED}, {"a": FAILED})
    verdict = settled(found, ScriptedRounds(*[({"a": PASSED}, {"a": FAILED})] * ROUNDS))
    assert complaints_of(ASKING, run({"a": PASSED}), run({"a": FAILED}), verdict) == ["1 outcomes differ"]


def test_each_suite_says_what_it_leaves_out_and_where_its_row_comes_from() -> None:
    assert all(suite.left_out and suite.source for suite in SUITES)
    assert len({suite.name for suite in SUITES}) == len(SUITES)


def test_an_unknown_suite_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["openai", "gopher"])
    assert stopped.value.code == 2
    assert "no suite gopher" in capsys.readouterr().err
