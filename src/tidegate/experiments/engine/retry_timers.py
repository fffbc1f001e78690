"""Timers of one run: they release retries and park rows that found no capacity.

Theory of operation. A row waits behind its stage's gate: the key that its function asks first, or the stage's own gate
while that key is unknown. `CapacityDeadline` says whether it is overdue. A run checks its waiting rows 200 times within
the lesser of `row_deadline` and `max_outage`.

A stage is *out* when one of its rows has waited `max_outage` seconds behind a circuit breaker that never closed. All
its rows are then parked. One row stays, to detect the provider's return, while other stages have work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidegate.core.values import Key, Outcome
from tidegate.experiments.engine.job import Job, Stage
from tidegate.experiments.engine.queues import Item
from tidegate.experiments.engine.run_state import RunState
from tidegate.experiments.storage import LogLevel
from tidegate.pool.failure_class import FailureClass
from tidegate.pool.key_gates import CapacityDeadline, check_period

logger = logging.getLogger("tidegate")

OUTAGE_CHECK_SECONDS = 1.0
"""Maximum seconds until new rows of a stage that is out are parked. Chosen: a person waits for the end of the run."""


class RetryTimers:
    """Timers of a run. `give_up` parks items that are not in flight."""

    def __init__(self, run: RunState, give_up: Callable[[list[Item]], None]) -> None:
        self._run = run
        self._give_up = give_up
        settings = run.shared.settings
        self._deadlines = CapacityDeadline(run.shared.gates, settings.row_deadline)
        self._period = check_period(min(settings.row_deadline, settings.max_outage or settings.row_deadline))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check the waiting items."""
        period = min(OUTAGE_CHECK_SECONDS, self._period) if self._run.outages else self._period
        self._timer = self._run.shared.loop.call_later(period, self._check)

    def delay(self, item: Item, seconds: float) -> None:
        """Let an item be tried again after these seconds."""
        self._run.work_queue.delay(item, self._run.shared.loop.call_later(seconds, self._retry, item))

    def delay_of_refused(self, job: Job, failure: FailureClass) -> float | None:
        """Record a refusal for lack of capacity; return the seconds until the next attempt, None if overdue."""
        run, item = self._run, job.item
        gate, now = run.work_queue.gate(item.stage), run.shared.loop.time()
        return self._deadlines.delay_of_refused(item, gate, now, failure, job.handoff.refused)

    def refused(self, item: Item) -> None:
        """Record that an item waits for capacity from now on."""
        self._deadlines.refused(item, self._run.work_queue.gate(item.stage), self._run.shared.loop.time())

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def last_failure(self, stage: Stage) -> str:
        """Return a short text of the last failure at a stage's gate; empty if there was none."""
        last = self._run.shared.gates.unavailable(self._run.work_queue.gate(stage.index)).last
        return stage.last_error or (_describe(last) if last is not None else "")

    def _retry(self, item: Item) -> None:
        self._run.work_queue.retry(item)
        self._run.offer()

    def _waiting_jobs(self) -> list[Job]:
        return [job for job in self._run.in_flight if job.slot_lent and not job.recalled]

    def _check(self) -> None:
        run = self._run
        if not run.live:
            return
        now = run.shared.loop.time()
        self._outages(now)
        queue = run.work_queue
        gates = [(stage.index, queue.gate(stage.index)) for stage in run.stages]
        self._give_up(self._deadlines.overdue(((each, gate) for n, gate in gates for each in queue.items(n)), now))
        waiting = ((job, queue.gate(job.item.stage)) for job in self._waiting_jobs())
        for job in self._deadlines.overdue_in_call(waiting, now):
            job.recall()
        if run.live:
            self.start()

    def _outages(self, now: float) -> None:
        """Park the rows of every stage whose key is down for too long."""
        run, limit = self._run, self._run.shared.settings.max_outage
        if limit is None:
            return
        for stage in run.stages:
            gate = run.work_queue.gate(stage.index)
            items = run.work_queue.items(stage.index)
            waiting_jobs = [job for job in self._waiting_jobs() if job.item.stage == stage.index]
            outage = run.shared.gates.unavailable(gate).outage
            if stage.index in self._run.outages:
                if not outage:
                    self._end_outage(stage)
                    continue
            else:
                delays = [min(outage, now - item.ready_at) for item in items]
                delays += [self._outage(job, now) for job in waiting_jobs]
                if not delays or max(delays) < limit:
                    continue
                self._begin_outage(stage, gate, limit)
            # While other work goes on, one item keeps asking the provider.
            kept = 1 if run.has_other_work() else 0
            self._give_up(items[kept:])
            for job in waiting_jobs[max(0, kept - len(items)) :]:
                job.recall()

    def _outage(self, job: Job, now: float) -> float:
        gates = self._run.shared.gates
        gate = self._run.work_queue.gate(job.item.stage)
        return max(
            (
                min(gates.unavailable(key).outage, now - (job.item.ready_at if key == gate else job.began))
                for key in job.handoff.waiting_keys()
            ),
            default=0.0,
        )

    def _begin_outage(self, stage: Stage, gate: object, limit: float) -> None:
        failure = self.last_failure(stage)
        name = gate if isinstance(gate, Key) else f"the provider of {stage.name}"
        reason = f"{name} was down for {limit:g} s (max_outage)" + (f": {failure}" if failure else "")
        self._run.outages[stage.index] = reason
        self._run.log(LogLevel.ERROR, type="outage", stage=stage.name, error=reason)
        logger.warning(
            "experiment %s: %s; the rows of %s are parked until the experiment is resumed",
            self._run.experiment.name,
            reason,
            stage.name,
        )

    def _end_outage(self, stage: Stage) -> None:
        reason = self._run.outages.pop(stage.index)
        self._run.log(LogLevel.INFO, type="outage_over", stage=stage.name, was=reason)


def _describe(outcome: Outcome) -> str:
    if outcome.status is not None:
        return f"status {outcome.status}"
    return "no answer in time" if outcome.row == "timeout" else "no connection"
