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


def test_a_test_that_comes_to_something_else_differs_and_says_why() -> None:
    (found,) = differences({"a": PASSED, "b": PASSED}, {"a": PASSED, "b": FAILED})
    assert str(found) == "b: passed -> failed (assert 2 == 3)"


def test_a_difference_counts_when_the_test_differs_alone_in_every_round() -> None:
    found = differences({"a": PASSED}, {"a": FAILED})
    again = ScriptedRounds(*[({"a": PASSED}, {"a": FAILED})] * ROUNDS)
    assert settled(found, again) == (found, [])
    assert again.asked == [["a"]] * ROUNDS


def test_the_tally_counts_errors_as_failures_and_expected_failures_as_passed() -> None:
    outcomes = ("passed", "xfailed", "failed", "error", "xpassed", "skipped")
    assert tally({outcome: Result(outcome) for outcome in outcomes}) == "2/3/1"


def test_the_witness_installs_tidegate_and_counts_what_it_governs(tmp_path: Path) -> None:
    assert witness(tmp_path, SUITE_GOVERNED="1") == (OUTCOMES, [{"seen": 1, "governed": 1}])


def test_a_clean_comparison_has_no_complaint() -> None:
    assert complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, ended="exit code 1"), CLEAN) == []


@pytest.mark.parametrize(("seen", "governed"), [(0, 0), (7, 0)])
def test_a_comparison_in_which_nothing_was_governed_proves_nothing(seen: int, governed: int) -> None:
    (complaint,) = complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, seen=seen, governed=governed), CLEAN)
    assert complaint == f"proves nothing: {seen} calls seen, 0 governed"


def test_an_unknown_suite_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["openai", "gopher"])
    assert stopped.value.code == 2
    assert "no suite gopher" in capsys.readouterr().err
