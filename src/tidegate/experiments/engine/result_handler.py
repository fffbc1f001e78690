"""Handler of ended jobs: it stores a row, queues the item again, or delays it."""

from __future__ import annotations

from typing import Any

from tidegate.core.values import AnsweredBy, NextStep
from tidegate.errors import NotStorable
from tidegate.experiments.engine import results
from tidegate.experiments.engine.events import Retrying
from tidegate.experiments.engine.item import TASK, Item
from tidegate.experiments.engine.job import Job
from tidegate.experiments.engine.redaction import redacted
from tidegate.experiments.engine.results import NoJudgement
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.storage import ResultStatus, RunResult, Status
from tidegate.pool.execution import CancelReason
from tidegate.pool.failure_class import UNHEARD, FailureClass, classify
from tidegate.pool.key_gates import StageGate


class ResultHandler:
    """Retry policy of one run.

    Missing capacity spends no attempt. Each possibly temporary failure spends one. Each final outcome leaves a row.
    """

    def __init__(self, run: ExperimentRun) -> None:
        self._run = run

    def conclude(self, job: Job) -> None:
        """Process the end of a job; a job that was cancelled by the run's stop leaves its item unchanged."""
        run, item = self._run, job.item
        if isinstance(job.error, KeyboardInterrupt) or job.cancel_reason is CancelReason.STOP:
            run.audit.note_done(job, None, len(run.in_flight))
            if isinstance(job.error, KeyboardInterrupt):
                run.on_interrupt(job)
            return
        failure_class = job.failure_class()
        run.audit.note_done(job, failure_class, len(run.in_flight))
        if failure_class.next_step in (NextStep.CAPACITY, NextStep.TRANSIENT) and (
            job.error is not None or failure_class is UNHEARD
        ):
            job.stage.last_error = _text(job) or ""
        if failure_class.next_step is NextStep.ANSWERED:
            job.answered = self.answer(item, job.value, job.handoff.answered_by)
        elif failure_class.next_step is not NextStep.PERMANENT and (job.recalled or job.stage.closing is not None):
            if run.live:
                run.park(item)
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
        stage.guard.succeeded()
        gate = run.work_queue.gate(item.stage)
        if isinstance(gate, StageGate):
            run.shared.gates.answered(gate)
        if item.stage == TASK:
            size = len(result.output or "") if isinstance(result, RunResult) else 0
            self._queue_evaluations(item, value, item.size + size)
        run.put(item, result)
        return True

    def _queue_evaluations(self, item: Item, output: Any, size: int) -> None:
        run = self._run
        for stage in run.stages[1:]:
            if run.live and run.work_queue.room(stage.index):
                made = Item(stage.index, item.place, item.body, output, size)
                made.ready_at = run.shared.loop.time()
                run.tracker.open(made)
                run.add([made])
            else:
                run.rejected_at[stage.index] = run.shared.loop.time()
                run.tracker.defer(item.place, stage.index)

    def _refused(self, job: Job, failure_class: FailureClass) -> None:
        run, item = self._run, job.item
        if not run.live:
            return
        now = run.shared.loop.time()
        run.audit.waits.begin(item, now)
        delay = run.timers.delay_of_refused(job, failure_class)
        if delay is None:
            run.park(item)
        elif delay:
            run.work_queue.delay(item, now + delay)
        else:
            run.work_queue.put_back(item)

    def _close_for_day(self, job: Job, failure_class: FailureClass) -> None:
        run, item, at = self._run, job.item, job.handoff.outcome_at
        if at is not None:
            run.shared.gates.close_for_day(at, failure_class.retry_after)
        if at == run.work_queue.gate(item.stage) and failure_class.retry_after is not None and run.live:
            # The item waits for the reset, which does not count as active waiting.
            run.audit.waits.begin(item, run.shared.loop.time())
            run.timers.refused(item)
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
            run.work_queue.delay(item, run.shared.loop.time() + delay)
            run.audit.transient_retries += 1
            run.publish(Retrying(*item.place, run.stages[item.stage].name, item.attempts, failure_class.kind))

    def _failed(self, item: Item, kind: str, text: str | None) -> None:
        run = self._run
        stage = run.stages[item.stage]
        self._run.write_failure(item, ResultStatus.ERROR, kind, text)
        if stage.guard.failed(kind):
            reason = f"{stage.guard.count} consecutive failures of {stage.name} ({kind}): {text}"
            if others := sum(job.item.stage == item.stage and job.item is not item for job in run.in_flight):
                reason += f"; {others} more {'row was' if others == 1 else 'rows were'} in flight"
            if item.stage == TASK:
                run.drain(Status.ERROR, reason)
            else:
                run.close(stage, reason)


def _text(job: Job) -> str | None:
    if job.cancel_reason is CancelReason.TIMEOUT:
        return f"no answer within {job.stage.timeout:g} s"
    return redacted(job.error) if job.error is not None else None
