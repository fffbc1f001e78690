"""Run of one claimed experiment in this process.

Theory of operation. A run is LIVE (it dispatches), DRAINING (it dispatches nothing; jobs in flight may finish within
the grace period) or ENDED. It drains once, and the first reason holds. The reasons are completion, the user's stop, the
failure guard, a dataset failure, a lost claim and a shutdown. It is drained when no job is in flight and every result
is durable or fenced off. Only then does the `RunSupervisor` release the claim, if this replica still holds it. All
methods run in the event loop's thread, except `on_key_used`, `on_chunk`, `on_attempt`, `in_call` and `in_loop`. Any
internal error ends the run and becomes its reason, so a run never hangs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import Any

from tidegate.admission.audit import receive
from tidegate.core.events import AttemptEnded
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.events import Chunk, StateChanged
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.job import Job, KeyDiscovery, Stage, emits_to
from tidegate.experiments.engine.queues import TASK, Item
from tidegate.experiments.engine.replica import actor, process
from tidegate.experiments.engine.result_handler import ResultHandler
from tidegate.experiments.engine.results import Result, failed
from tidegate.experiments.engine.run_state import STOPPED_ELSEWHERE, RunnerContext, RunPhase, RunSlots, RunState
from tidegate.experiments.engine.spending import RunSpending
from tidegate.experiments.storage import (
    AnnotationResult,
    Claim,
    LogLevel,
    ResultStatus,
    RunResult,
    Status,
)
from tidegate.pool.execution import CancelReason

logger = logging.getLogger("tidegate")


class ExperimentRun(RunState):
    """Run of one experiment under one claim: it accepts items and finished jobs until it ends.

    `results` accepts new items and concludes jobs that have ended.
    """

    def __init__(
        self,
        shared: RunnerContext,
        experiment: Experiment,
        claim: Claim,
        *,
        retry_failed: bool,
        contributes: bool = False,
    ) -> None:
        super().__init__(shared, experiment, claim, retry_failed, self, contributes)
        self.drained: asyncio.Future[None] = shared.loop.create_future()
        self.fenced_off = self._has_put_end = False
        self._grace_timer: asyncio.TimerHandle | None = None
        self.slots = RunSlots(self)
        self.results = ResultHandler(self)
        self.spending = RunSpending(self, self.slots)
        self._discovery = KeyDiscovery(
            self.id, self.stages, self.work_queue, shared.gates, shared.fair_queue, self.offer
        )

    def start(self) -> None:
        """Join the fair queue and announce the start. The feeder supplies the work."""
        self.shared.fair_queue.join(self.id, self.experiment.weight)
        self.results.timers.start()
        self.page_wanted.set()
        begun = "joined" if self.contributes else "started"
        self.log(LogLevel.INFO, type=begun, epoch=self.claim.epoch, **process())
        self.publish(StateChanged(Status.RUNNING))

    def offer(self) -> None:
        if self.phase is not RunPhase.LIVE:
            return
        for gate in set(self.work_queue.gates()):
            self.shared.fair_queue.offer(self.id, gate)
        self.shared.wake()

    def full(self, item: Item) -> bool:
        """Return whether the next item cannot start: its stage has its maximum of jobs, or no more fits the budget."""
        return not self.spending.fits(item.stage) or self.slots.full(item.stage)

    def dispatch(self, item: Item, permit: Permit | None) -> None:
        """Start an item that was taken from the work queue, in a free slot."""
        stage = self.stages[item.stage]
        job = Job(item, stage, self, self.shared.registry, permit)
        self._discovery.dispatched(stage)
        if self.work_queue.runs_low(stage.index):
            self.page_wanted.set()
        # No statement between these can fail. The job's single report frees the slot.
        self.slots.take(job)
        context = self.context.copy()
        context.run(emits_to, partial(self.on_chunk, job))
        context.run(receive, partial(self.on_attempt, job))
        self.spending.start(job, context)
        job.start(self.shared.loop, context)
        self.audit.note_dispatched(job, len(self.in_flight))

    def on_job_done(self, job: Job) -> None:
        """Free the slot of an ended job, and process its item."""
        item, stage = job.item, job.stage
        if job.cancel_reason is not None and job.task is not None:
            # The function may continue; its task is named for messages about it.
            job.task.set_name(f"{stage.name} of row {item.place.ordinal}")
        try:
            self.slots.free(job)
            item.seconds += job.seconds
            self._discovery.on_job_done(stage, job.handoff)
            self.results.conclude(job)
            self.spending.end(job)
            if item.audit or item.usage is not None:
                self.put_attempts(item, stage.name)
            self.offer()
        except Exception as error:
            logger.exception(
                "experiment %s: end of a job not processed: %s was raised; the run ends with ERROR",
                self.experiment.name,
                type(error).__name__,
            )
            self.fail(error)
        job.forget()
        self._finish_if_drained()
        self.shared.wake()

    def on_slot_lent(self, job: Job) -> None:
        """Lend the slot of a job that waits for capacity inside a call, or take it back when the job continues."""
        self.slots.lend(job)
        self.audit.note_lent(job, self.shared.loop.time())
        self.shared.wake()

    def durable(self, item: Item | None, result: Result) -> None:
        """Process a result of this run that is now in the database: publish it and count its item as done."""
        self.tracker.unwritten -= 1
        self.spending.on_stored(result)
        if item is not None and isinstance(result, RunResult | AnnotationResult):
            self.tracker.close(item, failed(result))
            self.tally.add(item.stage, result)
            if self.shared.hub.has_subscribers(self.id, self.experiment.name):
                self.publish(result)
        self.check_progress()

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """Handle a result that the store refuses permanently: record that its item has failed."""
        self.tracker.unwritten -= 1
        self.spending.on_stored(result)
        text = "experiment %s: result not stored: %s; %s"
        if item is None or not isinstance(result, RunResult | AnnotationResult):
            logger.error(text, self.experiment.name, error, "it is no result of an item, and the run continues")
            self.check_progress()
        elif failed(result):
            logger.error(text, self.experiment.name, error, "the run ends with ERROR")
            self.fail(error)
        else:
            logger.error(text, self.experiment.name, error, "its item is stored as failed")
            item.audit, item.usage = list(result.audit), result.usage
            self.write_failure(item, ResultStatus.ERROR, "not_storable", redacted(error))

    def fenced(self, count: int) -> None:
        """Cancel all jobs, because another replica has claimed the experiment; `count` results were not written."""
        self.tracker.unwritten -= count
        self.on_claim_lost()
        self.cancel()
        self.check_progress()

    def given_up(self, count: int, error: BaseException) -> None:
        """Fail the run, because no result can be written any more.

        `count` results are lost; another run must repeat their items.
        """
        self.tracker.unwritten -= count
        self.fail(error)
        self.cancel()
        self.check_progress()

    def on_claim_lost(self) -> None:
        """Stop after the loss of the claim, and write nothing about it."""
        self.fenced_off = True
        self.drain(None, "the claim was lost")

    def stopped_elsewhere(self) -> None:
        """Stop because a user's stop is recorded in the database."""
        self.drain(None, STOPPED_ELSEWHERE)

    def leave(self) -> None:
        if self.live and not self.contributes:
            self.log(LogLevel.INFO, type="stopped_by_user", epoch=self.claim.epoch, **actor())
        self.drain(Status.STOPPED, None)

    def drain(self, final: Status | None, reason: str | None, grace: float | None = None) -> None:
        if self.phase is not RunPhase.LIVE:
            return
        self.phase = RunPhase.DRAINING
        self.final, self.reason = final, reason
        if self.contributes:
            # Only the owner ends an experiment. Other replicas take the chunks that are not done.
            if final in (Status.ERROR, Status.STOPPED):
                why = reason or "its user here stopped it"
                logger.warning("experiment %s left: %s; other replicas run its rows", self.experiment.name, why)
            self.final = None
        self.shared.fair_queue.leave(self.id)
        self._discovery.end()
        self.work_queue.clear()
        self.results.timers.end()
        grace = self.shared.settings.grace if grace is None else grace
        if grace <= 0:
            self.cancel()
        elif self.in_flight:
            self._grace_timer = self.shared.loop.call_later(grace, self.cancel)
        if final is Status.ERROR and not self.contributes:
            self.log(LogLevel.ERROR, type="stopped", error=reason)
        self.page_wanted.set()
        self._finish_if_drained()

    def cancel(self) -> None:
        """Cancel all jobs in flight, as at the end of the grace period."""
        for job in list(self.in_flight):
            job.cancel(CancelReason.STOP)

    def check_progress(self) -> None:
        """Request more work and detect the end, after something became durable."""
        self.request_page()
        if self.phase is RunPhase.LIVE:
            if self.tracker.settled:
                self.drain(*self.end())
        else:
            self._finish_if_drained()

    def on_key_used(self, stage: Stage, key: Key, cost: Cost) -> None:
        """Record the first key that a function asks for; callable from any thread."""
        if stage.key_usage.key != key:
            self.in_loop(self._discovery.set_key, stage, key, cost)

    def on_chunk(self, job: Job, chunk: Any) -> None:
        """Publish a chunk of an answer; callable from any thread."""
        if not self.shared.hub.has_subscribers(self.id, self.experiment.name):
            return
        if threading.get_ident() == self.thread:
            self._stream(job, chunk)
        else:
            self.in_loop(self._stream, job, chunk)

    def on_attempt(self, job: Job, ended: AttemptEnded) -> None:
        """Keep an ended attempt of a job; callable from any thread."""
        job.attempts.append(ended)
        if ended.usage is not None:
            # Later: the function often ends with its only call, and then its result has the usage.
            self.in_loop(self.spending.on_usage, job)

    def in_call(self, job: Job, calling: bool) -> None:
        """Count a function that is in a call now, or in none any more; callable from any thread."""
        functions = self.shared.functions
        if calling:
            functions.calls(job)
        else:
            functions.works(job)

    def _stream(self, job: Job, chunk: Any) -> None:
        if not job.done and job.item.stage == TASK:
            self.publish(Chunk(*job.item.place, job.item.attempts + 1, chunk))

    def _finish_if_drained(self) -> None:
        if self.phase is not RunPhase.DRAINING or self.in_flight:
            return
        if not (self.tracker.unwritten or self._has_put_end or self.fenced_off or self.shared.writer.broken):
            self._has_put_end = True
            self.put_end()
        if self.tracker.unwritten:
            self.shared.writer.flush()
            return
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        if not self.drained.done():
            self.drained.set_result(None)
