"""Rows run quiet and loaded in turns, and their table has both ratios, the quotient and the lost calls."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import common, loaded, virtual
from bench.measures import Run
from bench.scenarios import Row
from tests.bench.rows import SMALL


def test_quiet_and_loaded_runs_alternate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loaded, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    turns: list[str] = []

    @contextmanager
    def burning(count: int) -> Any:
        turns.append("loaded" if count else "quiet")
        yield

    def run(row: Row, seed: int) -> Run:
        made = virtual.run(row, seed)
        return replace(made, makespan=made.makespan * 2.0) if turns[-1] == "loaded" else made

    monkeypatch.setattr(loaded, "burning", burning)
    assert loaded.play({SMALL.name: lambda seed: SMALL}, [0, 1, 2], run) == 0
    assert turns == ["quiet", "loaded", "loaded", "quiet", "quiet", "loaded"]
    assert "2.000" in capsys.readouterr().out
    assert (tmp_path / "loaded.md").read_text().count(SMALL.name) == 1
    assert loaded.play(
        {SMALL.name: lambda seed: SMALL}, [0], lambda row, seed: replace(run(row, seed), losses={}, lost=1)
    )


def test_burning_processes_end_with_their_block() -> None:
    with loaded.burning(2) as burned:
        assert [each.poll() for each in burned] == [None, None]
    assert all(each.poll() is not None for each in burned)
