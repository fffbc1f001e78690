"""The held-out families: the same by seed, with ideals that a player reaches, and a table of their own."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import drawntable, heldouttable, lab, virtual
from bench.drawntable import PAGE, shown
from bench.heldout import HELD_OUT
from bench.heldouttable import HEADER, MARKS, NAMES, line, named
from bench.players import insisting, knowing
from bench.scenarios import Row
from tests.bench.rows import SMALL
from tidegate.testing import Distribution, Fault, Limit, Scenario

FAMILIES = {each.name: each for each in HELD_OUT}
OVERLOADS = ("overloads-3", "overloads-10")
BACKENDS = ("backends", "backends-hidden")
LATENCY = 0.5


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OVERLOADS + BACKENDS])
def test_a_player_that_knows_everything_reaches_the_ideal_without_a_refusal(name: str, seed: int) -> None:
    row = FAMILIES[name].row(seed)
    played = knowing(row, seed)
    assert (played.refused, played.seconds) == (0, pytest.approx(row.ideal(seed).makespan, abs=1e-9))


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_player_that_repeats_refused_calls_reaches_the_ideal_of_backends(name: str, seed: int) -> None:
    row = FAMILIES[name].row(seed)
    assert insisting(row, seed).seconds == pytest.approx(row.ideal(seed).makespan, abs=1e-9)


def test_a_schedule_that_no_backend_has_room_for_is_reported() -> None:
    limit = Limit(kind="fixed", limit=4, window=10.0, backends=4)

    class Hasty(Row):
        def ideal(self, seed, start=0.0):
            return replace(super().ideal(seed, start), admitted_at=(0.0,) * self.count)

    row = Hasty(name="hasty", family=SMALL.family, scenario=Scenario(limiters=(limit,)), count=5)
    with pytest.raises(ValueError, match="hasty: the schedule is not right"):
        insisting(row, 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", OVERLOADS)
def test_the_ideal_among_overloads_loses_nothing_but_the_attempts_that_break(name: str, seed: int) -> None:
    """With equal latencies all callers keep step: the ideal has as many rounds as all attempts need."""
    row = FAMILIES[name].row(seed)
    row = replace(row, scenario=replace(row.scenario, latency=Distribution.constant(LATENCY)))
    fault = row.scenario.faults[0]
    attempts = row.count / (1.0 - fault.probability)
    rounds = row.ideal(seed).makespan / LATENCY
    fewest = math.ceil(row.count / row.callers)
    assert rounds == pytest.approx(round(rounds))
    # Three standard deviations of the broken attempts, and the rounds of calls that break again at the end.
    spread = 3.0 * math.sqrt(attempts * fault.probability)
    assert max(fewest, (attempts - spread) / row.callers) <= rounds <= (attempts + spread) / row.callers + 5


def test_the_ideal_among_overloads_sends_a_broken_call_again_at_once() -> None:
    faults = (Fault(kind="status", nth=(1, 4), status=503),)
    scenario = Scenario(limiters=(), latency=Distribution.constant(1.0), faults=faults)
    row = replace(SMALL, scenario=scenario, count=3, callers=2, meets_faults=True)
    ideal = row.ideal(0, 10.0)
    # Attempts: calls 0 and 1, then 0 again and 2, which breaks, then 2 again.
    assert ideal.admitted_at == pytest.approx((10.0, 10.0, 11.0))
    assert ideal.ended_at == pytest.approx((12.0, 11.0, 13.0))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_draws_the_same_row_again_and_another_seed_another(name: str) -> None:
    family = FAMILIES[name]
    assert family.row(1) == family.row(1) != family.row(2)
    scenario = family.row(1).seeded(1)
    assert Scenario.from_json(scenario.to_json()) == scenario


@pytest.mark.parametrize("name", NAMES)
def test_an_ideal_takes_long_enough_to_find_something_out(name: str) -> None:
    for seed in range(1, 16, 2):
        row = FAMILIES[name].row(seed)
        assert 7.0 < row.ideal(seed).makespan < 180.0
        assert row.count <= 2600


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


def test_one_call_in_a_hundred_is_a_hundred_times_as_large() -> None:
    row = replace(FAMILIES["rare-dear"].row(1), count=5000)
    _, high = row.sizes
    sizes = [call.input_tokens for call in row.calls(1)]
    dear = [size for size in sizes if size > high]
    assert 25 <= len(dear) <= 75
    assert all(size % 100 == 0 and row.sizes[0] <= size // 100 <= high for size in dear)


def test_a_line_has_medians_and_worst_seeds() -> None:
    runs = [virtual.run(SMALL, seed) for seed in (1, 2, 3)]
    cells = line("small", runs)
    assert len(cells) == len(HEADER)
    assert (cells[0], cells[3], cells[6]) == ("small", f"{max(run.ratio for run in runs):.3f}", "0")


def test_the_page_shows_each_family_and_describes_it() -> None:
    page = PAGE.read_text()
    begin, end = MARKS
    _, _, rest = page.partition(begin)
    old, _, after = rest.partition(end)
    assert [row.split("|")[1].strip() for row in old.splitlines()[2:]] == list(NAMES)
    described = re.findall(r"^\| (`.*?) \|", after.partition("###")[0], flags=re.M)
    assert [name for cell in described for name in re.findall(r"`(.*?)`", cell)] == list(NAMES)


def test_a_page_of_the_drawn_families_has_the_held_out_ones_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "controller.md"
    page.write_text(shown(shown(PAGE.read_text(), []), [], HEADER, MARKS))
    monkeypatch.setattr(drawntable, "PAGE", page)
    monkeypatch.setattr(drawntable, "play", lambda *given: 0)
    played = []
    monkeypatch.setattr(heldouttable, "play", lambda *given: played.append(given) or 0)
    monkeypatch.setattr(sys, "argv", ["lab", "--families", "--odd", "--seeds", "1", "--page"])
    assert lab.main() == 0
    monkeypatch.setattr(sys, "argv", ["lab", "--held-out", "--odd", "--seeds", "1", "--page"])
    assert lab.main() == 0
    assert played == [(list(HELD_OUT), [1], page)] * 2


@pytest.mark.parametrize(
    "given",
    [
        ["--held-out", "nothing"],
        ["--held-out", "backends", "--odd", "--page"],
        ["--held-out", "--page"],
        ["--held-out", "--http"],
        ["--held-out", "--families"],
    ],
)
def test_what_the_held_out_table_cannot_do_is_refused(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab", *given])
    with pytest.raises(SystemExit, match="2"):
        lab.main()
    assert "held" in capsys.readouterr().err


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
