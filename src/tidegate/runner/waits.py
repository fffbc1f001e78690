"""The clocks of one run's items: when a retry is ready, and when a row that found no capacity is given up for now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.runner.item import Item

if TYPE_CHECKING:
    from tidegate.runner.running import Running


SHORTEST = 0.001
"""Seconds between two looks at least: a rest of a deadline may be too small to move the clock."""


class Waits:
    """Two timers of a run, each set to a known instant: it may pass before anything is due, but never after.

    A row's deadline counts the seconds since it was first refused for want of capacity, but for those in which its key
    was closed with a reset that the provider had named: nobody waits actively for a known hour.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._refused: dict[Item, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def set_retry_timer(self) -> None:
        """Wakes the run when its next retry is ready."""
        ripe_at = self._running.workload.ripe_at
        if ripe_at is None or (self._retry is not None and self._retry.when() <= ripe_at):
            return
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._running.floor.loop.call_at(ripe_at, self._ripen)

    def refused(self, item: Item) -> bool:
        """An item came back for want of capacity; False where its deadline is over."""
        running = self._running
        now = running.floor.loop.time()
        if item.refused_at is None:
            item.refused_at = now
            item.closed_before = running.floor.gates.closed_for(running.workload.gate(item.stage))
        if self._left(item, now) <= 0:
            return False
        self._refused[item] = None
        self._look_within(self._due_in(item, now))
        return True

    def over(self, item: Item) -> None:
        """It is under way again."""
        self._refused.pop(item, None)

    def nearer(self) -> None:
        """Deadlines may have come nearer: a gate opened before its time, or a stage stands behind another."""
        if self._refused:
            now = self._running.floor.loop.time()
            self._look_within(min(self._due_in(item, now) for item in self._refused))

    def end(self) -> None:
        """Nothing waits any more."""
        self._refused.clear()
        for timer in (self._retry, self._deadline):
            if timer is not None:
                timer.cancel()

    def _ripen(self) -> None:
        self._retry = None
        self._running.workload.ripen(self._running.floor.loop.time())
        self._running.offer()

    def _left(self, item: Item, now: float) -> float:
        floor = self._running.floor
        closed = floor.gates.closed_for(self._running.workload.gate(item.stage)) - item.closed_before
        waited = now - (item.refused_at if item.refused_at is not None else now) - max(0.0, closed)
        return floor.settings.row_deadline - waited

    def _look_within(self, seconds: float) -> None:
        loop = self._running.floor.loop
        at = loop.time() + max(SHORTEST, seconds)
        if self._deadline is not None:
            if self._deadline.when() <= at:
                return
            self._deadline.cancel()
        self._deadline = loop.call_at(at, self._look)

    def _due_in(self, item: Item, now: float) -> float:
        # While its gate is closed with a known reset, its deadline moves away as fast as time goes.
        gates, gate = self._running.floor.gates, self._running.workload.gate(item.stage)
        closed = gates.closed_until_known(gate)
        if closed > 0:
            gates.tell(gate, self.nearer)
        return self._left(item, now) + closed

    def _look(self) -> None:
        self._deadline = None
        now = self._running.floor.loop.time()
        for item in [each for each in self._refused if self._left(each, now) <= 0]:
            del self._refused[item]
            if self._running.workload.remove(item):
                self._running.park(item)
        self.nearer()
