"""The held-out families: the same by seed, with ideals that a player reaches, and a table of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench import drawntable, heldouttable, virtual
from bench.heldout import HELD_OUT
from bench.heldouttable import MARKS, NAMES, named
from bench.players import insisting
from tests.bench.rows import SMALL
from tidegate.testing import Distribution, Scenario

FAMILIES = {each.name: each for each in HELD_OUT}
OVERLOADS = ("overloads-3", "overloads-10")
BACKENDS = ("backends", "backends-hidden")
LATENCY = 0.5


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_player_that_repeats_refused_calls_reaches_the_ideal_of_backends(name: str, seed: int) -> None:
    row = FAMILIES[name].row(seed)
    assert insisting(row, seed).seconds == pytest.approx(row.ideal(seed).makespan, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", OVERLOADS)
def test_the_ideal_among_overloads_loses_nothing_but_the_attempts_that_break(name: str, seed: int) -> None:
    """With equal latencies all callers keep step: the ideal has as many rounds as all attempts need."""
    row = FAMILIES[name].row(seed)
    row = replace(row, scenario=row.scenario.replace(latency=Distribution.constant(LATENCY)))
    fault = row.scenario.faults[0]
    attempts = row.count / (1.0 - fault.probability)
    rounds = row.ideal(seed).makespan / LATENCY
    fewest = math.ceil(row.count / row.callers)
    assert rounds == pytest.approx(round(rounds))
    # Three standard deviations of the broken attempts, and the rounds of calls that break again at the end.
    spread = 3.0 * math.sqrt(attempts * fault.probability)
    assert max(fewest, (attempts - spread) / row.callers) <= rounds <= (attempts + spread) / row.callers + 5


def test_no_held_out_family_has_the_name_of_a_drawn_one() -> None:
    assert not set(NAMES) & set(drawntable.NAMES)
    assert [each.name for each in named(["neighbour", "backends"])] == ["backends", "neighbour"]


def test_calls_with_arrivals_are_measured_by_their_summed_delay() -> None:
    scenario = Scenario(dialect="none", latency=Distribution.constant(1.0))
    row = replace(SMALL, scenario=scenario, count=4, arrivals=(0.0, 0.0, 30.0, 30.0))
    run = virtual.run(row, 0)
    assert run.lost == 0
    assert run.delay is not None
    # Two calls set up a connection each, and each message travels; the second two find one.
    assert 4.0 < run.delay[1] <= run.delay[0] < 4.1
    assert run.ratio == run.delay[0] / run.delay[1]
    assert run.makespan == pytest.approx(31.0, abs=0.05)


def test_a_run_writes_its_table_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "controller.md"
    page.write_text("".join(MARKS))
    monkeypatch.setattr(heldouttable, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("bench.common.RESULTS", tmp_path / "results")
    assert heldouttable.play(named(["per-second"]), [1], page) == 0
    assert "| per-second |" in page.read_text()
    assert "per-second" in capsys.readouterr().out
    assert (tmp_path / "results" / "held-out.json").exists()
