"""Reserve for the cost of rows in flight, so that a run keeps its budget.

A job reserves the mean cost of the last jobs of its stage and two standard deviations. A row starts when its reserve
fits beside that of all rows in flight. Where costs rise, a budget is exceeded by what is in flight at most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tidegate.core.token_totals import DOLLARS_PER_UNIT, TokenTotals

RECENT_JOBS = 64
"""Jobs of a stage whose costs are remembered. Chosen: the standard deviation of 64 costs is right within a tenth."""

RESERVED_DEVIATIONS = 2.0
"""Standard deviations above the mean that a job reserves. Measured: no run exceeds its budget by 5 % and a row."""


def budget_amount(name: str, tokens: TokenTotals) -> float:
    return tokens.nanodollars * DOLLARS_PER_UNIT if name == "usd" else float(tokens.input_tokens + tokens.output_tokens)


class RecentJobs:
    """Last jobs of one stage: the number of all, and what the next one reserves of each budget in `names`."""

    __slots__ = ("_jobs", "count", "reserve")

    def __init__(self, names: Iterable[str], jobs: Iterable[TokenTotals] = ()) -> None:
        self._jobs: deque[TokenTotals] = deque(maxlen=RECENT_JOBS)
        self.count = 0
        self.reserve = dict.fromkeys(names, 0.0)
        for tokens in jobs:
            self.add(tokens)

    @property
    def mean(self) -> TokenTotals | None:
        """Return the mean usage of these jobs; None without any."""
        parts = zip(*self._jobs, strict=True)
        return TokenTotals(*(round(sum(part) / len(self._jobs)) for part in parts)) if self._jobs else None

    def add(self, tokens: TokenTotals) -> None:
        self.count += 1
        self._jobs.append(tokens)
        number = len(self._jobs)
        for name in self.reserve:
            costs = [budget_amount(name, each) for each in self._jobs]
            mean = math.fsum(costs) / number
            squares = math.fsum((each - mean) ** 2 for each in costs)
            self.reserve[name] = mean + RESERVED_DEVIATIONS * math.sqrt(squares / max(1, number - 1))


class StageReserve(NamedTuple):
    """Items of one stage that are `under_way`, after `measured` items; each reserves `of_one`."""

    under_way: int
    measured: int
    of_one: float


def rows_within(amount: float, spent: float, stages: Iterable[StageReserve], wanted: int) -> int:
    """Return how many of the `wanted` rows may start, each of which adds an item to every stage.

    As many rows may be in flight as are measured in each stage; one without any.
    """
    known = list(stages)
    if spent >= amount:
        return 0
    least = min(stage.measured for stage in known) - known[0].under_way
    alone = not any(stage.under_way for stage in known)
    rows = min(wanted, max(least, int(alone)))
    of_row = sum(stage.of_one for stage in known)
    left = amount - spent - sum(stage.under_way * stage.of_one for stage in known)
    return max(0, int(min(rows, left / of_row)) if of_row else rows)
