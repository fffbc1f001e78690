"""Audit of one run: the attempts that are kept with its results, and the statistics of its claim.

Theory of operation. A job collects the end of each attempt that its function makes, by the context that it runs in. The
usage of an attempt counts soon after its end. When the job ends, each attempt is counted, and kept where
`RunnerSettings.audit` says so. Kept attempts are part of their item's result, so both are written in one transaction,
and refused together after the claim is lost. Those at an item without a result are written by themselves. A function
that makes no governed call leaves one attempt for each job.

No record has a row, an answer or a credential.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import log
from typing import Literal, TypeAlias

from tidegate.admission.audit import AttemptStatus, attempt_status, cost_of
from tidegate.core.events import AttemptEnded
from tidegate.core.token_totals import TokenCounter, totals_of
from tidegate.core.values import OK, Key, Kind, NextStep
from tidegate.experiments.engine.job import UNSPENT, Job
from tidegate.experiments.engine.progress import CLASSES_PER_E, RunStats
from tidegate.experiments.storage import AttemptRecord, ItemUsage, ResultStatus
from tidegate.pool.failure_class import FailureClass

AuditMode: TypeAlias = Literal["off", "refusals", "all"]

MIN_LATENCY_SECONDS = 1e-6
"""Seconds of the shortest latency that is told apart. Chosen: no attempt takes less."""

NEXT = {NextStep.ANSWERED: AttemptStatus.SUCCESS, NextStep.CAPACITY: AttemptStatus.CAPACITY_RETRY}
"""Status of a job without a governed call, by the next step of its item; all others are failures."""


class RunAudit:
    """Attempts and statistics of one run; instants are seconds of the loop.

    `clock` is the registry's, in which the attempts of governed calls have their instants. `waits` has the items that
    wait for capacity, and the jobs that do so inside a call.
    """

    def __init__(self, mode: AuditMode, clock: Callable[[], float], now: float) -> None:
        self._keeps_answered = mode == "all"
        self._keeps_others = mode != "off"
        self._clock = clock
        self._began_at = now
        self._busy_since = self._executing_for = 0.0
        self.waits = BusyTime()
        self._latencies: dict[int, int] = {}
        self._submitted = self._calls = self._capacity_retries = self._max_concurrent = 0
        self.tokens = TokenCounter()
        self.transient_retries = 0

    def note_dispatched(self, job: Job, in_flight: int) -> None:
        """Note that an item is dispatched, while `in_flight` functions are in flight with it."""
        item, now = job.item, job.began
        queued_at = item.queued_at
        if queued_at is None:
            self._submitted += 1
            queued_at = item.ready_at
        item.waited = now - queued_at
        item.queued_at = now
        if in_flight == 1:
            self._busy_since = now
        if in_flight > self._max_concurrent:
            self._max_concurrent = in_flight
        if self.waits.active:
            self.waits.end(item, now)

    def note_lent(self, job: Job, now: float) -> None:
        """Note that a function begins to wait for capacity inside a call, or goes on."""
        if job.slot_lent:
            self.waits.begin(job, now)
        else:
            self.waits.end(job, now)

    def note_done(self, job: Job, failure_class: FailureClass | None, in_flight: int) -> None:
        """Count and keep the attempts of an ended job; one without a `failure_class` was cut short.

        `in_flight` functions are left.
        """
        # Every row runs this: what most need is written out.
        item, waited = job.item, job.item.waited
        self.note_usage(job)
        now = item.queued_at = job.began + job.seconds
        if self.waits.active:
            self.waits.end(job, now)
        if not in_flight:
            self._executing_for += now - self._busy_since
        for ended in job.attempts:
            self._count(ended.kind, attempt_status(ended), ended.held)
            if self._keeps_answered or (self._keeps_others and ended.kind is not OK):
                item.audit.append(self._record(ended, job.stage.name, item.calls, waited + ended.waited))
            item.calls += 1
            waited = 0.0
        if not job.attempts and failure_class is not None:
            status = NEXT.get(failure_class.next_step, AttemptStatus.FAILURE)
            kind = OK if status is AttemptStatus.SUCCESS else Kind.TRANSIENT
            self._count(kind, status, job.seconds)
            if self._keeps_answered or (self._keeps_others and kind is not OK):
                began_at = time.monotonic() - job.seconds
                item.audit.append(
                    AttemptRecord(job.stage.name, item.calls, began_at, job.seconds, waited, status.value,
                                  failure_class.next_step.value, failure_class.kind or "none")
                )  # fmt: skip
            item.calls += 1

    def note_usage(self, job: Job) -> None:
        """Count the usage of the attempts that have ended since the last time, at their item."""
        item, known, count = job.item, job.metered, len(job.attempts)
        if count == known:
            return
        job.metered = count
        before = item.usage.tokens if item.usage is not None else UNSPENT
        item.usage = self._usage(item.usage, job.attempts[known:count], 0.0 if known else item.waited)
        job.spent = job.spent.plus(item.usage.tokens.less(before))

    def end(self, results: Mapping[ResultStatus, int], now: float) -> RunStats:
        """End the waits of the items that are left, and return the statistics of the claim, which has these results."""
        self.waits.end_all(now)
        return self.stats(results, now)

    def stats(self, results: Mapping[ResultStatus, int], now: float) -> RunStats:
        """Return the statistics of the claim so far, which has these results; waits count when they end."""
        return RunStats(
            submitted=self._submitted,
            answered=results.get(ResultStatus.OK, 0),
            failed=results.get(ResultStatus.ERROR, 0) + results.get(ResultStatus.INVALID, 0),
            parked=results.get(ResultStatus.PARKED, 0),
            calls=self._calls,
            capacity_retries=self._capacity_retries,
            transient_retries=self.transient_retries,
            max_concurrent=self._max_concurrent,
            throttle_seconds=self.waits.total,
            peak_wait=self.waits.longest,
            throttled_for=self.waits.some,
            executing_for=self._executing_for,
            wall_seconds=now - self._began_at,
            **self.tokens.totals._asdict(),
            latencies={str(number): count for number, count in self._latencies.items()},
        )

    def _count(self, kind: Kind, status: AttemptStatus, seconds: float) -> None:
        self._calls += 1
        if kind is OK:
            number = round(log(seconds if seconds > MIN_LATENCY_SECONDS else MIN_LATENCY_SECONDS) * CLASSES_PER_E)
            self._latencies[number] = self._latencies.get(number, 0) + 1
        elif status is AttemptStatus.CAPACITY_RETRY:
            self._capacity_retries += 1

    def _usage(self, before: ItemUsage | None, attempts: Sequence[AttemptEnded], waited: float) -> ItemUsage:
        tokens, model, reason, request_id, total, _ = before if before is not None else ItemUsage()
        total += waited
        for ended in attempts:
            total += ended.waited
            request_id = ended.request_id or request_id
            usage = ended.usage
            if usage is not None:
                spent = cost_of(ended.key, usage)
                self.tokens.add(usage, spent)
                tokens = tokens.plus(totals_of(usage, spent))
                model, reason = usage.model or model, ended.finish_reason or reason
        return ItemUsage(tokens, model, reason, request_id, total)

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
            _shown(ended.key),
            ended.status,
            ended.retry_after,
            ended.input_tokens,
            ended.output_tokens,
            None if ended.usage is None else ended.usage.cached_tokens,
            None if ended.usage is None else ended.usage.reasoning_tokens,
        )


@lru_cache(maxsize=256)
def _shown(key: Key) -> str:
    return str(key)


class BusyTime:
    """Time in which at least one of several things goes on, their sum, and the longest of them; in seconds.

    `active` are those that go on, with their begins.
    """

    def __init__(self) -> None:
        self.some = self.total = self.longest = 0.0
        self.active: dict[object, float] = {}
        self._busy_since = 0.0

    def begin(self, one: object, now: float) -> None:
        if not self.active:
            self._busy_since = now
        self.active.setdefault(one, now)

    def end(self, one: object, now: float) -> None:
        """Note that one of them ends; repeating it does nothing."""
        since = self.active.pop(one, None)
        if since is not None:
            self.total += now - since
            self.longest = max(self.longest, now - since)
            if not self.active:
                self.some += now - self._busy_since

    def end_all(self, now: float) -> None:
        for one in list(self.active):
            self.end(one, now)
