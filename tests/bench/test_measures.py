"""What is made of a run: figures, and which bounds were missed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench import common, lab, overhttp
from bench.measures import checks
from tests.bench.rows import SMALL, STREAMED


def test_one_seed_that_loses_a_call_is_enough_to_miss() -> None:
    from bench import virtual

    run = virtual.run(SMALL, 0)
    runs = [run, run, replace(run, lost=1)]
    assert [check.holds for check in checks(SMALL, runs) if check.name == "small: calls lost"] == [False]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs the laboratory's command with these arguments on the small row; returns its exit code."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(lab, "RESULTS", tmp_path)

    def run(row, *arguments: str) -> int:
        monkeypatch.setattr(lab, "ROWS", (row,))
        monkeypatch.setattr(lab, "NAMES", (row.name,))
        monkeypatch.setattr("sys.argv", ["lab", *arguments])
        return lab.main()

    return run


def test_the_command_writes_a_table_and_ends_with_1_where_a_bound_is_missed(bench, tmp_path, capsys) -> None:
    lenient = replace(SMALL, family=replace(SMALL.family, ratio=9.0, refused=9.0))
    assert bench(lenient, "--virtual", "--seeds", "2") == 0
    assert "MISSED" not in capsys.readouterr().out
    found = json.loads((tmp_path / "lab-virtual.json").read_text())
    assert [run["seed"] for run in found["figures"]["small"]["runs"]] == [0, 1]
    assert "| small |" in (tmp_path / "lab-virtual.md").read_text()
    assert bench(replace(SMALL, family=replace(SMALL.family, ratio=0.5)), "--virtual", "--seeds", "1") == 1
    assert "small: ratio" in capsys.readouterr().out


def test_a_row_that_does_not_exist_is_refused(bench, capsys) -> None:
    with pytest.raises(SystemExit):
        bench(SMALL, "--only", "large")
    assert "no row is called large" in capsys.readouterr().err


@pytest.mark.parametrize("row", [SMALL, STREAMED], ids=["whole", "streamed"])
def test_over_http_every_call_is_answered_and_measured(row) -> None:
    row = replace(row, count=30)
    run = overhttp.run(row, 0)
    assert (run.lost, run.calls, run.peak <= row.callers) == (0, 30, True)
    assert run.makespan > 0.9 * run.ideal
    assert run.displaced <= 2.0
    assert run.cpu > 0
    assert 0.8 < run.held < 1.5


def test_over_http_a_call_that_never_ends_is_lost(monkeypatch) -> None:
    monkeypatch.setattr(overhttp, "PATIENCE", 0.0)
    monkeypatch.setattr(overhttp, "GRACE", 1.0)
    run = overhttp.run(SMALL, 0)
    assert run.losses.keys() == {"never ended"}
    assert 0 < run.lost <= SMALL.count


def test_a_row_that_is_measured_against_the_plain_sdk_brings_its_time() -> None:
    row = replace(SMALL, scenario=replace(SMALL.scenario, limiters=(), dialect="none"), against_plain=True, count=20)
    run = overhttp.run(row, 0)
    assert run.bare is not None
    assert run.ratio == run.makespan / run.bare
