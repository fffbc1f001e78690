"""Reserve for the cost of work that is under way: its mean and a margin for chance.

The cost of an item is known at its end only. It is expected to be the mean of the items so far, or more where costs
follow the sizes of the rows (`SizeLine`). The margin has two parts: the spread of the items, and the error of the mean,
which few items tell badly.
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


SIZE_GROWTH = 2.0
"""Size of a row, as a multiple of the largest measured one, from which its cost is not known. Raising it starts longer
rows beside each other before any of them is measured. Chosen as `GROWTH`: what is known doubles with each round."""


class SizeLine:
    """Line through the costs of ended rows over their sizes, by which the cost of another row is estimated.

    The slope is shrunk by the evidence for it, so rows whose costs do not depend on their sizes are estimated at their
    mean (the positive part of a Stein estimate: source, Efron and Morris 1973, "Stein's estimation rule"). A row never
    counts for more than its size times the cost of a character so far, nor as larger than `SIZE_GROWTH` allows.
    """

    __slots__ = ("_count", "_products", "_size", "_size_squares", "_squares", "largest", "mean", "slope")

    def __init__(self) -> None:
        self._count = 0
        self._size = self._size_squares = self._products = self._squares = 0.0
        self.mean = self.slope = 0.0
        self.largest = 0.0

    def add(self, size: float, cost: float) -> None:
        """Add one row; `size` is in characters."""
        self._count += 1
        by_size, by_cost = size - self._size, cost - self.mean
        self._size += by_size / self._count
        self.mean += by_cost / self._count
        self._size_squares += by_size * (size - self._size)
        self._squares += by_cost * (cost - self.mean)
        self._products += by_size * (cost - self.mean)
        self.slope = self._shrunk()
        self.largest = max(self.largest, size)

    def _shrunk(self) -> float:
        if self._count < 3 or not self._size_squares:
            return 0.0
        slope = self._products / self._size_squares
        explained = slope * self._products
        if not explained:
            return 0.0
        unexplained = max(0.0, self._squares - explained) / (self._count - 2)
        return slope * max(0.0, 1.0 - unexplained / explained)

    def is_beyond(self, size: float) -> bool:
        """Return whether a row is so much larger than the measured ones that its cost is not known."""
        return size > SIZE_GROWTH * self.largest

    def estimate(self, rows: int, size: float) -> float:
        """Return the estimated cost of rows that have this size together; it is not below 0."""
        if not rows or not self._size:
            return rows * self.mean
        of_one = min(size / rows, SIZE_GROWTH * self.largest)
        by_line = self.mean + self.slope * (of_one - self._size)
        return rows * max(0.0, min(by_line, self.mean * max(1.0, of_one / self._size)))


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
