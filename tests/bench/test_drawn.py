"""The drawn families: the same by seed, with ideals that a player reaches and that are known by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Literal

import pytest

from bench import virtual
from bench.bayes import filling, filtering, searching, sizing, steepening
from bench.drawn import Draw, Drawn, families, supplied
from bench.drawntable import BARS, DRAWN, HEADER, MARKS, NAMES, PAGE, YARDSTICKS, Bar, asked, line, named, shown
from bench.families import SILENT
from bench.lab import seeds_of
from bench.players import Played, knowing, phaseless, reckoning, unrated
from bench.scenarios import NAMES as ROW_NAMES
from bench.scenarios import Row
from tests.bench.rows import SMALL
from tidegate.testing import Call, Distribution, Limit, Scenario

FAMILIES = {each.name: each for each in DRAWN}
SEED = 1
LATENCY = 0.5
OUTPUT = 30


def plain(name: str) -> Row:
    """The family's row of the seed, all of whose answers take the same time and have the same length."""
    row = FAMILIES[name].row(SEED)
    latency, output = Distribution.constant(LATENCY), Distribution.constant(OUTPUT)
    return replace(row, scenario=replace(row.scenario, latency=latency, output_tokens=output))


def short(row: Row) -> Row:
    """The row with so few calls that it is played in a moment."""
    return replace(row, count=min(row.count, 160), arrivals=row.arrivals[:160])


def binding(row: Row) -> Limit:
    return row.scenario.limiters[-1]


def emptied(row: Row, total: float) -> float:
    """When a bucket has given the total, if it was never full again."""
    limit = binding(row)
    full = limit.burst or limit.limit
    return (total - (full if limit.initial is None else limit.initial)) / (limit.limit / limit.window)


def bucket(row: Row) -> float:
    return emptied(row, row.count)


def reserved(row: Row) -> float:
    into = binding(row).unit == "tokens"
    return emptied(row, sum((call.input_tokens if into else 0) + call.max_tokens for call in row.calls(SEED)))


def produced(row: Row) -> float:
    into = binding(row).unit == "tokens"
    calls = row.calls(SEED)
    return emptied(row, sum((call.input_tokens if into else 0) + min(OUTPUT, call.max_tokens) for call in calls))


def into(row: Row) -> float:
    return emptied(row, sum(call.input_tokens for call in row.calls(SEED)))


def uncached(row: Row) -> float:
    cached = row.scenario.cached_tokens
    assert cached
    return emptied(row, sum(max(0, call.input_tokens - cached) for call in row.calls(SEED)))


def at_least(row: Row) -> float:
    least = row.scenario.least_tokens
    assert least
    return emptied(row, sum(max(least, call.input_tokens) for call in row.calls(SEED)))


def boundaries(row: Row) -> float:
    limit = binding(row)
    windows = math.ceil(row.count / limit.limit)
    return limit.offset + (windows - 2) * limit.window


def rolled(row: Row) -> float:
    limit = binding(row)
    return (math.ceil(row.count / limit.limit) - 1) * limit.window


def rounds(row: Row) -> float:
    at_once = row.scenario.knee or binding(row).limit
    return (math.ceil(row.count / at_once) - 1) * LATENCY


def flipping(row: Row) -> float:
    limit, left, at = binding(row), row.count - (binding(row).burst or 0), 0.0
    high_first = limit.shares[0][0] > 0
    phase = limit.period / 2
    while True:
        rate = limit.limit * (1 if high_first == (round(at / phase) % 2 == 0) else 0.25)
        if left <= rate * phase:
            return at + left / rate
        left, at = left - rate * phase, at + phase


def refilled(row: Row) -> float:
    """An outage takes what would have been refilled after the bucket was full again."""
    (outage,), limit = row.scenario.outages, binding(row)
    rate = limit.limit / limit.window
    before = limit.limit + rate * outage.start
    full = min(limit.limit, rate * (outage.end - outage.start))
    return outage.end + (row.count - before - full) / rate


BY_HAND = {
    **{name: reserved for name in NAMES if name.startswith("bound-")},
    "charges-input": into,
    "charges-produced": produced,
    "charges-cached-free": uncached,
    "charges-minimum": at_least,
    "announced-heavy-tail": bucket,
    "foreign-headers": bucket,
    "drawn-outage": refilled,
    "fits-burst-openai": lambda row: (math.ceil(row.count / row.callers) - 1) * LATENCY,
    "fits-burst-anthropic": lambda row: (math.ceil(row.count / row.callers) - 1) * LATENCY,
    "flips": flipping,
    "flips-mixed": flipping,
    "tiny-bucket": bucket,
    "hidden-slots": rounds,
    "hidden-fixed": boundaries,
    "hidden-rolling": rolled,
    "hint-constant": bucket,
    "hint-late": lambda row: boundaries(row) if binding(row).kind == "fixed" else bucket(row),
    "hint-absurd": lambda row: boundaries(row) if binding(row).kind == "fixed" else bucket(row),
    "drawn-knee": rounds,
}
"""When the last call is admitted at the earliest, from the numbers of the row."""


