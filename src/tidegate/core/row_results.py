"""Results of rows: their order, their recent rate, and the reserve for the cost of rows in flight.

Rows end in any order, and come out in the order in which they were submitted. A job reserves the mean cost of the last
jobs of its stage and two standard deviations. A row starts when its reserve fits beside that of all rows in flight.
Where costs rise, a budget is exceeded by what is in flight at most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from tidegate.core.token_totals import NANO, TokenTotals

T = TypeVar("T")

OPEN: Any = object()
EVICTED: Any = object()


class ReorderBuffer(Generic[T]):
    """Buffer of rows between their submission and their turn; each operation takes constant time.

    A completed row stays until all rows before it are completed or evicted. None is a value like any other.
    """

    __slots__ = ("_evicted", "_next", "_rows", "_submitted")

    def __init__(self) -> None:
        self._submitted = self._next = self._evicted = 0
        self._rows: dict[int, T] = {}

    @property
    def pending(self) -> int:
        return self._submitted - self._next - self._evicted

    def submit(self) -> int:
        """Add a row; return its index, which counts from 0."""
        index = self._submitted
        self._submitted += 1
        self._rows[index] = OPEN
        return index

    def complete(self, index: int, value: T) -> None:
        """Record the value of a row. Raise `ValueError` if the row is not open."""
        self._close(index, value)

    def evict(self, index: int) -> None:
        """Drop an open row, so that later ones need not wait for it. Raise `ValueError` if the row is not open."""
        self._close(index, EVICTED)
        self._evicted += 1

    def ready(self) -> list[T]:
        """Return the values whose turn has come, each once, in the order of their rows."""
        given: list[T] = []
        rows = self._rows
        while (value := rows.get(self._next, OPEN)) is not OPEN:
            del rows[self._next]
            self._next += 1
            if value is EVICTED:
                self._evicted -= 1
            else:
                given.append(value)
        return given

    def _close(self, index: int, value: Any) -> None:
        if self._rows.get(index) is not OPEN:
            known = "it was never submitted" if not 0 <= index < self._submitted else "it was completed or evicted"
            raise ValueError(f"row {index} not completed: {known}")
        self._rows[index] = value


SPAN_SECONDS = 60.0
"""Seconds over which the rate is measured. Chosen: a quota per minute shows its true rate."""


class RecentRate:
    """Rate of results in the last minute, and at the beginning in the later half of the time so far.

    An opening burst is much faster than the rate that follows, so the earlier half is left out.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._began = 0.0

    def note(self, done: int, now: float) -> None:
        if not self._looks:
            self._began = now
        self._looks.append((now, done))
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPAN_SECONDS:
            self._looks.popleft()

    def clear(self) -> None:
        """Forget all looks: the results so far are no work of this run."""
        self._looks.clear()

    def seconds(self, left: int) -> float | None:
        """Return the seconds in which `left` more results come; None without a rate."""
        if not self._looks:
            return None
        first, (now, after) = self._looks[0], self._looks[-1]
        middle = (self._began + now) / 2
        later = max((look for look in self._looks if look[0] <= middle), default=first)
        then, before = later if after > later[1] else first
        return left * (now - then) / (after - before) if after > before else None


RECENT = 64
"""Jobs of a stage whose costs are remembered. Chosen: the standard deviation of 64 costs is right within a tenth."""

DEVIATIONS = 2.0
"""Standard deviations above the mean that a job reserves. Measured: no run exceeds its budget by 5 % and a row."""


def budget_amount(name: str, tokens: TokenTotals) -> float:
    return tokens.nanodollars * NANO if name == "usd" else float(tokens.input_tokens + tokens.output_tokens)


class RecentCosts:
    """Costs of the last jobs of one stage; `count` is the number of all, and `reserve` what the next one reserves."""

    __slots__ = ("_costs", "count", "reserve")

    def __init__(self, costs: Iterable[float] = ()) -> None:
        self._costs: deque[float] = deque(maxlen=RECENT)
        self.count = 0
        self.reserve = 0.0
        for cost in costs:
            self.add(cost)

    def add(self, cost: float) -> None:
        self.count += 1
        self._costs.append(cost)
        number = len(self._costs)
        mean = math.fsum(self._costs) / number
        squares = math.fsum((each - mean) ** 2 for each in self._costs)
        self.reserve = mean + DEVIATIONS * math.sqrt(squares / max(1, number - 1))


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
