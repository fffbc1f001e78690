"""When the last of those who wait will be admitted, foreseen from what is known of one key's gates.

Theory of operation. An `Outlook` is what a key knows, as plain numbers: it is made from an admission, or from the
shared memory in which the processes of a run keep the same numbers. Each gate says by itself when it will have let so
many calls through, all costing the mean of those who wait; the latest of them binds. Nobody else is taken to come,
limits to stay, and attempts to take as long as the last ones took. What cannot be said is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, inf
from typing import NamedTuple


class QuotaOutlook(NamedTuple):
    """A quota: `level` of `limit` units are left, and the limit comes back per `window` seconds.

    `boundary_in` is how many seconds until it comes back all at once; None where it refills continuously. `amount` is
    what one waiting call is charged.
    """

    name: str
    level: float
    limit: float
    window: float
    boundary_in: float | None
    amount: float

    def drained_in(self, calls: int, start: float) -> float:
        """Seconds until this quota has let `calls` through, of which none goes before `start`."""
        if self.amount <= 0.0:
            return start
        amount = min(self.amount, self.limit)
        if self.boundary_in is not None:
            return self._drained_by_windows(calls, amount, self.boundary_in, start)
        rate = self.limit / self.window
        level = min(self.limit, self.level + rate * start)
        return start + max(0.0, calls * amount - level) / rate

    def _drained_by_windows(self, calls: int, amount: float, boundary: float, start: float) -> float:
        level = self.level
        if boundary <= start:
            boundary += (floor((start - boundary) / self.window) + 1) * self.window
            level = self.limit
        beyond = calls - max(0, floor(level / amount + 1e-9))
        if beyond <= 0:
            return start
        windows = ceil(beyond / max(1, floor(self.limit / amount + 1e-9)))
        return boundary + (windows - 1) * self.window


class Outlook(NamedTuple):
    """One key: `waiting` calls, and the gates before them. Durations are in seconds.

    Nothing goes for `closed_for`, which `closed_by` (pause, breaker) says. `slots` attempts may be under way, and
    `flights` says how long each that is has been; `latency` is how long one takes (None: nobody knows). `pace` is how
    many may go a second, 0 where nothing paces.
    """

    waiting: int
    closed_for: float = 0.0
    closed_by: str = ""
    slots: int = 1
    flights: tuple[float, ...] = ()
    latency: float | None = None
    quotas: tuple[QuotaOutlook, ...] = ()
    pace: float = 0.0


class Foreseen(NamedTuple):
    """`seconds` until the last of those who wait is admitted, None where it cannot be said, and the gate that binds."""

    seconds: float | None
    gate: str


def foresee(outlook: Outlook) -> Foreseen:
    """When the last of those who wait now will be admitted, and the gate that says so ('' where nobody waits)."""
    if not outlook.waiting:
        return Foreseen(0.0, "")
    latest, binding = outlook.closed_for, outlook.closed_by
    if latest == inf:
        return Foreseen(None, binding)
    for seconds, gate in _gates(outlook):
        if seconds is None:
            return Foreseen(None, gate)
        if seconds > latest:
            latest, binding = seconds, gate
    return Foreseen(latest, binding)


def _gates(outlook: Outlook) -> Iterator[tuple[float | None, str]]:
    for quota in outlook.quotas:
        yield quota.drained_in(outlook.waiting, outlook.closed_for), f"quota {quota.name}"
    if outlook.pace > 0.0:
        yield outlook.closed_for + (outlook.waiting - 1) / outlook.pace, "pace"
    yield _slots_given(outlook), "concurrency"


def _slots_given(outlook: Outlook) -> float | None:
    # Slots are taken in turn: each is free again when what holds it has taken as long as answers take.
    slots = max(1, outlook.slots)
    if outlook.waiting <= slots - len(outlook.flights):
        return outlook.closed_for
    if outlook.latency is None:
        return None
    latency, start = outlook.latency, outlook.closed_for
    ends = sorted(max(start, latency - lasted) for lasted in outlook.flights)[max(0, len(outlook.flights) - slots) :]
    free = [start] * (slots - len(ends)) + ends
    rounds, last = divmod(outlook.waiting - 1, slots)
    return free[last] + rounds * latency
