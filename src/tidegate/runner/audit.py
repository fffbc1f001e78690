"""Audit of one run: the attempts that are kept with its results, and the statistics of its claim.

Theory of operation. A job collects the end of each attempt that its function makes, by the context that it runs in.
When the job ends, each attempt is counted, and kept where `RunnerSettings.audit` says so. Kept attempts are part of
their item's result, so both are written in one transaction, and refused together after the claim is lost. Those at an
item without a result are written by themselves. A function that makes no governed call leaves one attempt for each job.

No record has a row, an answer or a credential.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from tidegate.admission.audit import AttemptStatus, attempt_status
from tidegate.core.events import AttemptEnded
from tidegate.core.values import OK, Kind
from tidegate.runner.item import Item
from tidegate.runner.job import Job
from tidegate.runner.results import FailureClass, NextStep
from tidegate.runner.stats import BusyTime, RunStats, latency_class
from tidegate.storage import AnnotationResult, AttemptRecord, ResultStatus, RunResult

AuditMode: TypeAlias = Literal["off", "refusals", "all"]

NEXT = {NextStep.ANSWERED: AttemptStatus.SUCCESS, NextStep.CAPACITY: AttemptStatus.CAPACITY_RETRY}
"""Status of a job without a governed call, by the next step of its item; all others are failures."""


class RunAudit:
    """Attempts and statistics of one run; instants are seconds of the loop.

    `clock` is the registry's, in which the attempts of governed calls have their instants.
    """

    def __init__(self, mode: AuditMode, clock: Callable[[], float], now: float) -> None:
        self._mode = mode
        self._clock = clock
        self._began_at = now
        self._waits, self._jobs = BusyTime(), BusyTime()
        self._latencies: dict[str, int] = {}
        self._results: dict[ResultStatus, int] = {}
        self._submitted = self._calls = self._capacity_retries = self._max_concurrent = 0
        self._input_tokens = self._output_tokens = 0
        self.transient_retries = 0

    def note_dispatched(self, job: Job, in_flight: int, now: float) -> None:
        """Note that an item is dispatched, while `in_flight` functions are in flight with it."""
        item = job.item
        self._submitted += item.queued_at is None
        item.waited = now - (item.ready_at if item.queued_at is None else item.queued_at)
        item.queued_at = now
        self._max_concurrent = max(self._max_concurrent, in_flight)
        self._waits.end(item, now)
        self._jobs.begin(job, now)

    def note_lent(self, job: Job, now: float) -> None:
        """Note that a function begins to wait for capacity inside a call, or goes on."""
        if job.slot_lent:
            self._waits.begin(job, now)
        else:
            self._waits.end(job, now)

    def note_done(self, job: Job, stage: str, failure_class: FailureClass | None, now: float) -> None:
        """Count and keep the attempts of an ended job; one without a `failure_class` was cut short."""
        item = job.item
        item.queued_at = now
        self._waits.end(job, now)
        self._jobs.end(job, now)
        waited = item.waited
        for ended in job.attempts:
            self._count(ended.kind, attempt_status(ended), ended.held)
            self._input_tokens += ended.input_tokens or 0
            self._output_tokens += ended.output_tokens or 0
            if self._keeps(ended.kind):
                item.audit.append(self._record(ended, stage, item.calls, waited + ended.waited))
            item.calls += 1
            waited = 0.0
        if not job.attempts and failure_class is not None:
            status = NEXT.get(failure_class.next_step, AttemptStatus.FAILURE)
            kind = Kind.OK if status is AttemptStatus.SUCCESS else Kind.TRANSIENT
            self._count(kind, status, job.seconds)
            if self._keeps(kind):
                began_at = time.monotonic() - job.seconds
                item.audit.append(
                    AttemptRecord(stage, item.calls, began_at, job.seconds, waited, status.value,
                                  failure_class.next_step.value, failure_class.kind or "none")
                )  # fmt: skip
            item.calls += 1

    def note_refused(self, item: Item, now: float) -> None:
        """Note that an item waits for capacity from now on."""
        self._waits.begin(item, now)

    def note_result(self, item: Item, result: RunResult | AnnotationResult, now: float) -> None:
        """Count an item's result."""
        self._waits.end(item, now)
        status = result.status if isinstance(result, RunResult) else result.annotations[0].status
        self._results[status] = self._results.get(status, 0) + 1

    def end(self, now: float) -> RunStats:
        """End the waits of the items that are left, and return the statistics of the claim."""
        self._waits.end_all(now)
        self._jobs.end_all(now)
        return RunStats(
            submitted=self._submitted,
            answered=self._results.get(ResultStatus.OK, 0),
            failed=self._results.get(ResultStatus.ERROR, 0) + self._results.get(ResultStatus.INVALID, 0),
            parked=self._results.get(ResultStatus.PARKED, 0),
            calls=self._calls,
            capacity_retries=self._capacity_retries,
            transient_retries=self.transient_retries,
            max_concurrent=self._max_concurrent,
            throttle_seconds=self._waits.total,
            throttled_for=self._waits.some,
            executing_for=self._jobs.some,
            wall_seconds=now - self._began_at,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            latencies=self._latencies,
        )

    def _keeps(self, kind: Kind) -> bool:
        return self._mode == "all" or (self._mode == "refusals" and kind is not OK)

    def _count(self, kind: Kind, status: AttemptStatus, seconds: float) -> None:
        self._calls += 1
        self._capacity_retries += status is AttemptStatus.CAPACITY_RETRY
        if kind is OK:
            number = str(latency_class(seconds))
            self._latencies[number] = self._latencies.get(number, 0) + 1

    def _record(self, ended: AttemptEnded, stage: str, index: int, waited: float) -> AttemptRecord:
        elapsed = self._clock() - ended.at + ended.held
        return AttemptRecord(
            stage,
            index,
            time.monotonic() - elapsed,
            ended.held,
            waited,
            attempt_status(ended).value,
            ended.kind.value,
            ended.cause.value,
            str(ended.key),
            ended.status,
            ended.retry_after,
            ended.input_tokens,
            ended.output_tokens,
        )