@pytest.mark.parametrize("name", BY_HAND)
def test_the_oracle_admits_the_last_call_when_a_calculation_by_hand_says(name: str) -> None:
    row = plain(name)
    assert row.ideal(SEED).admitted_at[-1] == pytest.approx(BY_HAND[name](row), abs=1e-6)


@pytest.mark.parametrize("kind", ["fixed", "rolling"])
def test_announced_windows_of_requests_end_when_a_calculation_by_hand_says(kind: str) -> None:
    rows = (FAMILIES[f"announced-{kind}"].row(seed) for seed in range(20))
    row = next(row for row in rows if binding(row).unit == "requests" and binding(row).limit < 100)
    row = replace(row, scenario=replace(row.scenario, latency=Distribution.constant(LATENCY)))
    by_hand = boundaries(row) if kind == "fixed" else rolled(row)
    assert row.ideal(SEED).admitted_at[-1] == pytest.approx(by_hand, abs=1e-6)


def test_what_is_given_back_at_the_end_admits_the_next_call() -> None:
    limit = Limit(limit=100, window=10.0, unit="tokens")
    scenario = Scenario(
        limiters=(limit,),
        charge="input+max_tokens",
        gives_back=True,
        latency=Distribution.constant(1.0),
        output_tokens=Distribution.constant(10),
    )
    row = replace(SMALL, scenario=scenario, sizes=(10, 10), max_tokens=40, count=4)
    assert row.ideal(0).admitted_at == pytest.approx((0.0, 0.0, 1.0, 2.0))


def test_growth_admits_in_its_second_window_what_the_first_allows() -> None:
    row = FAMILIES["growth"].row(SEED)
    slope = binding(row)
    more = math.floor(slope.growth * slope.limit)
    row = replace(row, count=round(slope.limit) + more)
    assert row.ideal(SEED).admitted_at[-1] == pytest.approx(slope.window, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if not FAMILIES[name].row(SEED).scenario.faults])
def test_a_player_that_knows_everything_reaches_the_ideal_without_a_refusal(name: str, seed: int) -> None:
    row = FAMILIES[name].row(seed)
    played = knowing(row, seed)
    assert (played.refused, played.seconds) == (0, pytest.approx(row.ideal(seed).makespan, abs=1e-9))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_draws_the_same_row_again_and_another_seed_another(name: str) -> None:
    family = FAMILIES[name]
    assert family.row(1) == family.row(1) != family.row(2)
    assert family.row(1).name == name
    scenario = family.row(1).seeded(1)
    assert Scenario.from_json(scenario.to_json()) == scenario


@pytest.mark.parametrize("name", NAMES)
def test_no_family_loses_a_call(name: str) -> None:
    assert virtual.run(short(FAMILIES[name].row(2)), 2).lost == 0


@pytest.mark.parametrize("name", ["bound-two-sizes-anthropic", "announced-rolling", "flips-mixed", "hint-constant"])
def test_a_run_of_a_family_is_the_same_for_the_same_seed(name: str) -> None:
    row = short(FAMILIES[name].row(SEED))
    assert replace(virtual.run(row, SEED), cpu=0.0) == replace(virtual.run(row, SEED), cpu=0.0)


def test_bursts_come_when_the_one_before_is_served_and_an_idle_minute_has_passed() -> None:
    for seed in range(8):
        row = FAMILIES["idle-bursts"].row(seed)
        (limit,) = row.scenario.limiters
        starts = sorted(set(row.arrivals))
        sizes = [row.arrivals.count(at) for at in starts]
        assert all(20 <= size <= 120 for size in sizes)
        for start, size, after in zip(starts, sizes, starts[1:], strict=False):
            served = start + max(0.0, size - limit.limit) * limit.window / limit.limit
            assert 60.0 <= after - served + 0.1 <= 300.2


@pytest.mark.parametrize("seed", range(1, 8))
def test_a_player_without_the_phase_is_late_by_little_and_seldom_refused(seed: int) -> None:
    row = FAMILIES["hidden-fixed"].row(seed)
    played, ideal = phaseless(row, seed), row.ideal(seed).makespan
    assert ideal - 1e-9 <= played.seconds <= 1.02 * ideal + 0.05
    assert played.refused <= 16


