"""Reserve for the cost of work that is under way: its mean and a margin for chance.

The cost of an item is known at its end only. It is expected to be the mean of the items so far. The margin has two
parts: the spread of the items, and the error of the mean, which few items tell badly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

DEVIATIONS = 4.0
"""Standard deviations of the margin. Raising it starts fewer rows at once near the end of a budget. Measured
(`tests/runner/test_budget.py`): with 3, one of 20 runs exceeds 2 % where costs have a heavy tail."""

GROWTH = 1
"""Rows that may be under way for each measured row. Raising it measures less before many rows run. Chosen: 1,000 rows
are under way after eleven rounds, and costs with a heavy tail exceed no budget by more than a row."""


class StageReserve(NamedTuple):
    """Items of one stage that are `under_way`, after `measured` items with this mean cost and standard deviation."""

    under_way: int
    measured: int
    mean: float
    deviation: float


def reserve(stages: Iterable[StageReserve]) -> float:
    """Return the expected cost of the items under way, with the margin for chance."""
    mean = variance = 0.0
    for under_way, measured, of_one, deviation in stages:
        if under_way and measured:
            mean += under_way * of_one
            variance += deviation**2 * under_way * (1.0 + under_way / measured)
    return mean + DEVIATIONS * math.sqrt(variance)


def rows_within(amount: float, spent: float, stages: Iterable[StageReserve], wanted: int) -> int:
    """Return how many of the `wanted` rows may start, each of which adds an item to every stage.

    The first stage is that of the tasks. While a stage is not measured, a row starts only when nothing is under way.
    """
    known = list(stages)
    busy = any(stage.under_way for stage in known)
    least = min(stage.measured for stage in known)
    if spent >= amount or wanted <= 0:
        return 0
    first = int(not busy and spent + sum(stage.mean for stage in known) <= amount)
    most = min(wanted, max(first, GROWTH * least - known[0].under_way))
    low, high = first, max(first, most)
    while low < high:
        rows = (low + high + 1) // 2
        ahead = (stage._replace(under_way=stage.under_way + rows) for stage in known)
        if spent + reserve(ahead) <= amount:
            low = rows
        else:
            high = rows - 1
    return low
