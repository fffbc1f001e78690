"""Handler of ended jobs: it stores a row, queues the item again, or delays it."""

from __future__ import annotations

from typing import Any

from tidegate.core.backoff import full_jitter, half_jitter
from tidegate.core.values import Key
from tidegate.errors import NotStorable
from tidegate.runner import results
from tidegate.runner.events import Retrying
from tidegate.runner.item import TASK, Item
from tidegate.runner.job import CancelReason, Job
from tidegate.runner.key_gates import StageGate
from tidegate.runner.redaction import redacted
from tidegate.runner.results import OUTAGE, TIMEOUT, FailureClass, NextStep, NoJudgement, judge
from tidegate.runner.run import ExperimentRun
from tidegate.storage import ResultStatus, RunResult, Status


class ResultHandler:
    """Retry policy of one run.

    Missing capacity spends no attempt. Each possibly temporary failure spends one. Each final outcome leaves a row.
    """

    def __init__(self, running: ExperimentRun) -> None:
        self._running = running

    def conclude(self, job: Job) -> None:
        """Process the end of a job; a job that was cancelled by the run's stop leaves its item unchanged."""
        if isinstance(job.error, KeyboardInterrupt):
            self._running.interrupted(job)
            return
        if job.cut is CancelReason.STOP:
            return
        item = job.item
        verdict = judge(job.error, job.handoff.outcome, job.handoff.refused, job.probe) if job.cut is None else TIMEOUT
        if verdict.ruling in (NextStep.CAPACITY, NextStep.TRANSIENT) and job.error is not None:
            job.stage.last_error = _text(job) or ""
        if verdict.ruling is NextStep.ANSWERED:
            self._answered(item, job.value)
        elif verdict.ruling is not NextStep.PERMANENT and (job.recalled or job.stage.closing is not None):
            if self._running.live:
                self._running.park(item)
        elif verdict.ruling is NextStep.CAPACITY:
            self._refused(job, verdict)
        elif verdict.ruling is NextStep.PARKED:
            self._day_is_over(job, verdict)
        elif verdict.ruling in (NextStep.TRANSIENT, NextStep.UNUSABLE):
            self._passing(item, verdict, _text(job))
        else:
            item.attempts += 1
            self._failed(item, verdict.kind, _text(job))

    def _answered(self, item: Item, value: Any) -> None:
        running = self._running
        stage = running.stages[item.stage]
        item.attempts += 1
        try:
            result = results.answered(running.claim, stage, item, value)
        except (NoJudgement, NotStorable) as error:
            kind = "no_judgement" if isinstance(error, NoJudgement) else "not_json"
            self._failed(item, kind, redacted(error))
            return
        stage.guard.succeeded()
        gate = running.work_queue.gate(item.stage)
        if isinstance(gate, StageGate):
            running.shared.gates.answered(gate)
        if item.stage == TASK:
            size = len(result.output or "") if isinstance(result, RunResult) else 0
            self._queue_evaluations(item, value, item.size + size)
        running.put(item, result)

    def _queue_evaluations(self, item: Item, output: Any, size: int) -> None:
        running = self._running
        for stage in running.stages[1:]:
            if running.live and running.work_queue.room(stage.index):
                made = Item(stage.index, item.place, item.body, output, size)
                made.ready_at = running.shared.loop.time()
                running.tracker.open(made)
                running.add([made])
            else:
                running.turned_away_at[stage.index] = running.shared.loop.time()
                running.tracker.turn_away(item.place, stage.index)

    def _refused(self, job: Job, verdict: FailureClass) -> None:
        running, item = self._running, job.item
        if not running.live:
            return
        gate = running.work_queue.gate(item.stage)
        if isinstance(gate, StageGate):
            running.shared.gates.refused(gate, verdict.retry_after, verdict.kind == OUTAGE)
        if not running.timers.refused(item):
            running.park(item)
        elif isinstance(gate, Key) and job.handoff.refused is None:
            self._delay_elsewhere(item, verdict)
        else:
            running.work_queue.back(item)

    def _day_is_over(self, job: Job, verdict: FailureClass) -> None:
        running, item, at = self._running, job.item, job.handoff.outcome_at
        if at is not None:
            running.shared.gates.day_is_over(at, verdict.retry_after)
        if at == running.work_queue.gate(item.stage) and verdict.retry_after is not None and running.live:
            # The item waits for the reset, which does not count as active waiting.
            running.timers.refused(item)
            running.work_queue.back(item)
        else:
            self._running.write_failure(item, ResultStatus.PARKED, verdict.kind, _text(job))

    def _delay_elsewhere(self, item: Item, verdict: FailureClass) -> None:
        # The item's gate (the key that it waits for) is open and has no record of the refusal. At the head of its queue
        # it would be dispatched again at once.
        running, settings = self._running, self._running.shared.settings
        item.elsewhere += 1
        delay = half_jitter(item.elsewhere, settings.backoff_base, settings.backoff_cap, running.shared.draw())
        named = min(verdict.retry_after or 0.0, settings.row_deadline)
        running.work_queue.delay(item, running.shared.loop.time() + max(delay, named))

    def _passing(self, item: Item, verdict: FailureClass, text: str | None) -> None:
        running = self._running
        settings = running.shared.settings
        item.attempts += 1
        if item.attempts >= settings.attempts:
            if verdict.ruling is NextStep.UNUSABLE:
                self._failed(item, verdict.kind, text)
            else:
                self._running.write_failure(item, ResultStatus.ERROR, verdict.kind, text)
        elif running.live:
            delay = full_jitter(item.attempts, settings.backoff_base, settings.backoff_cap, running.shared.draw())
            if verdict.retry_after is not None:
                delay = max(delay, min(verdict.retry_after, settings.backoff_cap))
            running.work_queue.delay(item, running.shared.loop.time() + delay)
            running.tell(Retrying(*item.place, running.stages[item.stage].name, item.attempts, verdict.kind))

    def _failed(self, item: Item, kind: str, text: str | None) -> None:
        running = self._running
        stage = running.stages[item.stage]
        self._running.write_failure(item, ResultStatus.ERROR, kind, text)
        if stage.guard.failed(kind):
            reason = f"{stage.guard.count} consecutive failures of {stage.name} ({kind}): {text}"
            if item.stage == TASK:
                running.drain(Status.ERROR, reason)
            else:
                running.close(stage, reason)


def _text(job: Job) -> str | None:
    if job.cut is CancelReason.TIMEOUT:
        return f"no answer within {job.stage.timeout:g} s"
    return redacted(job.error) if job.error is not None else None