def test_a_player_without_the_rate_is_late_by_little_and_refused_a_few_times() -> None:
    ratios, refused = [], []
    for seed in range(8):
        row = FAMILIES["hint-constant"].row(seed)
        played, ideal = unrated(row, seed), row.ideal(seed).makespan
        assert played.seconds >= ideal - 1e-9
        ratios.append(played.seconds / ideal)
        refused.append(played.refused)
    assert median(ratios) < 1.02
    assert 2 <= min(refused) <= max(refused) <= 10


def test_a_player_without_the_rate_plays_a_window_as_one_without_the_phase() -> None:
    seed = next(seed for seed in range(8) if binding(FAMILIES["hint-late"].row(seed)).kind == "fixed")
    row = FAMILIES["hint-late"].row(seed)
    assert unrated(row, seed) == phaseless(row, seed)


@pytest.mark.parametrize(
    ("name", "player", "ratio", "refused"),
    [
        ("tiny-bucket", filtering, 1.03, 0.03),
        ("flips", filtering, 1.08, 0.06),
        ("flips-mixed", filtering, 1.08, 0.06),
        ("growth", steepening, 1.03, 0.02),
        ("foreign-headers", filtering, 1.01, 0.01),
        ("hidden-fixed", sizing, 1.03, 0.1),
        ("hidden-slots", filling, 1.06, 0.01),
        ("hidden-rolling", searching, 1.06, 0.07),
    ],
)
def test_a_player_that_knows_the_distribution_alone_is_late_by_little_and_seldom_refused(
    name: str, player: Callable[[Row, int], Played], ratio: float, refused: float
) -> None:
    rows = [(FAMILIES[name].row(seed), seed) for seed in range(0, 16, 2)]
    found = [(player(row, seed), row.ideal(seed).makespan, row.count) for row, seed in rows]
    assert all(played.seconds < math.inf for played, _, _ in found)
    assert median(played.seconds / ideal for played, ideal, _ in found) < ratio
    assert 0.0 < median(played.refused / count for played, _, count in found) < refused


@pytest.mark.parametrize("name", ["charges-returned", "charges-produced", "announced-rolling"])
def test_a_player_that_knows_how_calls_are_charged_is_late_by_little_and_refused_once(name: str) -> None:
    for seed in (0, 2, 4, 14):
        row = FAMILIES[name].row(seed)
        played = reckoning(row, seed)
        assert played.seconds < 1.05 * row.ideal(seed).makespan
        # Where output is charged at its end, it may end just before an admission.
        assert played.refused <= (2 if name == "charges-produced" else 1)


@pytest.mark.parametrize(
    ("kind", "hints", "most"), [("fixed", "late", 4), ("rolling", "late", 4), ("rolling", "exact", 5)]
)
def test_hints_that_count_down_show_a_window_which_is_then_kept(
    kind: Literal["fixed", "rolling"], hints: Literal["late", "exact"], most: int
) -> None:
    """Ten windows of which each refusal names the end, or three times as long: at first each one costs refusals."""
    limit = Limit(kind=kind, limit=50, window=10.0, offset=1.3 if kind == "fixed" else 0.0)
    latency = Distribution.lognormal(0.2, 0.3)
    scenario = Scenario(limiters=(limit,), dialect="hint", retry_after=hints, latency=latency)
    played = virtual.Laboratory(Row(name="", family=SILENT, scenario=scenario, count=500), 3)
    played.run()
    assert sum(at > 30.0 for at in played.refused_at) <= most


def test_stray_refusals_lower_no_number_of_slots_that_most_answers_show() -> None:
    """Else each of them takes a slot, which is tried again alone and seldom: the median is 1.67."""
    rows = [(FAMILIES["slots-and-chance"].row(seed), seed) for seed in range(16)]
    assert median(virtual.run(row, seed).ratio for row, seed in rows) < 1.45


@pytest.mark.parametrize(("name", "most"), [("hint-late", 0.21), ("hint-absurd", 0.28)])
def test_a_slow_bucket_with_wrong_hints_refuses_few_calls(name: str, most: float) -> None:
    """Each refusal of such a bucket bounds its rate, and few trials of a faster pace follow; else .24 and .34."""
    rows = [(FAMILIES[name].row(seed), seed) for seed in range(0, 24, 2)]
    shares = [virtual.run(row, seed).refused_share for row, seed in rows if binding(row).kind == "bucket"]
    assert len(shares) >= 6
    assert median(shares) <= most


