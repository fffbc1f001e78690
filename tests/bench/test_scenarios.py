"""The table: complete, feasible, the same for the same seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.families import FAMILIES
from bench.scenarios import NAMES, ROWS, row_named
from bench.varying import varied
from tidegate.testing import Scenario

BOUNDS = {
    "headers": (1.03, 0.005),
    "windows": (1.05, 0.01),
    "shifting": (1.05, 0.03),
    "silent": (1.08, 0.02),
    "changing": (1.15, 0.08),
    "knee": (1.05, 0.0),
    "unlimited": (1.05, 0.0),
}
"""Ratio and refusals per call that were agreed upon; the families that are not here have bounds of the table's own."""

FEATURES = {
    "a continuous bucket": lambda row: any(limit.kind == "bucket" for limit in row.scenario.limiters),
    "prompts over two orders of magnitude": lambda row: row.sizes[1] >= 100 * row.sizes[0],
    "three buckets": lambda row: row.sdk == "anthropic" and len(row.scenario.limiters) == 3,
    "fixed windows without a reset": lambda row: row.scenario.dialect == "azure",
    "a rolling window": lambda row: any(limit.kind == "rolling" for limit in row.scenario.limiters),
    "windows inside of a window": lambda row: {limit.kind for limit in row.scenario.limiters} == {"bucket", "fixed"},
    "a day beside a minute": lambda row: len({limit.window for limit in row.scenario.limiters}) > 1,
    "capacity that changes four times": lambda row: any((5.0, 0.25) in limit.shares for limit in row.scenario.limiters),
    "output that counts five times": lambda row: row.scenario.burndown == 5.0,
    "slots with 503": lambda row: any(limit.kind == "slots" for limit in row.scenario.limiters),
    "a neighbour": lambda row: any((3.0, 0.3) in limit.shares for limit in row.scenario.limiters),
    "a limit that shrinks and grows": lambda row: any(limit.sizes for limit in row.scenario.limiters),
    "a slope": lambda row: any(limit.kind == "slope" for limit in row.scenario.limiters),
    "an outage of five seconds": lambda row: any(span.end - span.start == 5 for span in row.scenario.outages),
    "a knee": lambda row: row.scenario.knee is not None,
    "two thousand callers": lambda row: row.callers == 2000,
    "streams": lambda row: row.stream,
    "no limit at all": lambda row: not row.scenario.limiters and row.count == 1000 and row.scenario.knee is None,
}


def test_every_name_is_given_once() -> None:
    assert len(set(NAMES)) == len(ROWS)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("feature", FEATURES)
def test_some_row_has(feature: str) -> None:
    assert any(FEATURES[feature](row) for row in ROWS)


def test_the_bounds_are_those_that_were_agreed_upon() -> None:
    families = {family.name: (family.ratio, family.refused) for family in FAMILIES}
    assert BOUNDS.items() <= families.items()
    assert {row.family.name for row in ROWS} == set(families)
    assert all(family.lost == 0 for family in FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_finishes_every_row_within_half_a_minute(name: str) -> None:
    row = row_named(name)
    schedule = row.ideal(0)
    assert 5.0 < schedule.makespan < 30.0
    assert len(schedule.ended_at) == row.count
    assert row.ideal(0) == schedule != row.ideal(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_goes_to_the_simulator_as_text_and_comes_back(name: str) -> None:
    scenario = row_named(name).seeded(3)
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_sizes_are_drawn_by_the_seed_within_their_bounds() -> None:
    row = row_named("token-bound")
    sizes = [call.input_tokens for call in row.calls(0)]
    assert (min(sizes) >= 40, max(sizes) <= 4000, max(sizes) > 50 * min(sizes)) == (True, True, True)
    assert row.calls(0) == row.calls(0) != row.calls(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_varied_row_has_other_numbers_of_the_same_kind(name: str) -> None:
    row = row_named(name)
    first, second = varied(row, 1), varied(row, 2)
    assert first == varied(row, 1) != second
    for limit, drawn in zip(row.scenario.limiters, first.scenario.limiters, strict=True):
        assert (drawn.kind, drawn.unit, drawn.window) == (limit.kind, limit.unit, limit.window)
        assert limit.limit / 1.7 <= drawn.limit <= limit.limit * 1.7
    assert first.ideal(1).makespan > 0


def test_every_row_that_the_page_of_the_controller_names_is_in_the_table() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "controller.md").read_text()
    named = re.findall(r"Row: `([a-z-]+)`", page)
    assert len(named) >= 8
    assert set(named) <= set(NAMES)
