"""Run of one claimed experiment in this process.

Theory of operation. A run is LIVE (it dispatches), DRAINING (it dispatches nothing; jobs in flight may finish within
the grace period) or ENDED. It drains once, and the first reason holds. The reasons are completion, the user's stop, the
failure guard, a dataset failure, a lost claim and a shutdown. It is drained when no job is in flight and every result
is durable or fenced off. Only then does the `RunSupervisor` release the claim, if this replica still holds it. All
methods run in the event loop's thread, except `on_key_used`, `on_chunk` and `in_loop`. Any internal error ends the run
and becomes its reason, so a run never hangs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.admission.audit import cost_of, receive, require_prices
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cost, Key, Kind
from tidegate.errors import ConfigurationError
from tidegate.experiments.engine import results
from tidegate.experiments.engine.budget import Budget, BudgetLedger
from tidegate.experiments.engine.events import Chunk, StateChanged
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.item import TASK, Item, own_id
from tidegate.experiments.engine.job import Job, KeyDiscovery, Stage, StageClosing, emits_to
from tidegate.experiments.engine.redaction import redacted
from tidegate.experiments.engine.replica import actor, process
from tidegate.experiments.engine.retry_timers import RetryTimers
from tidegate.experiments.engine.run_state import STOPPED_ELSEWHERE, RunnerContext, RunPhase, RunState, limit_reached
from tidegate.experiments.engine.watermark import WatermarkWriter
from tidegate.experiments.engine.writer import Result
from tidegate.experiments.storage import (
    AnnotationResult,
    Category,
    Claim,
    ItemAttempts,
    ItemUsage,
    LogLevel,
    ResultStatus,
    RunResult,
    Status,
)
from tidegate.pool.execution import CancelReason
from tidegate.pool.function_limit import FLOOR

logger = logging.getLogger("tidegate")

AT_ONCE = 0.01
"""Seconds after a slot became free within which the next item starts, if nothing else held it back."""


class ExperimentRun(RunState):
    """Run of one experiment under one claim: it accepts items and finished jobs until it ends.

    `conclude` handles each job that has ended. The creator of the run sets it to `ResultHandler.conclude`.
    """

    conclude: Callable[[Job], None]

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
        self.lent_slots = 0
        self.fenced_off = self._held = self._has_put_end = False
        self._jobs_of = [0] * len(self.stages)
        self._lending_of = [0] * len(self.stages)
        self._freed_at = -INFINITY
        self._told_of_bound = self._told_of_usage = False
        self._metered: set[int] = set()
        self._thread = threading.get_ident()
        self._grace_timer: asyncio.TimerHandle | None = None
        self._starting: dict[int, asyncio.Future[None]] = {}
        self.watermark = WatermarkWriter(shared.store, claim, self.tracker, shared.loop, self.context, experiment.name)
        self.timers = RetryTimers(self, self.give_up, self.offer)
        self._discovery = KeyDiscovery(
            self.id, self.stages, self.work_queue, shared.gates, shared.fair_queue, self._on_new_key
        )

    def start(self) -> None:
        """Join the fair queue and announce the start. The feeder supplies the work."""
        self.shared.fair_queue.join(self.id, self.experiment.weight)
        self.page_wanted.set()
        begun = "joined" if self.contributes else "started"
        self.log(LogLevel.INFO, Category.EXPERIMENT, type=begun, epoch=self.claim.epoch, **process())
        self.publish(StateChanged(Status.RUNNING))

    def offer(self) -> None:
        """Offer the ready work to the fair queue, and set the timers of the work that is not ready."""
        if self.phase is not RunPhase.LIVE:
            return
        for gate in set(self.work_queue.gates()):
            self.shared.fair_queue.offer(self.id, gate)
        self.timers.set_retry_timer()
        self.timers.schedule_check()
        self.shared.wake()

    def add_new(self, items: list[Item], since: float) -> None:
        """Queue new items from the store.

        They could have been dispatched since the instant `since`, in loop seconds.
        """
        for item in items:
            item.ready_at = since
            self.tracker.open(item)
        self.add(items)
        if items:
            self.timers.check_soon()
        self.offer()

    def add(self, items: list[Item]) -> None:
        """Queue new items; park those of a closed stage."""
        self.work_queue.add(item for item in items if self.stages[item.stage].closing is None)
        for item in items:
            closing = self.stages[item.stage].closing
            if closing is not None:
                self.park(item, *closing)

    def add_invalid(self, item: Item, reason: str) -> None:
        """Record a row that cannot be tried, without a permit or a slot."""
        self.tracker.open(item)
        self.put(
            item, results.unanswered(self.claim, self.stages[TASK], item, ResultStatus.INVALID, "invalid_row", reason)
        )

    def dispatch(self, item: Item, permit: Permit | None) -> None:
        """Start an item that was taken from the work queue, in a free slot."""
        self._tell_of_bound()
        stage = self.stages[item.stage]
        job = Job(item, stage, self, self.shared.registry, permit)
        self._discovery.dispatched(stage)
        if self.work_queue.runs_low(stage.index):
            self.page_wanted.set()
        # No statement between these can fail. The job's single report frees the slot.
        self.in_flight.add(job)
        if self.ledger is not None and stage.index == TASK:
            self.ledger.start_row()
        self._jobs_of[stage.index] += 1
        self.shared.functions.started(job)
        self._update_cap()
        context = self.context.copy()
        context.run(emits_to, partial(self.on_chunk, job))
        context.run(receive, job.attempts.append)
        budget = self.kept_budget
        if budget is not None and budget.usd is not None:
            context.run(require_prices, partial(self._on_unpriced, budget.usd))
        if self.ledger is not None:
            job.ready = self._stored_expectation(self.ledger, job)
        job.start(self.shared.loop, context)
        self.audit.note_dispatched(job, len(self.in_flight))

    def on_job_done(self, job: Job) -> None:
        """Free the slot of an ended job, and process its item."""
        item, stage = job.item, job.stage
        if job.cancel_reason is not None and job.task is not None:
            # The function may continue; its task is named for messages about it.
            job.task.set_name(f"{stage.name} of row {item.place.ordinal}")
        self.in_flight.discard(job)
        self._jobs_of[stage.index] -= 1
        if job.slot_lent:
            self._lend(stage.index, -1)
        self.shared.functions.ended(job)
        try:
            self._update_cap()
            self.work_queue.on_job_done(item.attempts > 0)
            item.seconds += job.seconds
            self._discovery.on_job_done(stage, job.handoff)
            self.conclude(job)
            if self.ledger is not None:
                self._count_spent(self.ledger, job)
            if self.kept_budget is not None:
                self._check_usage(self.kept_budget, job)
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
        """Lend the slot of a job that waits for capacity inside a call, or take it back when the job continues.

        Another job may use the lent slot, so a waiting job starves no other stage. It still counts towards its own
        stage.
        """
        self._lend(job.item.stage, 1 if job.slot_lent else -1)
        self.audit.note_lent(job, self.shared.loop.time())
        self._update_cap()
        self.timers.schedule_check()
        self.shared.wake()

    def _stored_expectation(self, ledger: BudgetLedger, job: Job) -> asyncio.Future[None] | None:
        """Store the expected usage of a job; return a future that is done when it and all before it are durable."""
        item, expected = job.item, ledger.expected(job.item.stage)
        if expected is not None and not any(expected):
            return None
        usage = None
        if expected is not None:
            # The usage at the end of the job replaces the stored one, also where its calls cost nothing.
            item.usage = item.usage or ItemUsage()
            usage = item.usage._replace(tokens=item.usage.tokens.plus(expected))
        result = ItemAttempts(self.id, self.claim.epoch, *item.place, (), stage=job.stage.name, usage=usage)
        ready = self._starting[id(result)] = self.shared.loop.create_future()
        self.put(None, result)
        self.shared.writer.flush()
        return ready

    def _start_waiting(self, result: Result) -> None:
        """Start the function that has waited for this result."""
        ready = self._starting.pop(id(result), None)
        if ready is not None and not ready.done():
            ready.set_result(None)

    def _count_spent(self, ledger: BudgetLedger, job: Job) -> None:
        if job.item.stage == TASK:
            ledger.end_task(job.spent, job.answered)
        else:
            ledger.end_judgement(job.item.stage, job.spent)
        self.end_if_spent()

    def _check_usage(self, budget: Budget, job: Job) -> None:
        """End the run at an answer without usage, if no answer of its stage has stated any: no budget can count these.

        Later ones are rare exceptions, such as a broken stream: the first of them is told.
        """
        stage = job.item.stage
        if job.spent.metered:
            self._metered.add(stage)
            if budget.usd is not None and job.spent.priced < job.spent.metered:
                self._check_tiers(budget.usd, job)
            return
        unknown = next((each for each in job.attempts if each.kind is Kind.OK and each.usage is None), None)
        if unknown is None:
            return
        if stage not in self._metered:
            bound = (
                f"an answer of {unknown.key.provider} states no usage, so no budget can count it; a stream of openai "
                "states it with stream_options={'include_usage': True}"
            )
            self.fail(ConfigurationError("budget", str(budget), bound))
        elif not self._told_of_usage:
            self._told_of_usage = True
            text = "experiment %s: an answer of %s has no usage: the budget does not count it, nor others like it"
            logger.warning(text, self.experiment.name, unknown.key.provider)
            self.log(LogLevel.WARN, Category.EXPERIMENT, type="usage_unknown", provider=unknown.key.provider)

    def _check_tiers(self, limit: float, job: Job) -> None:
        """End the run at an answer of a service tier whose price is unknown: only the answer states its tier."""
        for each in job.attempts:
            usage = each.usage
            if usage is not None and cost_of(each.key, usage) is None:
                self._on_unpriced(limit, each.key, "@".join(filter(None, (usage.model, usage.tier))))
                return

    def _on_unpriced(self, limit: float, key: Key, model: str) -> None:
        """End the run before a call whose price is unknown. Any thread may call this."""
        name = f"{key.provider}/{model}" if model else key.provider
        error = ConfigurationError(
            "budget usd", limit,
            f"{name} has no price; tidegate.providers.register_price or TIDEGATE_PRICES adds one",
        )  # fmt: skip
        self.in_loop(partial(self.fail, error))

    def end_if_spent(self) -> None:
        """End the run if its budget is reached: what it has started is done."""
        ledger = self.ledger
        if ledger is not None and self.live and (ledger.reached or (not self.in_flight and ledger.stuck)):
            self.drain(Status.STOPPED, ledger.reason)

    def full(self, item: Item) -> bool:
        """Return whether the stage of the next item has its maximum of jobs, including those that wait inside a call.

        No task starts that does not fit the budget.

        Without a `max_concurrency`, as many jobs of a stage may wait inside calls as the others are, at least `FLOOR`.
        More would only have paid for their earlier calls without being nearer to their end.
        """
        stage = item.stage
        if stage == TASK and self.ledger is not None and not self.ledger.may_start:
            self.work_queue.reset_age(TASK)
            if not self.in_flight:
                # No job's end follows that would find this out, or offer the judgements behind the task.
                self.in_loop(self.end_if_spent)
                if any(self.work_queue.depth(each.index) for each in self.stages[1:]):
                    self.in_loop(self.offer)
            return True
        if stage != TASK and self.ledger is not None and not self.ledger.may_judge(stage, self._jobs_of[stage]):
            return True
        if self.cap is not None:
            return self._jobs_of[stage] >= self.cap
        lending = self._lending_of[stage]
        return lending >= FLOOR and lending >= self._jobs_of[stage] - lending

    def park(self, item: Item, kind: str = "", reason: str = "") -> None:
        """Give up a row for now; a resume tries it again.

        Without `kind`, the reason is the stage's closing, the outage of its key, or an exceeded capacity deadline.
        """
        stage = self.stages[item.stage]
        if not kind and stage.closing is not None:
            kind, reason = stage.closing
        elif not kind and item.stage in self.outages:
            kind, reason = "outage", self.outages[item.stage]
        elif not kind:
            kind, reason = "capacity", f"no capacity for {self.shared.settings.row_deadline:g} s of active waiting"
            failure = self.timers.last_failure(stage)
            reason += f"; last failure: {failure}" if failure else ""
        self.write_failure(item, ResultStatus.PARKED, kind, reason)

    def give_up(self, items: list[Item]) -> None:
        """Park items that are not in flight."""
        if items:
            self.work_queue.remove(items)
            for item in items:
                self.park(item)

    def close(self, stage: Stage, reason: str) -> None:
        """Stop trying an evaluator in this run, and park its present and future items."""
        stage.closing = StageClosing("guard", reason)
        name = self.experiment.name
        self.log(LogLevel.ERROR, Category.EXPERIMENT, type="evaluator_closed", evaluator=stage.name, error=reason)
        logger.warning(
            "experiment %s: evaluator %s closed: %s; its rows are parked until the experiment is resumed",
            name,
            stage.name,
            reason,
        )
        self.give_up(self.work_queue.items(stage.index))
        for job in self.in_flight:
            if job.item.stage == stage.index and job.slot_lent:
                job.recall()

    def durable(self, item: Item | None, result: Result) -> None:
        """Process a result of this run that is now in the database: publish it and count its item as done."""
        self.tracker.unwritten -= 1
        self._start_waiting(result)
        if item is not None and isinstance(result, RunResult | AnnotationResult):
            self._settle(item, result)
        self.check_progress()

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """Handle a result that the store refuses permanently: record that its item has failed."""
        self.tracker.unwritten -= 1
        self._start_waiting(result)
        text = "experiment %s: result not stored: %s; %s"
        if item is None or not isinstance(result, RunResult | AnnotationResult):
            logger.error(text, self.experiment.name, error, "it is no result of an item, and the run continues")
            self.check_progress()
        elif results.failed(result):
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

    def on_interrupt(self, job: Job) -> None:
        """Stop the run as its owner's Ctrl-C does: a function raised KeyboardInterrupt, and its item stays open."""
        reason = f"{job.stage.name} raised KeyboardInterrupt at row {own_id(job.item.body) or job.item.place.ordinal}"
        if self.live:
            name = self.experiment.name
            logger.warning("experiment %s stops: %s; jobs in flight may finish", name, reason)
        self.drain(Status.STOPPED, reason)

    def on_claim_lost(self) -> None:
        """Stop after the loss of the claim, and write nothing about it."""
        self.fenced_off = True
        self.drain(None, "the claim was lost")

    def on_chunk_lost(self, first: int) -> None:
        """Handle the claim of one of this run's chunks by another replica: a contributor leaves, and may join again."""
        logger.warning(
            "experiment %s: chunk at row %d lost: another replica holds it; its rows are run there",
            self.experiment.name,
            first,
        )
        if self.contributes:
            self.on_claim_lost()

    def stopped_elsewhere(self) -> None:
        """Stop because a user's stop is recorded in the database."""
        self.drain(None, STOPPED_ELSEWHERE)

    def leave(self) -> None:
        """Stop for the user of this process."""
        if self.live and not self.contributes:
            self.log(LogLevel.INFO, Category.EXPERIMENT, type="stopped_by_user", epoch=self.claim.epoch, **actor())
        self.drain(Status.STOPPED, None)

    def fail(self, error: BaseException) -> None:
        """Stop the run with an error that no single item caused."""
        self.drain(Status.ERROR, redacted(error))

    def drain(self, final: Status | None, reason: str | None, grace: float | None = None) -> None:
        """Stop dispatching, and let jobs in flight finish for `grace` seconds; only the first call has an effect.

        `final` is the status with which the claim is released at the end. It is None if the claim is kept or was lost.
        """
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
        self.timers.end()
        grace = self.shared.settings.grace if grace is None else grace
        if grace <= 0:
            self.cancel()
        elif self.in_flight:
            self._grace_timer = self.shared.loop.call_later(grace, self.cancel)
        if final is Status.ERROR and not self.contributes:
            self.log(LogLevel.ERROR, Category.EXPERIMENT, type="stopped", error=reason)
        self.page_wanted.set()
        self._finish_if_drained()

    def cancel(self) -> None:
        """Cancel all jobs in flight, as at the end of the grace period."""
        for job in list(self.in_flight):
            job.cancel(CancelReason.STOP)

    def request_page(self) -> None:
        """Request a page from the store if it may hold items that memory lacks."""
        if self.phase is RunPhase.LIVE and (
            self.tracker.may_have_more or (self.work_queue.runs_low(TASK) and not self.tracker.tasks_exhausted)
        ):
            self.page_wanted.set()

    def check_progress(self) -> None:
        """Request more work, check timers and detect the end, after something became durable."""
        self.request_page()
        if self.phase is RunPhase.LIVE:
            if self.tracker.settled:
                self.drain(*self._end())
            elif self.outages:
                self.timers.schedule_check()
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
        if threading.get_ident() == self._thread:
            self._stream(job, chunk)
        else:
            self.in_loop(self._stream, job, chunk)

    def in_call(self, job: Job, calling: bool) -> None:
        """Count a function that is in a call now, or in none any more; callable from any thread."""
        functions = self.shared.functions
        if calling:
            functions.calls(job)
        else:
            functions.works(job)

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call in the event loop from any thread; ignore it if the loop is closed."""
        if threading.get_ident() == self._thread and not self.shared.loop.is_closed():
            self.shared.loop.call_soon(function, *args)
            return
        try:
            self.shared.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return

    def _on_new_key(self) -> None:
        """Offer the items of a stage whose key has changed."""
        self.timers.check_soon()
        self.offer()

    def _end(self) -> tuple[Status, str | None]:
        """Return the final status and reason of a run that has no work left."""
        closed = [stage.closing.reason for stage in self.stages if stage.closing is not None]
        if closed:
            return Status.ERROR, "; ".join(closed)
        if self.outages:
            return Status.STOPPED, "; ".join(dict.fromkeys(self.outages.values()))
        if self.limited and self.limit is not None:
            return Status.STOPPED, limit_reached(self.limit)
        return Status.COMPLETED, None

    def _lend(self, stage: int, change: int) -> None:
        self.lent_slots += change
        self._lending_of[stage] += change
        self.shared.functions.lend(change)

    def _update_cap(self) -> None:
        self.work_queue.retry_slots = self.retry_slots()
        if self.cap is None:
            return
        if len(self.in_flight) - self.lent_slots >= self.cap:
            if self.live:
                self.shared.fair_queue.hold(self.id)
                self._held = True
        else:
            if self._held:
                self._held, self._freed_at = False, self.shared.loop.time()
            self.shared.fair_queue.free(self.id)

    def _tell_of_bound(self) -> None:
        """Log once that `max_concurrency` holds back calls: an item starts as soon as a slot is free."""
        functions = self.shared.functions
        freed = max(self._freed_at, functions.freed_at)
        if self._told_of_bound or self.cap is None or self.shared.loop.time() - freed > AT_ONCE:
            return
        self._told_of_bound = True
        self.log(LogLevel.INFO, Category.EXPERIMENT, type="held_back", by="max_concurrency", functions=self.cap)
        logger.info(
            "experiment %s held back: max_concurrency=%d functions are in flight, and more could start; leave"
            " max_concurrency out to follow the keys",
            self.experiment.name,
            self.cap,
        )

    def _stream(self, job: Job, chunk: Any) -> None:
        if not job.done and job.item.stage == TASK:
            self.publish(Chunk(*job.item.place, job.item.attempts + 1, chunk))

    def _settle(self, item: Item, result: RunResult | AnnotationResult) -> None:
        self.tracker.close(item, results.failed(result))
        self.tally.add(item.stage, result)
        self.watermark.count_durable()
        if self.shared.hub.has_subscribers(self.id, self.experiment.name):
            self.publish(result)

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