@pytest.mark.parametrize("seed", range(8))
def test_rates_flip_four_times_and_hidden_windows_pass_eight_times(seed: int) -> None:
    for name in ("flips", "flips-mixed"):
        row = FAMILIES[name].row(seed)
        assert row.ideal(seed).makespan > 4 * binding(row).period / 2
    for name in ("hidden-fixed", "hidden-rolling"):
        row = FAMILIES[name].row(seed)
        assert row.ideal(seed).makespan > 7 * binding(row).window
        assert row.count > 8 * binding(row).limit


def test_mixed_refusals_have_every_status() -> None:
    assert set(binding(FAMILIES["flips-mixed"].row(SEED)).statuses) == {429, 503, 529}
    assert not binding(FAMILIES["flips"].row(SEED)).statuses


def test_two_sizes_of_bounds_are_drawn_call_by_call() -> None:
    row = FAMILIES["bound-two-sizes-openai"].row(SEED)
    assert {call.max_tokens for call in row.calls(SEED)} == set(row.bounds)
    assert len(row.bounds) == 2


def test_no_family_has_the_name_of_another_or_of_a_row() -> None:
    assert not set(NAMES) & set(ROW_NAMES)
    with pytest.raises(ValueError, match="same name"):
        families((Drawn("one", lambda draw: SMALL),), (Drawn("one", lambda draw: SMALL),))


def test_draws_stay_within_their_bounds() -> None:
    draw = Draw("any", 0)
    numbers = [draw.whole(2, 64) for _ in range(2000)]
    assert (min(numbers), max(numbers)) == (2, 64)
    assert all(0.5 <= draw.scale(0.5, 2.0) <= 2.0 for _ in range(200))
    assert supplied(Limit(limit=10, window=1.0, burst=5), 2.0) == 25


def test_a_line_of_the_table_has_medians_the_worst_the_yardstick_and_the_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BARS, "small", Bar(0.9, 0.5, 1.9, hits=3))
    family = Drawn("small", lambda draw: SMALL)
    runs = [virtual.run(family.row(seed), seed) for seed in (1, 2, 3)]
    cells = dict(
        zip([*HEADER[:3], "worst", *HEADER[4:5], "most", *HEADER[6:]], line(family, runs, [SMALL] * 3), strict=True)
    )
    assert cells["worst"] == f"{max(run.ratio for run in runs):.3f}"
    assert (cells["lost"], cells["hits"], cells["yardstick"]) == ("0", "0", "")
    assert cells["bounds"] == "0.9, max 1.9, 0.5"
    assert [each.name for each in asked(family, runs, [SMALL] * 3) if not each.holds] == ["small: ratio"]
    assert [each.name for each in named(["flips", "growth"])] == ["growth", "flips"]
    assert set(YARDSTICKS) <= set(NAMES) == set(BARS) - {"small"}


def test_a_family_may_be_as_near_to_its_yardstick_as_to_the_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["hidden-fixed"]
    row = family.row(SEED)
    played = sizing(row, SEED)
    run = replace(virtual.run(short(row), SEED), calls=row.count, ideal=row.ideal(SEED).makespan, bare=None)
    monkeypatch.setitem(BARS, "hidden-fixed", Bar(0.5, 0.0))
    bounds = {each.name.partition(": ")[2]: each.bound for each in asked(family, [run], [row])}
    assert bounds["ratio"] == pytest.approx(played.seconds / run.ideal + 0.03)
    assert bounds["429s per call"] == pytest.approx(played.refused / row.count)


def test_the_page_shows_each_family_and_a_new_table_takes_the_place_of_the_old() -> None:
    page = PAGE.read_text()
    begin, end = MARKS
    old = page.partition(begin)[2].partition(end)[0]
    assert [row.split("|")[1].strip() for row in old.splitlines()[2:]] == list(NAMES)
    made = shown(page, [["only", *["0"] * (len(HEADER) - 1)]])
    assert "| only | 0 |" in made
    assert old not in made
    assert shown(made, []) == shown(page, [])
    with pytest.raises(ValueError, match="no place"):
        shown("nothing", [])


def test_seeds_are_counted_or_named_and_may_be_odd_or_even() -> None:
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("1,3,5") == [1, 3, 5]
    assert seeds_of("7,") == [7]
    assert seeds_of("3", odd=True) == [1, 3, 5]
    assert seeds_of("3", even=True) == [0, 2, 4]


def test_each_call_of_a_drawn_row_has_a_size_and_a_bound() -> None:
    calls = FAMILIES["charges-returned"].row(SEED).calls(SEED)
    assert all(isinstance(call, Call) and call.input_tokens > 0 and call.max_tokens for call in calls)
