"""Writer that makes the results of all experiments of a runner durable, in batches and in their order.

Theory of operation. One queue holds the results in the order of their arrival, so a run is written before its
evaluations. A batch is written when it is full, or when its first result has waited `batch_seconds`. During a write the
next batch fills, and it may be larger. `put` never blocks: callers check `room` before they start more work. If the
database is unavailable, the write is repeated. If the store refuses a batch permanently, its results are written one by
one, so one bad result affects only itself. A result leaves the queue at the moment its receiver is notified. After any
other error, `run` can be called again and continues with the remaining results.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core.backoff import half_jitter_of
from tidegate.experiments.engine.background import BASE, CAP, retry_while_unavailable
from tidegate.experiments.engine.queues import Item
from tidegate.experiments.storage import AnnotationResult, ClaimStats, ItemAttempts, LogLine, RunResult, Store

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

    `batch` is in results, `batch_seconds` in seconds. `bound` is the number of queued results at which `room` is False.
    `on_room` is called when `room` is True after a write.
    """

    def __init__(
        self, store: Store, *, batch: int, batch_seconds: float, bound: int, on_room: Callable[[], None]
    ) -> None:
        self._store = store
        self._batch = batch
        self._batch_seconds = batch_seconds
        self._bound = bound
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
        return len(self._entries) < self._bound and self._size < UNWRITTEN_BYTES

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
                wait = half_jitter_of(self._failures, BASE, CAP, random.random())
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
                async with asyncio.timeout(self._batch_seconds):
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
        try:
            receiver.fail(error)
        except Exception as worse:
            reason = type(worse).__name__
            logger.exception("failed run not ended: %s was raised; it may not end by itself", reason)
