"""Deadline of the active waiting of work for capacity.

Theory of operation. Work waits behind a gate: a key, or a separate gate. It is overdue after `limit` seconds of
waiting in which its gate answered no call. It is also overdue `limit` seconds after its own first refusal. Time in
which the gate is closed until a reset that the provider stated does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from tidegate.core.unavailability import KeyOutage
from tidegate.pool.execution import Execution
from tidegate.pool.key_gates import KeyGates


class WaitingWork(Protocol):
    """Unit of work that may wait: ready since `ready_at`, first refused at `refused_at`, in the loop's seconds.

    `closed_before` is the total time that its gate had been closed until a known reset by that first refusal.
    """

    ready_at: float
    refused_at: float | None
    closed_before: float


class CapacityDeadline:
    """Seconds of active waiting that work has left, of `limit` seconds; `now` is in the loop's seconds."""

    def __init__(self, gates: KeyGates, limit: float) -> None:
        self._gates = gates
        self._limit = limit

    def refused(self, item: WaitingWork, gate: Hashable, now: float) -> None:
        if item.refused_at is None:
            item.refused_at = now
            item.closed_before = self._gates.closed_for(gate)

    def remaining(self, item: WaitingWork, gate: Hashable, now: float, state: KeyOutage) -> float:
        """Return the seconds of waiting that an item has left; zero or less if it is overdue."""
        return self._limit - max(min(state.unanswered, now - item.ready_at), self._refused_for(item, gate, now))

    def due_in(
        self, item: WaitingWork, gate: Hashable, now: float, state: KeyOutage, reopened: Callable[[], None]
    ) -> float:
        """Return the seconds until an item may be overdue; call `reopened` if a stated reset ends."""
        due = self._limit - min(state.unanswered, now - item.ready_at) + state.stated_for
        if item.refused_at is None:
            return due
        closed = self._gates.closed_until_known(gate)
        if closed > 0:
            self._gates.notify(gate, reopened)
        return min(due, self._limit - self._refused_for(item, gate, now) + closed)

    def remaining_in_call(self, job: Execution[Any, Any], gate: Hashable, now: float) -> float:
        """Return the fewest seconds until an item inside a call is overdue, at any key where it waits."""
        waited = 0.0
        for key in job.handoff.waiting_keys():
            since = job.item.ready_at if key == gate else job.began
            waited = max(waited, min(self._gates.unavailable(key).unanswered, now - since))
        return self._limit - waited

    def _refused_for(self, item: WaitingWork, gate: Hashable, now: float) -> float:
        """Return the seconds since an item's first refusal, without the time of stated resets."""
        if item.refused_at is None:
            return 0.0
        return now - item.refused_at - max(0.0, self._gates.closed_for(gate) - item.closed_before)
