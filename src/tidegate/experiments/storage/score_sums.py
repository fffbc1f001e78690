"""Sums of scores: compensated doubles in a tally, and SQL that scores of no size make fail.

Theory of operation. A batch is summed by `math.fsum`, and added with the error of that rounding kept beside the sum
(source: Neumaier 1974, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen"). The databases sum
doubles each in its own order and precision: their means differ by less than 1e-9 of the largest score.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, case, func

LARGE = 2.0**900
"""Score from which scores are summed as parts of it: the sum of two near 1.8e308 is no double, and PostgreSQL raises an
error. Smaller ones never reach that, and no part of it is 0. Derived from IEEE 754."""


@dataclass(slots=True)
class CompensatedSum:
    """Sum of doubles, and the sum of what its roundings have lost."""

    high: float = 0.0
    low: float = 0.0

    @property
    def value(self) -> float:
        """Return the sum; an infinity or NaN where a part of it was no double."""
        return self.high + self.low

    def add(self, values: Iterable[float]) -> None:
        """Add the values of one batch."""
        try:
            value = math.fsum(values)
        except (OverflowError, ValueError):
            value = math.nan
        total = self.high + value
        larger, smaller = (self.high, value) if abs(self.high) >= abs(value) else (value, self.high)
        self.low += (larger - total) + smaller
        self.high = total


def sums(score: Column[float]) -> tuple[ColumnElement[float], ColumnElement[float]]:
    """Return the sum of the large scores of a column in units of `LARGE`, and the sum of the others, as SQL."""
    large = func.abs(score) >= LARGE
    return func.sum(case((large, score / LARGE))), func.sum(case((~large, score)))


def mean(count: int, large: float | None, others: float | None) -> float | None:
    """Return the mean of `count` scores from both parts of `sums`; None without any."""
    if not count:
        return None
    if large is None:
        return (others or 0.0) / count
    rounded = (large + (others or 0.0) / LARGE) / count * LARGE
    # Rounding may lift the mean of the largest doubles above them.
    return max(-sys.float_info.max, min(rounded, sys.float_info.max))
