"""The drawn families: the same by seed, with ideals that a player reaches and that are known by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Literal

import pytest

from bench import virtual
from bench.drawntable import DRAWN, NAMES
from bench.families import SILENT
from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, Scenario

FAMILIES = {each.name: each for each in DRAWN}


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


@pytest.mark.parametrize("name", NAMES)
def test_no_family_loses_a_call(name: str) -> None:
    assert virtual.run(short(FAMILIES[name].row(2)), 2).lost == 0


@pytest.mark.parametrize(
    ("kind", "hints", "most"), [("fixed", "late", 20), ("rolling", "late", 4), ("rolling", "exact", 5)]
)
def test_hints_that_count_down_show_a_window_which_is_then_kept(
    kind: Literal["fixed", "rolling"], hints: Literal["late", "exact"], most: int
) -> None:
    """Ten windows of which each refusal names the end, or three times as long: at first each one costs refusals.

    A long hint is tried twice, so a fixed window with wrong hints costs two refusals later, too.
    """
    limit = Limit(kind=kind, limit=50, window=10.0, offset=1.3 if kind == "fixed" else 0.0)
    latency = Distribution.lognormal(0.2, 0.3)
    scenario = Scenario(limiters=(limit,), dialect="hint", retry_after=hints, latency=latency)
    played = virtual.Laboratory(Row(name="", family=SILENT, scenario=scenario, count=500), 3)
    played.run()
    assert sum(at > 30.0 for at in played.refused_at) <= most


@pytest.mark.parametrize(("name", "most"), [("hint-late", 0.21), ("hint-absurd", 0.28)])
def test_a_slow_bucket_with_wrong_hints_refuses_few_calls(name: str, most: float) -> None:
    """Each refusal of such a bucket bounds its rate, and few trials of a faster pace follow; else .24 and .34."""
    rows = [(FAMILIES[name].row(seed), seed) for seed in range(0, 24, 2)]
    shares = [virtual.run(row, seed).refused_share for row, seed in rows if binding(row).kind == "bucket"]
    assert len(shares) >= 6
    assert median(shares) <= most
