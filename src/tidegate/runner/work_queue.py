"""Work of one run: ready items, delayed retries, deadlines of rows.

The clocks of one run's items: when a retry is ready, and when a row that found no capacity is given up for now.

Theory of operation. A row is overdue when it has waited for `row_deadline` seconds, and in all of them its gate has
answered nobody, or it was itself refused; time for which the gate was closed with a reset that the provider had named
is left out. Nothing is polled: no row is overdue sooner than the lesser of both limits after it began to wait, so one
timer is set to that, and each look sets it to the first instant at which anything may be overdue.

A stage is *out* when a row of it has waited for `max_outage` seconds behind a breaker that was never closed. All its
rows are parked then, but for one that finds out whether the provider is back, as long as other stages have work.

The remaining work of one experiment: its queues, and the item that is next behind a gate.

Theory of operation. Each stage (tasks, each evaluator) has two queues: what is to be tried first, and retries that are
ready. A stage stands behind a *gate*: the key that its function asks first, or a gate of its own while that is not
known. Evaluations go before retries, retries before new tasks; a queue that was passed over often enough goes next
whatever its rank, and retries that have their share of the slots go last, so that a poisoned cluster cannot starve
progress. What was refused for want of capacity goes back to the head of its queue. Retries that are not ready wait in
one heap. Tasks are taken from the store in pages, between two water marks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from tidegate.core.unavailability import KeyOutage
from tidegate.core.values import Key, Outcome
from tidegate.runner.item import TASK, Item
from tidegate.runner.job import Job, Stage
from tidegate.storage import Category, LogLevel

if TYPE_CHECKING:
    from tidegate.runner.run import ExperimentRun


EVALS, RETRIES, TASKS, OVER_SHARE = range(4)
AGED = -1
"""The rank of a queue that was passed over often enough."""


MAX_QUEUE_BYTES = 16 * 1024 * 1024
"""Characters of the rows and answers of one stage that wait in memory, retries included: more hold more of it, fewer
fetch large rows again and again."""


class StageQueue:
    """Items of one stage in the order in which they go; `age` counts how often others went instead.

    `size` is that of all its items.
    """

    __slots__ = ("age", "items", "rank", "size", "stage")

    def __init__(self, stage: int, rank: int) -> None:
        self.stage = stage
        self.rank = rank
        self.items: deque[Item] = deque()
        self.age = 0
        self.size = 0

    def append(self, item: Item) -> None:
        """Add an item behind the others."""
        self.items.append(item)
        self.size += item.size

    def appendleft(self, item: Item) -> None:
        """Add an item before the others."""
        self.items.appendleft(item)
        self.size += item.size

    def popleft(self) -> Item:
        """Take the first item."""
        item = self.items.popleft()
        self.size -= item.size
        return item

    def remove(self, gone: set[Item]) -> None:
        """Take out the items of `gone` that are here."""
        if not gone.isdisjoint(self.items):
            self.items = deque(item for item in self.items if item not in gone)
            self.size = sum(item.size for item in self.items)

    def clear(self) -> None:
        """Forget every item."""
        self.items.clear()
        self.size = 0


class WorkQueue:
    """The queues of one experiment of so many `stages`; it decides, and does nothing.

    `high` is how many items of a stage are held at most, `ageing` how often a queue is passed over, and `retry_slots`
    how many slots retries may have while anything else could go.
    """

    def __init__(self, stages: int, *, high: int, ageing: int, retry_slots: int) -> None:
        self.high = high
        self.low = high // 2
        self.ageing = ageing
        self.retry_slots = retry_slots
        self.retries_under_way = 0
        self._gates: list[Hashable] = [None] * stages
        self._fresh = [StageQueue(stage, TASKS if stage == TASK else EVALS) for stage in range(stages)]
        self._ready = [StageQueue(stage, RETRIES) for stage in range(stages)]
        self._queues = [queue for pair in zip(self._fresh, self._ready, strict=True) for queue in pair]
        self._later: list[tuple[float, int, Item]] = []
        self._later_size = [0] * stages
        self._count = 0

    def stand_behind(self, stage: int, gate: Hashable) -> None:
        """That stage's items ask `gate` from now on."""
        self._gates[stage] = gate

    def gate(self, stage: int) -> Hashable:
        """Return what that stage's items ask."""
        return self._gates[stage]

    def gates(self) -> Iterator[Hashable]:
        """The gates behind which something is ready, each as often as it has queues."""
        return (self._gates[queue.stage] for queue in self._queues if queue.items)

    def has(self, gate: Hashable) -> bool:
        """Return whether something is ready behind that gate."""
        return any(queue.items and self._gates[queue.stage] == gate for queue in self._queues)

    def room(self, stage: int) -> int:
        """Return the number of items of a stage that fit; 0 where those that wait are too large together."""
        return 0 if self._size(stage) >= MAX_QUEUE_BYTES else max(0, self.high - len(self._fresh[stage].items))

    def runs_low(self, stage: int) -> bool:
        """Return whether the next page of a stage is wanted."""
        return len(self._fresh[stage].items) <= self.low and self._size(stage) <= MAX_QUEUE_BYTES // 2

    def add(self, items: Iterable[Item]) -> None:
        """New items, in their order."""
        for item in items:
            self._fresh[item.stage].append(item)

    def back(self, item: Item) -> None:
        """A refused item: it comes straight back, to the head."""
        queue = self._ready[item.stage] if item.attempts else self._fresh[item.stage]
        queue.appendleft(item)

    def delay(self, item: Item, ready_at: float) -> None:
        """An item that is to be tried again at `ready_at`, in monotonic seconds."""
        self._count += 1
        heappush(self._later, (ready_at, self._count, item))
        self._later_size[item.stage] += item.size

    def ripen(self, now: float) -> None:
        """Moves the retries that are ready to their queues."""
        while self._later and self._later[0][0] <= now:
            _, _, item = heappop(self._later)
            self._later_size[item.stage] -= item.size
            self._ready[item.stage].append(item)

    @property
    def ripe_at(self) -> float | None:
        """When the next retry is ready; None where none is waiting for its time."""
        return self._later[0][0] if self._later else None

    def rank(self, gate: Hashable) -> int:
        """Return how urgent what is next behind a gate is; less goes first."""
        queue = self._next(gate)
        return OVER_SHARE if queue is None else self._urgency(queue)

    def peek(self, gate: Hashable) -> Item | None:
        """Return what is next behind a gate."""
        queue = self._next(gate)
        return queue.items[0] if queue is not None else None

    def take(self, gate: Hashable) -> Item | None:
        """Takes what is next behind a gate; every other queue that has something is passed over."""
        chosen = self._next(gate)
        if chosen is None:
            return None
        for queue in self._queues:
            if queue.items:
                queue.age += 1
        chosen.age = 0
        item = chosen.popleft()
        if item.attempts:
            self.retries_under_way += 1
        return item

    def ended(self, retried: bool) -> None:
        """An item that was taken has ended; `retried` says that it had been tried before."""
        if retried:
            self.retries_under_way -= 1

    def items(self, stage: int) -> list[Item]:
        """Return every item of a stage that is not under way, in the order in which they go."""
        waiting = [*self._ready[stage].items, *self._fresh[stage].items]
        return waiting + [item for _, _, item in self._later if item.stage == stage]

    def take_out(self, items: Iterable[Item]) -> None:
        """Take out items that are not under way."""
        gone = set(items)
        for queue in self._queues:
            queue.remove(gone)
        self._later = [entry for entry in self._later if entry[2] not in gone]
        heapify(self._later)
        self._later_size = [0] * len(self._fresh)
        for _, _, item in self._later:
            self._later_size[item.stage] += item.size

    def clear(self) -> None:
        """Forgets everything that is not under way."""
        for queue in self._queues:
            queue.clear()
        self._later.clear()
        self._later_size = [0] * len(self._fresh)

    def depth(self, stage: int) -> int:
        """Return how many items of a stage are ready."""
        return len(self._fresh[stage].items) + len(self._ready[stage].items)

    def _size(self, stage: int) -> int:
        """Return the size of all items of a stage that are not under way."""
        return self._fresh[stage].size + self._ready[stage].size + self._later_size[stage]

    def _next(self, gate: Hashable) -> StageQueue | None:
        best: StageQueue | None = None
        best_rank = 0
        for queue in self._queues:
            if queue.items and self._gates[queue.stage] == gate:
                rank = self._urgency(queue)
                if best is None or rank < best_rank or (rank == best_rank and queue.age > best.age):
                    best, best_rank = queue, rank
        return best

    def _urgency(self, queue: StageQueue) -> int:
        if queue.rank == RETRIES and self.retries_under_way >= self.retry_slots:
            return OVER_SHARE
        return AGED if queue.age >= self.ageing else queue.rank


