"""Handler of new items and ended jobs: each item is queued, answered, tried again, parked or failed.

`ExperimentRun.on_job_done` gives each ended job to `conclude`. A result goes on by `RunState.put` to the `ResultWriter`
in `engine.results`, which inserts it by `storage.results.write`.
"""

from __future__ import annotations

import logging
from typing import Any

from tidegate.core.values import AnsweredBy, NextStep
from tidegate.errors import NotStorable
from tidegate.experiments.engine import results
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.events import Retrying
from tidegate.experiments.engine.job import Job, Stage
from tidegate.experiments.engine.queues import TASK, Item, own_id
from tidegate.experiments.engine.results import NoJudgement
from tidegate.experiments.engine.retry_timers import RetryTimers
from tidegate.experiments.engine.run_state import RunState
from tidegate.experiments.storage import LogLevel, ResultStatus, RunResult, Status
from tidegate.pool.execution import CancelReason
from tidegate.pool.failure_class import UNHEARD, FailureClass, classify
from tidegate.pool.key_gates import StageGate

logger = logging.getLogger("tidegate")


class ResultHandler:
    """Retry policy of one run.

    Missing capacity spends no attempt. Each possibly temporary failure spends one. Each final outcome leaves a row.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.timers = RetryTimers(run, self.give_up)

    def add_new(self, items: list[Item], since: float) -> None:
        """Queue new items from the store, which could have been dispatched since the instant `since` of the loop."""
        for item in items:
            item.ready_at = since
            self._run.tracker.open(item)
        self._add(items)
        self._run.offer()

    def add_invalid(self, item: Item, reason: str) -> None:
        """Record a row that cannot be tried, without a permit or a slot."""
        run = self._run
        run.tracker.open(item)
        run.put(
            item, results.unanswered(run.claim, run.stages[TASK], item, ResultStatus.INVALID, "invalid_row", reason)
        )

    def conclude(self, job: Job) -> None:
        """Process the end of a job; a job that was cancelled by the run's stop leaves its item unchanged."""
        run, item = self._run, job.item
        if isinstance(job.error, KeyboardInterrupt) or job.cancel_reason is CancelReason.STOP:
            run.audit.note_done(job, None, len(run.in_flight))
            if isinstance(job.error, KeyboardInterrupt):
                self._interrupt(job)
            return
        failure_class = job.failure_class()
        run.audit.note_done(job, failure_class, len(run.in_flight))
        if failure_class.next_step in (NextStep.CAPACITY, NextStep.TRANSIENT) and (
            job.error is not None or failure_class is UNHEARD
        ):
            job.stage.last_error = _text(job) or ""
        if failure_class.next_step is NextStep.ANSWERED:
            job.answered = self.answer(item, job.value, job.handoff.answered_by)
        elif failure_class.next_step is not NextStep.PERMANENT and (job.recalled or job.stage.closing):
            if run.live:
                self.park(item)
        elif failure_class.next_step is NextStep.CAPACITY:
            self._refused(job, failure_class)
        elif failure_class.next_step is NextStep.PARKED:
            self._close_for_day(job, failure_class)
        elif failure_class.next_step in (NextStep.TRANSIENT, NextStep.UNUSABLE):
            self._retry_or_fail(item, failure_class, _text(job))
        else:
            item.attempts += 1
            self._failed(item, failure_class.kind, _text(job))

    def fail(self, item: Item, error: Exception) -> None:
        """Record that code of the user failed for an item that no job has run; enough of these in a row end the run."""
        found = classify(error, None, None, False)
        self.refuse(item, found.kind or type(error).__name__, redacted(error))

    def refuse(self, item: Item, kind: str, text: str | None) -> None:
        """Record that an item which no job has run cannot be answered; enough of these in a row end the run."""
        item.attempts += 1
        self._failed(item, kind, text)

    def answer(self, item: Item, value: Any, answered_by: tuple[AnsweredBy, ...] = ()) -> bool:
        """Store an answer, and queue its judgements; return whether it could be stored."""
        run = self._run
        stage = run.stages[item.stage]
        item.attempts += 1
        try:
            result = results.answered(run.claim, stage, item, value, answered_by)
        except (NoJudgement, NotStorable) as error:
            kind = "no_judgement" if isinstance(error, NoJudgement) else "not_json"
            self._failed(item, kind, redacted(error))
            return False
        stage.succeeded()
        gate = run.work_queue.gate(item.stage)
        if isinstance(gate, StageGate):
            run.shared.gates.answered(gate)
        if item.stage == TASK:
            size = len(result.output or "") if isinstance(result, RunResult) else 0
            self._queue_evaluations(item, value, item.size + size)
        run.put(item, result)
        return True

    def park(self, item: Item) -> None:
        """Give up a row for now; a resume tries it again.

        The reason is the stage's closing, the outage of its key, or an exceeded capacity deadline.
        """
        run, stage = self._run, self._run.stages[item.stage]
        if stage.closing:
            kind, reason = "guard", stage.closing
        elif item.stage in run.outages:
            kind, reason = "outage", run.outages[item.stage]
        else:
            kind, reason = "capacity", f"no capacity for {run.shared.settings.row_deadline:g} s of active waiting"
            failure = self.timers.last_failure(stage)
            reason += f"; last failure: {failure}" if failure else ""
        run.write_failure(item, ResultStatus.PARKED, kind, reason)

    def give_up(self, items: list[Item]) -> None:
        if items:
            self._run.work_queue.remove(items)
            for item in items:
                self.park(item)

    def _add(self, items: list[Item]) -> None:
        """Queue new items; park those of a closed stage."""
        stages = self._run.stages
        self._run.work_queue.add(item for item in items if not stages[item.stage].closing)
        for item in items:
            if stages[item.stage].closing:
                self.park(item)

    def _interrupt(self, job: Job) -> None:
        """Stop the run as its owner's Ctrl-C does: a function raised KeyboardInterrupt, and its item stays open."""
        reason = f"{job.stage.name} raised KeyboardInterrupt at row {own_id(job.item.body) or job.item.place.ordinal}"
        if self._run.live:
            name = self._run.experiment.name
            logger.warning("experiment %s stops: %s; jobs in flight may finish", name, reason)
        self._run.drain(Status.STOPPED, reason)

    def _close(self, stage: Stage, reason: str) -> None:
        """Stop trying an evaluator in this run, and park its present and future items."""
        run = self._run
        stage.closing = reason
        run.log(LogLevel.ERROR, type="evaluator_closed", evaluator=stage.name, error=reason)
        logger.warning(
            "experiment %s: evaluator %s closed: %s; its rows are parked until the experiment is resumed",
            run.experiment.name,
            stage.name,
            reason,
        )
        self.give_up(run.work_queue.items(stage.index))
        for job in run.in_flight:
            if job.item.stage == stage.index and job.slot_lent:
                job.recall()

    def _queue_evaluations(self, item: Item, output: Any, size: int) -> None:
        run = self._run
        for stage in run.stages[1:]:
            if run.live and run.work_queue.room(stage.index):
                made = Item(stage.index, item.place, item.body, output, size)
                made.ready_at = run.shared.loop.time()
                run.tracker.open(made)
                self._add([made])
            else:
                run.rejected_at[stage.index] = run.shared.loop.time()
                run.tracker.defer(item.place, stage.index)

    def _refused(self, job: Job, failure_class: FailureClass) -> None:
        run, item = self._run, job.item
        if not run.live:
            return
        run.audit.waits.begin(item, run.shared.loop.time())
        delay = self.timers.delay_of_refused(job, failure_class)
        if delay is None:
            self.park(item)
        elif delay:
            self.timers.delay(item, delay)
        else:
            run.work_queue.put_back(item)

    def _close_for_day(self, job: Job, failure_class: FailureClass) -> None:
        run, item, at = self._run, job.item, job.handoff.outcome_at
        if at is not None:
            run.shared.gates.close_for_day(at, failure_class.retry_after)
        if at == run.work_queue.gate(item.stage) and failure_class.retry_after is not None and run.live:
            # The item waits for the reset, which does not count as active waiting.
            run.audit.waits.begin(item, run.shared.loop.time())
            self.timers.refused(item)
            run.work_queue.put_back(item)
        else:
            self._run.write_failure(item, ResultStatus.PARKED, failure_class.kind, _text(job))

    def _retry_or_fail(self, item: Item, failure_class: FailureClass, text: str | None) -> None:
        run = self._run
        item.attempts += 1
        if item.attempts >= run.shared.settings.attempts:
            if failure_class.next_step is NextStep.UNUSABLE:
                self._failed(item, failure_class.kind, text)
            else:
                self._run.write_failure(item, ResultStatus.ERROR, failure_class.kind, text)
        elif run.live:
            delay = failure_class.delay(item.attempts, run.shared.gates.draw())
            self.timers.delay(item, delay)
            run.audit.transient_retries += 1
            run.publish(Retrying(*item.place, run.stages[item.stage].name, item.attempts, failure_class.kind))

    def _failed(self, item: Item, kind: str, text: str | None) -> None:
        run = self._run
        stage = run.stages[item.stage]
        self._run.write_failure(item, ResultStatus.ERROR, kind, text)
        if stage.failed(kind) and not stage.closing:
            reason = f"{stage.failures} consecutive failures of {stage.name} ({kind}): {text}"
            if others := sum(job.item.stage == item.stage and job.item is not item for job in run.in_flight):
                reason += f"; {others} more {'row was' if others == 1 else 'rows were'} in flight"
            if item.stage == TASK:
                self._run.drain(Status.ERROR, reason)
            else:
                self._close(stage, reason)


def _text(job: Job) -> str | None:
    if job.cancel_reason is CancelReason.TIMEOUT:
        return f"no answer within {job.stage.timeout:g} s"
    return redacted(job.error) if job.error is not None else None
