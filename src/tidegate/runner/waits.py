"""The clocks of one run's items: when a retry is ready, and when a row that found no capacity is given up for now.

Theory of operation. A row is overdue when it has waited for `row_deadline` seconds, and in all of them its gate has
answered nobody, or it was itself refused; time for which the gate was closed with a reset that the provider had named
is left out. Nothing is polled: no row is overdue sooner than the lesser of both limits after it began to wait, so one
timer is set to that, and each look sets it to the first instant at which anything may be overdue.

A stage is *out* when a row of it has waited for `max_outage` seconds behind a breaker that was never closed. All its
rows are parked then, but for one that finds out whether the provider is back, as long as other stages have work.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidegate.core.unavailability import Unavailable
from tidegate.core.values import Key, Outcome
from tidegate.runner.item import Item
from tidegate.runner.job import Job
from tidegate.runner.stage import Stage
from tidegate.storage import Category, Level

if TYPE_CHECKING:
    from tidegate.runner.running import Running

logger = logging.getLogger("tidegate")

SHORTEST = 0.001
"""Seconds between two looks at least: a rest of a deadline may be too small to move the clock."""

SOON = 1.0
"""Seconds, at most, until rows that come for a key that is down for too long are parked."""

SHARE = 0.005
"""Share of the limit between two looks at least: a million rows are looked at 200 times in it, each this much late."""


class Waits:
    """The timers of a run, each set to a known instant: it may pass before anything is due, but never after.

    `out` are the stages whose key is down for longer than `max_outage`, each with the reason.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        settings = running.floor.settings
        self._limit = min(settings.row_deadline, settings.max_outage or settings.row_deadline)
        self._shortest = max(SHORTEST, SHARE * self._limit)
        self._retry: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: dict[int, str] = {}

    def set_retry_timer(self) -> None:
        """Wake the run when its next retry is ready."""
        ripe_at = self._running.workload.ripe_at
        if ripe_at is None or (self._retry is not None and self._retry.when() <= ripe_at):
            return
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._running.floor.loop.call_at(ripe_at, self._ripen)

    def offered(self) -> None:
        """Take in that something may wait: set the timer, or look soon where a stage is out."""
        if not self._running.live:
            return
        if self.out:
            self._look_within(min(SOON, self._shortest))
        elif self._deadline is None:
            self._look_within(self._limit)

    def refused(self, item: Item) -> bool:
        """Take in that an item came back for want of capacity; False where its deadline is over."""
        running = self._running
        now = running.floor.loop.time()
        gate = running.workload.gate(item.stage)
        if item.refused_at is None:
            item.refused_at = now
            item.closed_before = running.floor.gates.closed_for(gate)
        state = running.floor.gates.unavailable(gate)
        if self._left(item, now, state) <= 0:
            return False
        self._look_within(self._due_in(item, now, state))
        return True

    def nearer(self) -> None:
        """Take in that deadlines may have come nearer: a gate opened early, rows came that have waited before."""
        if self._running.live:
            self._look_within(self._due(self._running.floor.loop.time()))

    def end(self) -> None:
        """End all timers: nothing waits any more."""
        for timer in (self._retry, self._deadline):
            if timer is not None:
                timer.cancel()

    def last_failure(self, stage: Stage) -> str:
        """Return the last failure at the gate of a stage, in a few words; empty where nothing failed there."""
        last = self._running.floor.gates.unavailable(self._running.workload.gate(stage.index)).last
        return stage.last_error or (_said(last) if last is not None else "")

    def _ripen(self) -> None:
        self._retry = None
        self._running.workload.ripen(self._running.floor.loop.time())
        self._running.offer()

    def _left(self, item: Item, now: float, state: Unavailable) -> float:
        """Return the seconds of waiting that an item has left; none where it is overdue."""
        waited = max(min(state.unanswered, now - item.ready_at), self._refused_for(item, now))
        return self._running.floor.settings.row_deadline - waited

    def _refused_for(self, item: Item, now: float) -> float:
        """Return the seconds since an item was first refused, but for those of known closings."""
        if item.refused_at is None:
            return 0.0
        closed = self._running.floor.gates.closed_for(self._running.workload.gate(item.stage)) - item.closed_before
        return now - item.refused_at - max(0.0, closed)

    def _due_in(self, item: Item, now: float, state: Unavailable) -> float:
        """Return the seconds until an item may be overdue: while a reset is stated, that moves away as time goes."""
        limit = self._running.floor.settings.row_deadline
        due = limit - min(state.unanswered, now - item.ready_at) + state.stated_for
        if item.refused_at is None:
            return due
        gates, gate = self._running.floor.gates, self._running.workload.gate(item.stage)
        closed = gates.closed_until_known(gate)
        if closed > 0:
            gates.tell(gate, self.nearer)
        return min(due, limit - self._refused_for(item, now) + closed)

    def _job_left(self, job: Job, now: float) -> float:
        """Return the same for an item that waits inside a call, at whatever keys it stands."""
        gates, gate = self._running.floor.gates, self._running.workload.gate(job.item.stage)
        waited = 0.0
        for key in job.hand.standing_at():
            since = job.item.ready_at if key == gate else job.began
            waited = max(waited, min(gates.unavailable(key).unanswered, now - since))
        return self._running.floor.settings.row_deadline - waited

    def _standing(self) -> list[Job]:
        return [job for job in self._running.under_way if job.lends and not job.recalled]

    def _due(self, now: float) -> float:
        """Return the seconds until anything may be overdue; infinity where nothing waits."""
        running, due = self._running, float("inf")
        max_outage = running.floor.settings.max_outage
        for stage in running.stages:
            items = running.workload.items(stage.index)
            if not items:
                continue
            state = running.floor.gates.unavailable(running.workload.gate(stage.index))
            due = min(due, *(self._due_in(item, now, state) for item in items))
            if max_outage is not None and stage.index not in self.out:
                since = min(item.ready_at for item in items)
                due = min(due, max_outage - min(state.outage, now - since) + state.stated_for)
        for job in self._standing():
            due = min(due, self._job_left(job, now))
            if max_outage is not None:
                due = min(due, max_outage - self._outage(job, now))
        return due

    def _look_within(self, seconds: float) -> None:
        if seconds == float("inf"):
            return
        loop = self._running.floor.loop
        at = loop.time() + max(SHORTEST, seconds)
        if self._deadline is not None:
            if self._deadline.when() <= at:
                return
            self._deadline.cancel()
        self._deadline = loop.call_at(at, self._look)

    def _look(self) -> None:
        self._deadline = None
        running = self._running
        if not running.live:
            return
        now = running.floor.loop.time()
        self._outages(now)
        for stage in running.stages:
            items = running.workload.items(stage.index)
            if not items:
                continue
            state = running.floor.gates.unavailable(running.workload.gate(stage.index))
            running.give_up([item for item in items if self._left(item, now, state) <= 0])
        for job in self._standing():
            if self._job_left(job, now) <= 0:
                job.recall()
        due = self._due(now)
        self._look_within(max(due, self._shortest))

    def _outages(self, now: float) -> None:
        """Park the rows of every stage whose key is down for too long."""
        running, limit = self._running, self._running.floor.settings.max_outage
        if limit is None:
            return
        for stage in running.stages:
            gate = running.workload.gate(stage.index)
            items = running.workload.items(stage.index)
            standing = [job for job in self._standing() if job.item.stage == stage.index]
            outage = running.floor.gates.unavailable(gate).outage
            if stage.index in self.out:
                if not outage:
                    self._back(stage)
                    continue
            else:
                behind = [min(outage, now - item.ready_at) for item in items]
                behind += [self._outage(job, now) for job in standing]
                if not behind or max(behind) < limit:
                    continue
                self._gone(stage, gate, limit)
            keep = 1 if running.has_other_work() else 0
            running.give_up(items[keep:])
            for job in standing[max(0, keep - len(items)) :]:
                job.recall()

    def _outage(self, job: Job, now: float) -> float:
        gates = self._running.floor.gates
        gate = self._running.workload.gate(job.item.stage)
        return max(
            (
                min(gates.unavailable(key).outage, now - (job.item.ready_at if key == gate else job.began))
                for key in job.hand.standing_at()
            ),
            default=0.0,
        )

    def _gone(self, stage: Stage, gate: object, limit: float) -> None:
        failure = self.last_failure(stage)
        name = gate if isinstance(gate, Key) else f"the provider of {stage.name}"
        reason = f"{name} was down for {limit:g} s (max_outage)" + (f": {failure}" if failure else "")
        self.out[stage.index] = reason
        self._running.note(Level.ERROR, Category.EXPERIMENT, type="outage", stage=stage.name, error=reason)
        logger.warning(
            "experiment %s: %s; the rows of %s are parked", self._running.experiment.name, reason, stage.name
        )

    def _back(self, stage: Stage) -> None:
        reason = self.out.pop(stage.index)
        self._running.note(Level.INFO, Category.EXPERIMENT, type="outage_over", stage=stage.name, was=reason)


def _said(outcome: Outcome) -> str:
    if outcome.status is not None:
        return f"status {outcome.status}"
    return "no answer in time" if outcome.row == "timeout" else "no connection"
