"""Makes results durable: in batches, in their order, for all experiments of a runner; a lost database is waited for.

Theory of operation. Results stand in one queue in the order in which they came, so that a run is always written before
its evaluations. A batch is written when it is full, or when its first result has waited long enough; while one is
written the next one fills, and may be larger. Nobody waits to put a result in: the queue is bounded by whoever asks
`room` before he starts more work. What the store refuses for good is written one by one, so that one bad result spoils
nothing but itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tidegate.runner.item import Item
from tidegate.runner.patience import patiently
from tidegate.storage import AnnotationResult, LogLine, RunResult, Store

Result: TypeAlias = RunResult | AnnotationResult | LogLine

MOST = 10
"""A batch that has waited for the one before it may be so many times larger."""


class Receiver(Protocol):
    """Who wants to know what became of his results."""

    def durable(self, item: Item | None, result: Result) -> None:
        """It is in the database."""
        ...

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """The store refused it for good; nothing was written."""
        ...

    def fenced(self, count: int) -> None:
        """Somebody else has claimed the experiment: `count` of its results were not written."""
        ...


class Entry(NamedTuple):
    """A result, and whose it is."""

    receiver: Receiver
    item: Item | None
    result: Result


class Writer:
    """The queue of results and the task that empties it. Times are in seconds."""

    def __init__(
        self, store: Store, *, batch: int, batch_seconds: float, bound: int, roomy: Callable[[], None]
    ) -> None:
        self._store = store
        self._batch = batch
        self._batch_seconds = batch_seconds
        self._bound = bound
        self._roomy = roomy
        self._entries: deque[Entry] = deque()
        self._full = asyncio.Event()
        self._some = asyncio.Event()
        self._closing = False

    @property
    def room(self) -> bool:
        """Whether more work may be started."""
        return len(self._entries) < self._bound

    @property
    def waiting(self) -> int:
        """How many results are not durable yet."""
        return len(self._entries)

    def put(self, receiver: Receiver, item: Item | None, result: Result) -> None:
        """Takes a result in; its receiver will be told what became of it."""
        self._entries.append(Entry(receiver, item, result))
        count = len(self._entries)
        if count == 1:
            self._some.set()
        if count >= self._batch:
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
        """Writes until it is closed and empty."""
        while True:
            await self._some.wait()
            if not self._entries and self._closing:
                return
            await self._filled()
            entries = [self._entries[place] for place in range(min(len(self._entries), MOST * self._batch))]
            if entries:
                await self._write(entries)
            self._settle(len(entries))

    async def _filled(self) -> None:
        if len(self._entries) < self._batch and not self._closing:
            self._full.clear()
            try:
                async with asyncio.timeout(self._batch_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass

    def _settle(self, count: int) -> None:
        # Only now do they leave the queue: what is being written counts against its bound.
        crowded = not self.room
        for _ in range(count):
            self._entries.popleft()
        if not self._entries and not self._closing:
            self._some.clear()
        if crowded and self.room:
            self._roomy()

    async def _write(self, entries: Sequence[Entry]) -> None:
        results = [entry.result for entry in entries]
        try:
            fenced = await patiently(lambda: self._store.write(results), "a batch of results")
        except Exception as error:
            await self._one_by_one(entries, error)
            return
        lost: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.result.experiment_id in fenced:
                lost.setdefault(entry.result.experiment_id, []).append(entry)
            else:
                entry.receiver.durable(entry.item, entry.result)
        for each in lost.values():
            each[0].receiver.fenced(len(each))

    async def _one_by_one(self, entries: Sequence[Entry], error: Exception) -> None:
        if len(entries) == 1:
            entries[0].receiver.unwritable(entries[0].item, entries[0].result, error)
            return
        for entry in entries:
            await self._write([entry])
