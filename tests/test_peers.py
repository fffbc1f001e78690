"""Every peer has its driver, its exact versions and its row; `make bench-peers` runs them for real."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bench.peers.__main__ as program
from bench.environments import Environment, normal
from bench.families import SILENT
from bench.peers import catalogue
from bench.peers.catalogue import HERE, NAMES, OURS, PEERS, PINS, Peer
from bench.peers.drivers.work import Work
from bench.peers.node import NodeEnvironment
from bench.peers.playing import play, told
from bench.peers.report import cells, page
from bench.peers.rows import NAMES as ROW_NAMES
from bench.peers.rows import row_of
from bench.peers.runs import Middle, Run, keep, kept
from bench.peers.verdict import standing, verdict
from bench.scenarios import Row, row_named
from tests.effort import effort
from tidegate.testing import Limit, Scenario

DRIVERS = HERE / "drivers"
SHARED = {"__init__", "work", "sdk", "modules"}

THREE = Row(
    name="three",
    family=SILENT,
    scenario=Scenario(dialect="none", limiters=(Limit(limit=3, window=3600.0),), retry_after="none"),
    count=10,
    callers=4,
)

each_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)


def plain(retries: int) -> Peer:
    return replace(next(peer for peer in PEERS if peer.name == "sdk-2"), options={"retries": retries})


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_the_table_has_the_peers_that_tidegate_is_to_beat() -> None:
    assert NAMES == ("tidegate", "sdk-2", "sdk-20", "tenacity", "aiolimiter", "langroid", "inspect", "datadesigner",
                     "litellm", "mlflow", "promptfoo")  # fmt: skip


def test_every_row_is_one_of_the_laboratory_and_the_seed_draws_the_flips() -> None:
    assert [row_of(name, 3).name for name in ROW_NAMES] == list(ROW_NAMES)
    first, second = row_of("flips", 0), row_of("flips", 1)
    assert first.scenario.limiters != second.scenario.limiters
    assert first == row_of("flips", 0)


@pytest.mark.parametrize("seed", range(effort(2, 6)))
def test_flips_change_the_rate_at_least_four_times_a_run(seed: int) -> None:
    row = row_of("flips", seed)
    (limit,) = row.scenario.limiters
    assert limit.period is not None
    assert row.ideal(seed).makespan > 4 * limit.period / 2


def test_peer_is_told_what_a_bucket_holds_and_how_long_it_takes_to_fill() -> None:
    assert told(Limit(limit=30, window=1.0)) == {"unit": "requests", "limit": 30, "window": 1.0}
    assert told(Limit(limit=30, window=1.0, burst=6)) == {"unit": "requests", "limit": 6, "window": 0.2}
    assert told(Limit(kind="slots", limit=4))["unit"] == "slots"


def test_every_driver_has_a_peer_and_every_peer_a_driver() -> None:
    assert {path.stem for path in DRIVERS.glob("*.py")} - SHARED == {peer.driver for peer in PEERS}


def test_every_file_of_versions_has_a_peer_and_every_peer_one() -> None:
    assert {path.stem for path in PINS.glob("*.txt")} == {peer.installation for peer in PEERS if not peer.node}
    assert {path.parent.name for path in HERE.glob("*/package.json")} == {
        peer.installation for peer in PEERS if peer.node
    }


@each_peer
def test_what_a_peer_is_made_from_is_pinned_exactly_and_names_no_place(peer: Peer) -> None:
    environment = peer.environment
    if isinstance(environment, NodeEnvironment):
        for version in environment.versions.values():
            assert re.fullmatch(r"\d+(\.\d+)+(-[\w.-]+)?", version)
        return
    for requirement in (*peer.requirements, *peer.alone):
        name, _, version = requirement.partition("==")
        assert environment.versions[normal(name)] == version
    for line in environment.pins.read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line


@each_peer
def test_only_a_peer_that_is_told_the_limits_says_what_it_is_given(peer: Peer) -> None:
    assert bool(peer.given) == peer.limits


@pytest.mark.parametrize("path", sorted(DRIVERS.glob("*.py")), ids=lambda path: path.stem)
def test_a_driver_needs_nothing_of_ours_but_the_other_drivers(path: Path) -> None:
    ours = {name for name in imported(path) if name.partition(".")[0] in ("bench", "conformance", "tests", "tidegate")}
    allowed = {"tidegate.admission.registry"} if path.stem == OURS.driver else set()
    assert {name for name in ours if not name.startswith("bench.peers.drivers.")} == allowed


def test_the_dialogue_needs_the_standard_library_alone() -> None:
    assert {name.partition(".")[0] for name in imported(DRIVERS / "work.py")} <= sys.stdlib_module_names
    assert imported(HERE / "__init__.py") == set()


def test_a_lost_call_is_counted_under_the_class_of_its_exception() -> None:
    run = play(THREE, plain(retries=0), 0, python=Path(sys.executable), deadline=30.0)
    assert run.failure == ""
    assert (run.answered, run.lost, run.unfinished) == (3, 7, 0)
    assert run.losses == {"RateLimitError": 7}
    assert (run.requests, run.refused) == (10, 7)
    assert run.cpu > 0


def test_the_trial_call_is_not_counted_and_takes_nothing_from_the_limit() -> None:
    run = play(replace(THREE, count=3, callers=1), plain(retries=0), 0, python=Path(sys.executable), deadline=30.0)
    assert (run.answered, run.requests, run.displaced) == (3, 3, 0.0)


def test_the_trial_goes_to_another_key() -> None:
    work = Work(base_url="", api_key="k", model="m", sizes=(1,), callers=1, deadline=1.0)
    assert work.trial.api_key != work.api_key
    assert replace(work.trial, api_key="k") == work


def test_what_is_open_at_the_deadline_is_unfinished_and_the_driver_ends() -> None:
    run = play(THREE, OURS, 0, python=Path(sys.executable), deadline=1.0)
    assert run.failure == ""
    assert (run.answered, run.lost) == (3, 0)
    assert run.losses == {"unfinished": 7}
    assert run.makespan >= 1.0


def test_tidegate_has_every_call_answered_where_there_is_room() -> None:
    row = replace(THREE, scenario=replace(THREE.scenario, limiters=(Limit(limit=5, window=0.1),)), count=20)
    run = play(row, OURS, 0, python=Path(sys.executable), deadline=30.0)
    assert (run.failure, run.answered, run.losses) == ("", 20, {})


def test_a_driver_that_does_not_begin_is_a_failure_with_its_complaint() -> None:
    run = play(THREE, replace(OURS, driver="nobody"), 0, python=Path(sys.executable))
    assert "No module named bench.peers.drivers.nobody" in run.failure
    assert play(THREE, OURS, 0, python=Path("/nowhere/python")).failure


def test_an_installation_that_cannot_be_made_is_a_failure_of_that_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "HOME", tmp_path)
    monkeypatch.setenv("PATH", "")
    failures = program.install([peer for peer in PEERS if peer.node])
    assert list(failures) == ["promptfoo"]
    assert failures["promptfoo"].startswith("not installed: ")
    assert not (tmp_path / "peers" / "promptfoo" / "ready").exists()


def test_an_installation_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("")
    environment = Environment(folder=tmp_path / "there", pins=pins, requirements=())
    with pytest.raises(subprocess.TimeoutExpired):
        environment.make(seconds=0.001)


def middle(peer: str, ratio: float, *, requests: float = 1.0, lost: int = 0, unfinished: int = 0) -> Middle:
    return Middle(peer=peer, ratio=ratio, refused_share=requests - 1, lost=lost, unfinished=unfinished,
                  requests_per_answer=requests, displaced=0.0, cpu_per_call=0.001, failure="")  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (middle("x", 1.20), "beaten"),
        (middle("x", 1.00), "ahead"),
        (middle("x", 1.04), "level"),
        (middle("x", 1.04, requests=1.5), "beaten"),
        (middle("x", 0.90, requests=3.0), "ahead"),
        (middle("x", 0.50, lost=1), "loses calls"),
        (middle("x", 4.00, unfinished=9), "beaten"),
        (replace(middle("x", 1.0), failure="not installed"), "did not run"),
    ],
)
def test_the_makespan_decides_and_where_it_is_level_the_requests(theirs: Middle, told: str) -> None:
    assert standing("request-bound", middle("tidegate", 1.03), theirs) == told


def test_where_nothing_limits_five_percent_are_level() -> None:
    assert standing("unlimited", middle("tidegate", 1.04), middle("x", 1.0)) == "level"
    assert standing("request-bound", middle("tidegate", 1.04), middle("x", 1.0)) == "ahead"


def test_a_verdict_complains_of_lost_calls_and_of_peers_ahead() -> None:
    ours, slower, faster = middle("tidegate", 1.1), middle("slower", 2.0), middle("faster", 1.0)
    assert verdict("outage", [ours, slower]).complaints == []
    assert str(verdict("outage", [ours, slower])) == "outage: tidegate beats every peer that loses no call"
    assert verdict("outage", [ours, slower, faster]).complaints == ["faster is ahead"]
    told = middle("aiolimiter", 1.0)
    assert verdict("outage", [ours, told]).complaints == ["aiolimiter, which is told the limits, is ahead"]
    assert verdict("outage", [replace(ours, lost=2), slower]).complaints == ["tidegate loses 2 calls"]
    assert verdict("outage", [replace(ours, unfinished=3)]).complaints == ["tidegate loses 3 calls"]
    assert verdict("outage", [slower]).complaints == ["tidegate did not run"]


def test_a_table_shows_which_ratio_is_of_less_work_and_which_of_a_run_that_was_stopped() -> None:
    assert cells(middle("x", 0.5, lost=4), "loses calls")[1:4] == ["(0.500)", "0.0000", "4"]
    assert cells(middle("x", 5.0, unfinished=4), "beaten")[1:4] == ["> 5.000", "0.0000", "0 (4 open)"]


def run_of(peer: str, makespan: float, **facts: object) -> Run:
    count = row_named("outage").count
    return replace(
        Run(row="outage", peer=peer, seed=0, calls=count, ideal=10.0, makespan=makespan, cpu=1.0, answered=count,
            requests=count, at="2026-01-01T00:00:00Z"),
        **facts,
    )  # fmt: skip


FAILED = Run(row="outage", peer="langroid", seed=0, calls=750, failure="not installed: pip", at="2026-01-01T00:00:00Z")


def test_a_results_file_keeps_runs_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "results" / "peers.json"
    runs = [run_of("tidegate", 10.5, losses={"RateLimitError": 1}), FAILED]
    keep(path, runs)
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    again = kept(path)
    assert again[0] == runs[0]
    assert (again[1].failure, again[1].makespan == again[1].makespan) == (FAILED.failure, False)
    assert kept(tmp_path / "none.json") == []


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([run_of("tidegate", 10.5), run_of("langroid", 30.0)], 0),
        ([run_of("tidegate", 10.5), run_of("langroid", 10.0)], 1),
        ([run_of("tidegate", 10.5, answered=700), run_of("langroid", 30.0)], 1),
        ([run_of("tidegate", 10.5), FAILED], 2),
        ([run_of("tidegate", 12.0), run_of("inspect", 10.0), FAILED], 1),
    ],
)
def test_the_exit_code_says_who_is_ahead_and_who_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Run], code: int
) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["peers", "--report"])
    keep(tmp_path / "peers.json", runs)
    assert program.main() == code
    assert "### outage" in (tmp_path / "peers.md").read_text()


def test_the_page_says_what_each_peer_is_told() -> None:
    written = page([run_of("tidegate", 10.5)], {"Run": "now"})
    for peer in PEERS:
        assert f"- **{peer.name}** ({peer.version}): " in written
        assert peer.given in written
