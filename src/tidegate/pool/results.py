"""Results of `map` and `amap`: iterators that run the pool while they are read."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from tidegate.admission.handoff import current_handoff
from tidegate.core.values import INFINITY
from tidegate.pool.execution import CANCEL_GRACE_SECONDS
from tidegate.pool.flow import SourceReader, close_source
from tidegate.pool.options import PoolOptions
from tidegate.pool.retrying import RowFunction, SerialRows, raisable
from tidegate.pool.rows import Failed, PoolRow, PoolStats, RowResult
from tidegate.pool.scheduler import RowScheduler

T = TypeVar("T")


def _give_back_unused_permit() -> None:
    """Give back the permit of the outer piece of work: its calls now come from the rows, which have their own."""
    handoff = current_handoff()
    if handoff is not None:
        handoff.close()


class ThreadedRows:
    """Rows of a `map`: a private event loop in a thread schedules them, and the consumer's thread pulls the source.

    With a deadline, a separate thread pulls the source.
    """

    def __init__(self, fn: Callable[[Any], Any], rows: Iterable[Any], options: PoolOptions) -> None:
        self._changed = threading.Event()
        self._reader: SourceReader | None = None
        self._iterator = iter(rows) if options.deadline == INFINITY else None
        self._pull_seconds = 0.0
        self._given_at = time.monotonic()
        loop = asyncio.new_event_loop()
        self._scheduler = RowScheduler(loop, RowFunction(fn, options, awaits=False), options, self._changed.set)
        if self._iterator is None:
            self._reader = SourceReader(self._scheduler, rows)
            self._scheduler.reader = self._reader
        self._thread = threading.Thread(target=_run, args=(loop, self._scheduler), name="tidegate pool", daemon=True)
        try:
            self._thread.start()
            if self._reader is not None:
                self._reader.start()
        except BaseException:
            if self._thread.is_alive():
                self.abandon()
            else:
                loop.close()
            raise

    @property
    def stats(self) -> PoolStats:
        return self._scheduler.stats

    def next_row(self) -> PoolRow:
        """Return the next ended row; raise `StopIteration` after the last one, or the exception that ends the pool."""
        scheduler, iterator = self._scheduler, self._iterator
        scheduler.context = copy_context()
        # An ended row is given at once, unless the source is faster than the consumer: slots would become idle.
        pulls_first = iterator is not None and self._pull_seconds < time.monotonic() - self._given_at
        while True:
            self._changed.clear()
            if scheduler.fatal is not None:
                raise scheduler.fatal
            if scheduler.outbox and not (pulls_first and scheduler.wanted() > 0):
                row = scheduler.take()
                self._given_at = time.monotonic()
                return row
            if iterator is not None and scheduler.wanted() > 0:
                pulls_first = False
                began = time.monotonic()
                scheduler.pull(iterator, scheduler.context)
                self._pull_seconds = time.monotonic() - began
            elif scheduler.closed or scheduler.ended:
                if scheduler.source_error is not None and not scheduler.closed:
                    raise raisable(scheduler.source_error, "source")
                raise StopIteration
            elif not scheduler.outbox:
                self._changed.wait()

    def close(self) -> None:
        """Cancel what is in flight, wait for the end of the loop, and close the source."""
        self.abandon()
        if threading.current_thread() is not self._thread:
            self._thread.join(CANCEL_GRACE_SECONDS)
        iterator, self._iterator = self._iterator, None
        if not self._scheduler.exhausted:
            close_source(iterator)

    def abandon(self) -> None:
        """Do so soon, and wait for nothing; callable in any thread at any point."""
        self._scheduler.abandon()


def _run(loop: asyncio.AbstractEventLoop, scheduler: RowScheduler) -> None:
    scheduler.drained.append(loop.stop)
    loop.call_soon(scheduler.begin)
    try:
        loop.run_forever()
    finally:
        loop.close()


class Results(Generic[T]):
    """Iterator over the values of `map`, in the order of the rows. Nothing starts before the first `next`.

    It is a context manager. `close`, the end of the `with` block, and its collection end the pool: nothing more starts,
    and the results of functions under way are dropped.
    """

    def __init__(self, fn: Callable[[Any], T], rows: Iterable[Any], options: PoolOptions) -> None:
        self._fn = fn
        self._rows: Iterable[Any] | None = rows
        self._options = options
        self._feed: SerialRows | ThreadedRows | None = None
        self._stats = PoolStats(options.pool_size)
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __iter__(self) -> Results[T]:
        return self

    def __next__(self) -> T:
        row = self._next_row()
        if row.error is None:
            return cast("T", row.value)
        if self._options.errors == "return":
            return cast("T", Failed(row.index, row.error))
        self.close()
        raise row.error

    def rows(self) -> Iterator[RowResult[T]]:
        """Return an iterator over the ends of the rows; it raises the error of no row."""
        while True:
            try:
                row = self._next_row()
            except StopIteration:
                return
            yield row.result(time.monotonic())

    @property
    def stats(self) -> PoolStats:
        """Return the statistics of the pool so far, or those at its end."""
        feed = self._feed
        return self._stats if feed is None else feed.stats

    def close(self) -> None:
        """End the pool; may be repeated."""
        self._rows = None
        feed = self._feed
        if feed is not None and os.getpid() == self._process:
            feed.close()
            self._stats = feed.stats
        self._feed = None

    def __enter__(self) -> Results[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _next_row(self) -> PoolRow:
        if os.getpid() != self._process:
            raise RuntimeError("pool ended: this process was forked from its own; call map again in this process")
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("row not given: another thread waits for one; read the results in one thread")
        try:
            feed = self._feed if self._feed is not None else self._begin()
            return feed.next_row()
        except BaseException:
            self.close()
            raise
        finally:
            self._lock.release()

    def _begin(self) -> SerialRows | ThreadedRows:
        rows, self._rows = self._rows, None
        if rows is None:
            raise StopIteration
        _give_back_unused_permit()
        options = self._options
        # Only other threads can bound the time of a call in this one, or end its waits earlier than the call does.
        waits_as_calls_do = options.max_wait >= options.registry.settings.max_wait
        inline = options.pool_size == 1 and options.key is None and waits_as_calls_do
        if inline and options.timeout == options.deadline == INFINITY:
            self._feed = SerialRows(self._fn, rows, options)
        else:
            self._feed = ThreadedRows(self._fn, rows, options)
            weakref.finalize(self, self._feed.abandon).atexit = False
        return self._feed


class AsyncResults(Generic[T]):
    """Async iterator over the values of `amap`, in the order of the rows. Nothing starts before the first value is
    awaited.

    It is an async context manager. `aclose`, the end of the `async with` block, the cancellation of its consumer, and
    its collection end the pool: nothing more starts, and the functions under way are cancelled.
    """

    def __init__(
        self, fn: Callable[[Any], Any], rows: Iterable[Any] | AsyncIterable[Any], options: PoolOptions
    ) -> None:
        self._fn = fn
        self._rows: Iterable[Any] | AsyncIterable[Any] | None = rows
        self._options = options
        self._scheduler: RowScheduler | None = None
        self._signal: asyncio.Event | None = None
        self._process = os.getpid()
        self._is_read = self._ended = False

    def __aiter__(self) -> AsyncResults[T]:
        return self

    async def __anext__(self) -> T:
        row = await self._next_row()
        if row.error is None:
            return cast("T", row.value)
        if self._options.errors == "return":
            return cast("T", Failed(row.index, row.error))
        self._close()
        raise row.error

    async def rows(self) -> AsyncIterator[RowResult[T]]:
        """Return an iterator over the ends of the rows; it raises the error of no row."""
        while True:
            try:
                row = await self._next_row()
            except StopAsyncIteration:
                return
            yield row.result(asyncio.get_running_loop().time())

    @property
    def stats(self) -> PoolStats:
        """Return the statistics of the pool so far, or those at its end."""
        return PoolStats(self._options.pool_size) if self._scheduler is None else self._scheduler.stats

    async def aclose(self) -> None:
        """End the pool, and wait until the functions under way have ended; may be repeated."""
        scheduler = self._scheduler
        self._close()
        if scheduler is not None and os.getpid() == self._process and not scheduler.is_drained:
            drained = asyncio.Event()
            scheduler.drained.append(drained.set)
            await drained.wait()

    async def __aenter__(self) -> AsyncResults[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next_row(self) -> PoolRow:
        if os.getpid() != self._process:
            raise RuntimeError("pool ended: this process was forked from its own; call amap again in this process")
        if self._ended:
            raise StopAsyncIteration
        if self._is_read:
            raise RuntimeError("row not given: another task waits for one; read the results in one task")
        self._is_read = True
        try:
            if self._scheduler is None or self._signal is None:
                self._scheduler, self._signal = self._begin()
            scheduler = self._scheduler
            if scheduler.loop is not asyncio.get_running_loop():
                raise RuntimeError("row not given: the pool runs in another event loop; read its results there")
            scheduler.context = copy_context()
            while True:
                self._signal.clear()
                if scheduler.fatal is not None:
                    raise scheduler.fatal
                if scheduler.outbox:
                    return scheduler.take()
                if scheduler.closed or scheduler.ended:
                    if scheduler.source_error is not None and not scheduler.closed:
                        raise raisable(scheduler.source_error, "source")
                    raise StopAsyncIteration
                await self._signal.wait()
        except BaseException:
            self._close()
            raise
        finally:
            self._is_read = False

    def _begin(self) -> tuple[RowScheduler, asyncio.Event]:
        rows, self._rows = self._rows, None
        _give_back_unused_permit()
        loop, options = asyncio.get_running_loop(), self._options
        signal = asyncio.Event()
        scheduler = RowScheduler(loop, RowFunction(self._fn, options, awaits=True), options, signal.set)
        weakref.finalize(self, scheduler.abandon).atexit = False
        if isinstance(rows, AsyncIterable):
            scheduler.begin(stream=rows)
        elif options.deadline == INFINITY:
            scheduler.begin(iter(cast("Iterable[Any]", rows)))
        else:
            reader = SourceReader(scheduler, cast("Iterable[Any]", rows))
            scheduler.reader = reader
            scheduler.begin()
            reader.start()
        return scheduler, signal

    def _close(self) -> None:
        self._ended, self._rows = True, None
        if self._scheduler is not None and os.getpid() == self._process:
            self._scheduler.post(self._scheduler.close)
