"""Makes results durable: in batches, in their order, for all experiments of a runner; a lost database is waited for.

Theory of operation. Results stand in one queue in the order in which they came, so that a run is always written before
its evaluations. A batch is written when it is full, or when its first result has waited long enough; while one is
written the next one fills, and may be larger. Nobody waits to put a result in: the queue is bounded by whoever asks
`room` before he starts more work. What the store refuses for good is written one by one, so that one bad result spoils
nothing but itself. A result leaves the queue in the moment in which its receiver is told; whatever else goes wrong,
`run` can be called again, and goes on with what is left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core.backoff import half_jitter
from tidegate.runner.background import BASE, CAP, retry_while_unavailable
from tidegate.runner.item import Item
from tidegate.storage import AnnotationResult, LogLine, RunResult, Store

logger = logging.getLogger("tidegate")

Result: TypeAlias = RunResult | AnnotationResult | LogLine

MOST_FAILURES = 5
"""Consecutive errors of its own after which nothing more is written: a programming error, not a bad moment."""

MOST = 10
"""A batch that has waited for the one before it may be so many times larger."""


BATCH_BYTES = 8 * 1024 * 1024
"""Characters of a batch of large results: more hold more memory (PostgreSQL's driver copies them four times)."""

UNWRITTEN_BYTES = 16 * 1024 * 1024
"""Characters of results that are held for a database that is away or slow before no more work is started."""


class WriteReceiver(Protocol):
    """A subscriber to the fate of its results."""

    def durable(self, item: Item | None, result: Result) -> None:
        """It is in the database."""
        ...

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """The store refused it for good; nothing was written."""
        ...

    def fenced(self, count: int) -> None:
        """Somebody else has claimed the experiment: `count` of its results were not written."""
        ...

    def given_up(self, count: int, error: BaseException) -> None:
        """Nothing is written any more: `count` of its results never will be."""
        ...

    def fail(self, error: BaseException) -> None:
        """It could not take in what it was told."""
        ...


class QueuedResult(NamedTuple):
    """A result, and whose it is."""

    receiver: WriteReceiver
    item: Item | None
    result: Result
    size: int


class ResultWriter:
    """The queue of results and the task that empties it. Times are in seconds."""

    def __init__(
        self, store: Store, *, batch: int, batch_seconds: float, bound: int, roomy: Callable[[], None]
    ) -> None:
        self._store = store
        self._batch = batch
        self._batch_seconds = batch_seconds
        self._bound = bound
        self._roomy = roomy
        self._entries: deque[QueuedResult] = deque()
        self._size = 0
        self._full = asyncio.Event()
        self._some = asyncio.Event()
        self._closing = False
        self._failures = 0
        self.broken: BaseException | None = None

    @property
    def room(self) -> bool:
        """Return whether more work may be started."""
        return len(self._entries) < self._bound and self._size < UNWRITTEN_BYTES

    @property
    def waiting(self) -> int:
        """Return how many results are not durable yet."""
        return len(self._entries)

    def put(self, receiver: WriteReceiver, item: Item | None, result: Result) -> None:
        """Takes a result in; its receiver will be told what became of it."""
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
        """Writes what is there without waiting for more."""
        self._full.set()

    def close(self) -> None:
        """Writes what is there, then `run` returns."""
        self._closing = True
        self._some.set()
        self._full.set()

    async def run(self) -> None:
        """Writes until it is closed and empty; an error of its own is survived, so many in a row are not.

        It is `broken` then: nothing more is written, and every receiver is told so.
        """
        while True:
            try:
                await self._write_on()
                return
            except Exception as error:
                self._failures += 1
                logger.exception("writing results failed (%d in a row)", self._failures)
                if self._failures >= MOST_FAILURES:
                    self._give_up(error)
                    return
                await asyncio.sleep(half_jitter(self._failures, BASE, CAP, random.random()))

    async def _write_on(self) -> None:
        while True:
            await self._some.wait()
            if not self._entries and self._closing:
                return
            await self._filled()
            # What is being written stays in the queue: it counts against its bound.
            entries = self._next_batch()
            if entries:
                await self._write(entries)
                self._failures = 0
            if not self._entries and not self._closing:
                self._some.clear()
            if self.room:
                # It may have been crowded at any moment since it was asked last.
                self._roomy()

    def _next_batch(self) -> list[QueuedResult]:
        """The first entries, bounded by their number and by their bytes; one at the least."""
        batch: list[QueuedResult] = []
        size = 0
        for entry in itertools.islice(self._entries, MOST * self._batch):
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
            self._full.clear()
            try:
                async with asyncio.timeout(self._batch_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass

    async def _write(self, entries: Sequence[QueuedResult]) -> None:
        """Writes the first ones of the queue, and tells their receivers."""
        results = [entry.result for entry in entries]
        try:
            fenced = await retry_while_unavailable(lambda: self._store.write(results), "a batch of results")
        except Exception as error:
            if len(entries) > 1:
                for entry in entries:
                    await self._write([entry])
            else:
                receiver, item, result, _ = self._taken()
                _tell(receiver, receiver.unwritable, item, result, error)
            return
        lost: dict[WriteReceiver, int] = {}
        for _ in entries:
            receiver, item, result, _ = self._taken()
            if result.experiment_id in fenced:
                lost[receiver] = lost.get(receiver, 0) + 1
            else:
                _tell(receiver, receiver.durable, item, result)
        for receiver, count in lost.items():
            _tell(receiver, receiver.fenced, count)

    def _give_up(self, error: Exception) -> None:
        self.broken = error
        lost: dict[WriteReceiver, int] = {}
        while self._entries:
            receiver = self._taken().receiver
            lost[receiver] = lost.get(receiver, 0) + 1
        for receiver, count in lost.items():
            _tell(receiver, receiver.given_up, count, error)


def _size(result: Result) -> int:
    """The characters of a result's large texts."""
    if isinstance(result, RunResult):
        return len(result.output or "")
    if isinstance(result, AnnotationResult):
        return sum(len(each.value or "") + len(each.label or "") for each in result.annotations)
    return 0


def _tell(receiver: WriteReceiver, what: Callable[..., None], *args: Any) -> None:
    """Tells a receiver; what he makes of it holds up nobody else's results."""
    try:
        what(*args)
    except Exception as error:
        logger.exception("a durable result could not be taken in")
        try:
            receiver.fail(error)
        except Exception:
            logger.exception("nor could that")