logger = logging.getLogger("tidegate")

SHORTEST = 0.001
"""Seconds between two looks at least: a rest of a deadline may be too small to move the clock."""

SOON = 1.0
"""Seconds, at most, until rows that come for a key that is down for too long are parked."""

SHARE = 0.005
"""Share of the limit between two looks at least: a million rows are looked at 200 times in it, each this much late."""


class RetryTimers:
    """The timers of a run, each set to a known instant: it may pass before anything is due, but never after.

    `out` are the stages whose key is down for longer than `max_outage`, each with the reason.
    """

    def __init__(self, running: ExperimentRun) -> None:
        self._running = running
        settings = running.shared.settings
        self._limit = min(settings.row_deadline, settings.max_outage or settings.row_deadline)
        self._shortest = max(SHORTEST, SHARE * self._limit)
        self._retry: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.out: dict[int, str] = {}

    def set_retry_timer(self) -> None:
        """Wake the run when its next retry is ready."""
        ripe_at = self._running.work_queue.ripe_at
        if ripe_at is None or (self._retry is not None and self._retry.when() <= ripe_at):
            return
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._running.shared.loop.call_at(ripe_at, self._ripen)

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
        now = running.shared.loop.time()
        gate = running.work_queue.gate(item.stage)
        if item.refused_at is None:
            item.refused_at = now
            item.closed_before = running.shared.gates.closed_for(gate)
        state = running.shared.gates.unavailable(gate)
        if self._left(item, now, state) <= 0:
            return False
        self._look_within(self._due_in(item, now, state))
        return True

    def nearer(self) -> None:
        """Take in that deadlines may have come nearer: a gate opened early, rows came that have waited before."""
        if self._running.live:
            self._look_within(self._due(self._running.shared.loop.time()))

    def end(self) -> None:
        """End all timers: nothing waits any more."""
        for timer in (self._retry, self._deadline):
            if timer is not None:
                timer.cancel()

    def last_failure(self, stage: Stage) -> str:
        """Return the last failure at the gate of a stage, in a few words; empty where nothing failed there."""
        last = self._running.shared.gates.unavailable(self._running.work_queue.gate(stage.index)).last
        return stage.last_error or (_said(last) if last is not None else "")

    def _ripen(self) -> None:
        self._retry = None
        self._running.work_queue.ripen(self._running.shared.loop.time())
        self._running.offer()

    def _left(self, item: Item, now: float, state: KeyOutage) -> float:
        """Return the seconds of waiting that an item has left; none where it is overdue."""
        waited = max(min(state.unanswered, now - item.ready_at), self._refused_for(item, now))
        return self._running.shared.settings.row_deadline - waited

    def _refused_for(self, item: Item, now: float) -> float:
        """Return the seconds since an item was first refused, but for those of known closings."""
        if item.refused_at is None:
            return 0.0
        closed = self._running.shared.gates.closed_for(self._running.work_queue.gate(item.stage)) - item.closed_before
        return now - item.refused_at - max(0.0, closed)

    def _due_in(self, item: Item, now: float, state: KeyOutage) -> float:
        """Return the seconds until an item may be overdue: while a reset is stated, that moves away as time goes."""
        limit = self._running.shared.settings.row_deadline
        due = limit - min(state.unanswered, now - item.ready_at) + state.stated_for
        if item.refused_at is None:
            return due
        gates, gate = self._running.shared.gates, self._running.work_queue.gate(item.stage)
        closed = gates.closed_until_known(gate)
        if closed > 0:
            gates.tell(gate, self.nearer)
        return min(due, limit - self._refused_for(item, now) + closed)

    def _job_left(self, job: Job, now: float) -> float:
        """Return the same for an item that waits inside a call, at whatever keys it stands."""
        gates, gate = self._running.shared.gates, self._running.work_queue.gate(job.item.stage)
        waited = 0.0
        for key in job.handoff.standing_at():
            since = job.item.ready_at if key == gate else job.began
            waited = max(waited, min(gates.unavailable(key).unanswered, now - since))
        return self._running.shared.settings.row_deadline - waited

    def _standing(self) -> list[Job]:
        return [job for job in self._running.under_way if job.lends and not job.recalled]

    def _due(self, now: float) -> float:
        """Return the seconds until anything may be overdue; infinity where nothing waits."""
        running, due = self._running, float("inf")
        max_outage = running.shared.settings.max_outage
        for stage in running.stages:
            items = running.work_queue.items(stage.index)
            if not items:
                continue
            state = running.shared.gates.unavailable(running.work_queue.gate(stage.index))
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
        loop = self._running.shared.loop
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
        now = running.shared.loop.time()
        self._outages(now)
        for stage in running.stages:
            items = running.work_queue.items(stage.index)
            if not items:
                continue
            state = running.shared.gates.unavailable(running.work_queue.gate(stage.index))
            running.give_up([item for item in items if self._left(item, now, state) <= 0])
        for job in self._standing():
            if self._job_left(job, now) <= 0:
                job.recall()
        due = self._due(now)
        self._look_within(max(due, self._shortest))

    def _outages(self, now: float) -> None:
        """Park the rows of every stage whose key is down for too long."""
        running, limit = self._running, self._running.shared.settings.max_outage
        if limit is None:
            return
        for stage in running.stages:
            gate = running.work_queue.gate(stage.index)
            items = running.work_queue.items(stage.index)
            standing = [job for job in self._standing() if job.item.stage == stage.index]
            outage = running.shared.gates.unavailable(gate).outage
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
        gates = self._running.shared.gates
        gate = self._running.work_queue.gate(job.item.stage)
        return max(
            (
                min(gates.unavailable(key).outage, now - (job.item.ready_at if key == gate else job.began))
                for key in job.handoff.standing_at()
            ),
            default=0.0,
        )

    def _gone(self, stage: Stage, gate: object, limit: float) -> None:
        failure = self.last_failure(stage)
        name = gate if isinstance(gate, Key) else f"the provider of {stage.name}"
        reason = f"{name} was down for {limit:g} s (max_outage)" + (f": {failure}" if failure else "")
        self.out[stage.index] = reason
        self._running.note(LogLevel.ERROR, Category.EXPERIMENT, type="outage", stage=stage.name, error=reason)
        logger.warning(
            "experiment %s: %s; the rows of %s are parked", self._running.experiment.name, reason, stage.name
        )

    def _back(self, stage: Stage) -> None:
        reason = self.out.pop(stage.index)
        self._running.note(LogLevel.INFO, Category.EXPERIMENT, type="outage_over", stage=stage.name, was=reason)


def _said(outcome: Outcome) -> str:
    if outcome.status is not None:
        return f"status {outcome.status}"
    return "no answer in time" if outcome.row == "timeout" else "no connection"
