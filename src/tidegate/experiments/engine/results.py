"""Results of ended items, and the writer that makes all results of a runner durable, in batches and in their order.

Every terminal outcome leaves one row in the store. An evaluator's result has named outputs, each a score, a label or a
value. A failure has no score. `tidegate.pool.failure_class` classifies the end of a call.

One queue holds the results in the order of their arrival, so a run is written before its evaluations. A batch is
written when it is full, or when its first result has waited `WRITE_SECONDS`. During a write the next batch fills, and
it may be larger. `put` never blocks: callers check `room` before they start more work. If the database is unavailable,
the write is repeated. If the store refuses a batch permanently, its results are written one by one, so one bad result
affects only itself. A result leaves the queue at the moment its receiver is notified. After any other error, `run` can
be called again and continues with the remaining results.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core.backoff import half_jitter_of
from tidegate.core.values import AnsweredBy
from tidegate.experiments.engine.background import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, retry_while_unavailable
from tidegate.experiments.engine.job import Stage
from tidegate.experiments.engine.queues import TASK, Item, own_id
from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Category,
    Claim,
    ClaimStats,
    ItemAttempts,
    LogLevel,
    LogLine,
    ResultStatus,
    RunResult,
    Store,
    encoded,
)


class NoJudgement(Exception):
    """Error for an evaluator result that is no judgement: it is empty, or does not match the declared outputs."""


def evaluation_results(result: Any, name: str, outputs: tuple[str, ...]) -> tuple[Annotation, ...]:
    """Return the annotations of an evaluator's `result`, in the order of its outputs.

    Raise `NoJudgement` for None, an empty dict, a number that is not finite, or other outputs than the declared ones.
    Raise `NotStorable` for a value that JSON cannot represent.
    """
    if isinstance(result, Mapping):
        named = {str(output): value for output, value in result.items()}
    elif len(outputs) == 1:
        named = {outputs[0]: result}
    else:
        named = {name: result}
    unknown = [output for output in named if outputs and output not in outputs]
    missing = [output for output in outputs if output not in named]
    if unknown or missing:
        told = [f"unknown output {each!r}" for each in unknown] + [f"no output {each!r}" for each in missing]
        raise NoJudgement(f"result of {name} unusable: {', '.join(told)}; the evaluator declares {', '.join(outputs)}")
    if not named:
        raise NoJudgement(f"result of {name} unusable: the evaluator returned no outputs")
    return tuple(_annotation(output, value) for output, value in named.items())


def failed_evaluations(
    name: str, outputs: tuple[str, ...], status: ResultStatus, kind: str, text: str | None
) -> tuple[Annotation, ...]:
    """Return one annotation without a score for each declared output of an evaluator that failed or was parked."""
    return tuple(
        Annotation(output, status, error_kind=kind, error=text) for output in (outputs if outputs else (name,))
    )


def _annotation(output: str, value: Any) -> Annotation:
    if value is None:
        raise NoJudgement(f"output {output!r} unusable: it is None; a judgement is a number, a text or any JSON value")
    if isinstance(value, str):
        return Annotation(output, label=value)
    if isinstance(value, Real | Decimal):
        try:
            score = float(value)
        except OverflowError:
            score = math.inf
        except ValueError:
            # A signalling NaN raises ValueError.
            score = math.nan
        if not math.isfinite(score):
            raise NoJudgement(f"output {output!r} unusable: it is {score}; a score is a finite number")
        return Annotation(output, score=score)
    return Annotation(output, value=encoded(value))


OK = ResultStatus.OK


def answered(
    claim: Claim, stage: Stage, item: Item, value: Any, answered_by: tuple[AnsweredBy, ...] = ()
) -> RunResult | AnnotationResult:
    """Return the result of an answered item; raise `NoJudgement` or `NotStorable` if `value` is not a valid result.

    `answered_by` has the choices of the fallbacks that the value comes from.
    """
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, OK, encoded(value), attempts=item.attempts,
                         seconds=item.seconds, audit=tuple(item.audit), answered_by=answered_by,
                         usage=item.usage)  # fmt: skip
    annotations = evaluation_results(value, stage.name, stage.outputs)
    return AnnotationResult(claim.experiment_id, claim.epoch, *item.place, stage.name, annotations,
                            item.attempts, item.seconds, tuple(item.audit), answered_by, item.usage)  # fmt: skip


def unanswered(
    claim: Claim, stage: Stage, item: Item, status: ResultStatus, kind: str, text: str | None
) -> RunResult | AnnotationResult:
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, status, None, kind, text,
                         item.attempts, item.seconds, tuple(item.audit), usage=item.usage)  # fmt: skip
    annotations = failed_evaluations(stage.name, stage.outputs, status, kind, text)
    return AnnotationResult(claim.experiment_id, claim.epoch, *item.place, stage.name, annotations,
                            item.attempts, item.seconds, tuple(item.audit), usage=item.usage)  # fmt: skip


def failed(result: RunResult | AnnotationResult) -> bool:
    if isinstance(result, RunResult):
        return result.status is not OK
    return any(annotation.status is not OK for annotation in result.annotations)


def line(claim: Claim, level: LogLevel, category: Category, **detail: Any) -> LogLine:
    return LogLine(claim.experiment_id, claim.epoch, level, category, detail)


def failure_line(claim: Claim, stage: Stage, item: Item, kind: str, text: str | None) -> LogLine:
    """Return the log line of an item that failed permanently; the `id` is that of its row, if it has one."""
    named = own_id(item.body)
    category = Category.TASK if item.stage == TASK else Category.EVAL
    ordinal, repetition = item.place
    return line(
        claim,
        LogLevel.ERROR,
        category,
        type="failure",
        stage=stage.name,
        row=ordinal,
        **({"id": named} if named else {}),
        repetition=repetition,
        kind=kind,
        error=text,
        attempts=item.attempts,
    )


logger = logging.getLogger("tidegate")

Result: TypeAlias = RunResult | AnnotationResult | ItemAttempts | ClaimStats | LogLine

WRITE_SECONDS = 0.1
"""Seconds that a result waits at most for its batch to fill. Chosen: ten writes a second load no database."""

UNWRITTEN_RESULTS = 1000
"""Unwritten results at which no more work is started. Chosen: ten batches."""

MAX_FAILURES = 5
"""Consecutive internal errors after which writing ends. Chosen: errors in a row are a programming error, and one may be
a database's."""

MAX_BATCH_FACTOR = 10
"""Maximum size of a batch that waited for the previous one, as a multiple of `batch`. Chosen: a backlog shrinks quickly
after a database was away."""


BATCH_BYTES = 8 * 1024 * 1024
"""Maximum characters of a batch. Chosen: equal to `experiments.storage.bulk.MAX_CHARACTERS`."""

UNWRITTEN_BYTES = 16 * 1024 * 1024
"""Characters of unwritten results at which no more work is started. Chosen: two batches of `BATCH_BYTES`."""


class WriteReceiver(Protocol):
    """Receiver of the outcome of its results."""

    def durable(self, item: Item | None, result: Result) -> None: ...

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """Handle a result that the store refused permanently; nothing was written."""
        ...

    def fenced(self, count: int) -> None:
        """Handle the claim of the experiment by another replica: `count` results were not written."""
        ...

    def given_up(self, count: int, error: BaseException) -> None:
        """Handle the end of all writing: `count` results will never be written."""
        ...

    def fail(self, error: BaseException) -> None: ...


class QueuedResult(NamedTuple):
    """Result with its receiver."""

    receiver: WriteReceiver
    item: Item | None
    result: Result
    size: int


class ResultWriter:
    """Queue of results, and the task that empties it.

    `batch` is in results. `on_room` is called when `room` is True after a write.
    """

    def __init__(self, store: Store, *, batch: int, on_room: Callable[[], None]) -> None:
        self._store = store
        self._batch = batch
        self._on_room = on_room
        self._entries: deque[QueuedResult] = deque()
        self._size = 0
        self._full = asyncio.Event()
        self._some = asyncio.Event()
        self._closing = False
        self._failures = 0
        self.broken: BaseException | None = None

    @property
    def room(self) -> bool:
        return len(self._entries) < UNWRITTEN_RESULTS and self._size < UNWRITTEN_BYTES

    @property
    def waiting(self) -> int:
        return len(self._entries)

    def put(self, receiver: WriteReceiver, item: Item | None, result: Result) -> None:
        """Queue a result; its receiver is notified of the outcome."""
        if self.broken is not None:
            asyncio.get_running_loop().call_soon(receiver.given_up, 1, self.broken)
            return
        entry = QueuedResult(receiver, item, result, _size(result))
        self._entries.append(entry)
        self._size += entry.size
        count = len(self._entries)
        if count == 1:
            self._some.set()
        if count >= self._batch or self._size >= BATCH_BYTES:
            self._full.set()

    def flush(self) -> None:
        """Write the queued results without waiting for more."""
        self._full.set()

    def close(self) -> None:
        """Write the queued results; then `run` returns."""
        self._closing = True
        self._some.set()
        self._full.set()

    async def run(self) -> None:
        """Write results until the writer is closed and empty.

        It survives internal errors, except `MAX_FAILURES` in a row. Then it is `broken`: nothing more is written, and
        every receiver is notified.
        """
        while True:
            try:
                await self._write_on()
                return
            except Exception as error:
                self._failures += 1
                broken = self._failures >= MAX_FAILURES
                wait = half_jitter_of(self._failures, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, random.random())
                then = "it stops, and every run ends with ERROR" if broken else f"retrying in {wait:.2f} s"
                reason = type(error).__name__
                logger.exception("result writer failed: %s was raised (%d in a row); %s", reason, self._failures, then)
                if broken:
                    self._give_up(error)
                    return
                await asyncio.sleep(wait)

    async def _write_on(self) -> None:
        while True:
            await self._some.wait()
            if not self._entries and self._closing:
                return
            await self._filled()
            # Results that are being written stay in the queue and count towards its bound.
            entries = self._next_batch()
            if entries:
                await self._write(entries)
                self._failures = 0
            if not self._entries and not self._closing:
                self._some.clear()
            if self.room:
                # `room` may have been False at any time since its last check.
                self._on_room()

    def _next_batch(self) -> list[QueuedResult]:
        """Return the first entries, bounded by their number and size; at least one."""
        batch: list[QueuedResult] = []
        size = 0
        for entry in itertools.islice(self._entries, MAX_BATCH_FACTOR * self._batch):
            size += entry.size
            if batch and size > BATCH_BYTES:
                break
            batch.append(entry)
        return batch

    def _taken(self) -> QueuedResult:
        entry = self._entries.popleft()
        self._size -= entry.size
        return entry

    async def _filled(self) -> None:
        if len(self._entries) < self._batch and self._size < BATCH_BYTES and not self._closing:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._full.wait()
            except TimeoutError:
                pass
        self._full.clear()

    async def _write(self, entries: Sequence[QueuedResult]) -> None:
        results = [entry.result for entry in entries]
        try:
            fenced = await retry_while_unavailable(lambda: self._store.write(results), "write of a batch of results")
        except Exception as error:
            if len(entries) > 1:
                for entry in entries:
                    await self._write([entry])
            else:
                receiver, item, result, _ = self._taken()
                _notify(receiver, receiver.unwritable, item, result, error)
            return
        lost: dict[WriteReceiver, int] = {}
        for _ in entries:
            receiver, item, result, _ = self._taken()
            if result.experiment_id in fenced:
                lost[receiver] = lost.get(receiver, 0) + 1
            else:
                _notify(receiver, receiver.durable, item, result)
        for receiver, count in lost.items():
            _notify(receiver, receiver.fenced, count)

    def _give_up(self, error: Exception) -> None:
        self.broken = error
        lost: dict[WriteReceiver, int] = {}
        while self._entries:
            receiver = self._taken().receiver
            lost[receiver] = lost.get(receiver, 0) + 1
        for receiver, count in lost.items():
            _notify(receiver, receiver.given_up, count, error)


def _size(result: Result) -> int:
    if isinstance(result, RunResult):
        return len(result.output or "")
    if isinstance(result, AnnotationResult):
        return sum(len(each.value or "") + len(each.label or "") for each in result.annotations)
    return 0


def _notify(receiver: WriteReceiver, what: Callable[..., None], *args: Any) -> None:
    """Notify a receiver; an error that it raises does not delay other results."""
    try:
        what(*args)
    except Exception as error:
        reason = type(error).__name__
        logger.exception("outcome of a write not processed: %s was raised; its run ends with ERROR", reason)
        receiver.fail(error)
