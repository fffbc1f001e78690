"""Flow of a pool's rows from the source to the consumer: reading, a bounded window, and the order of the rows."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from tidegate.core.values import Cost, Key, NextStep
from tidegate.pool.function_limit import FunctionLimit
from tidegate.pool.key_gates import StageGate
from tidegate.pool.options import PoolOptions
from tidegate.pool.rows import PoolMeter, PoolRow, PoolStats, RowQueue
from tidegate.pool.threads import call_in_loop

logger = logging.getLogger("tidegate")

UNKNOWN_KEY = StageGate(0, 0)
"""Gate of the rows whose key is unknown, or that ask none."""


class RowFlow(ABC):
    """Rows of one pool. Methods run in the loop's thread, except where they say otherwise.

    `notify` is called there when an ended row is in `outbox`, when another row is `wanted`, and at the end. `context`
    is the consumer's at its last `next`. `source_error` is raised after all rows. The source is `exhausted` for its
    puller, and `source_ended` once all its rows have arrived. After `expired` nothing is sent, after `closed` nothing
    is given. A thread that pulls the source is its `reader`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: PoolOptions, notify: Callable[[], None]) -> None:
        self.loop = loop
        self.options = options
        self.outbox: deque[PoolRow] = deque()
        self.source_error: BaseException | None = None
        self.source_ended = self.exhausted = self.closed = self.expired = False
        self.pulled = self.submitted = 0
        self.context: Context = copy_context()
        self.drained: list[Callable[[], object]] = []
        self.meter = PoolMeter()
        self.reader: SourceReader | None = None
        self._notify = notify
        self._thread = 0
        self._begun = 0
        self._early: dict[int, PoolRow] = {}
        self._given = 0
        self._queue = RowQueue()
        self._open: set[PoolRow] = set()
        self._keys: dict[Key, Cost | None] = {}
        self._key_known = False
        self._backing_off = 0
        self._stats: PoolStats | None = None
        self._functions = FunctionLimit(options.pool_size, loop.time, lambda: self.in_loop(self.wake))
        self._check_scheduled = False
        self._iterator: Iterator[Any] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._in_flight: set[Any] = set()
        self._room: asyncio.Future[None] | None = None

    @abstractmethod
    def check(self) -> None:
        """Start what can start; `wake` schedules it."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    def stats(self) -> PoolStats:
        """Return the statistics so far, or those at the end; callable in any thread."""
        if self._stats is not None:
            return self._stats
        options = self.options
        keys = options.registry.snapshot(list(self._keys)).keys
        return self.meter.stats(options.pool_size, self.submitted, keys, self.loop.time())

    @property
    def is_drained(self) -> bool:
        return self.closed and self._stream is None and not self._in_flight

    @property
    def ended(self) -> bool:
        """Return whether every row was taken, and the source has ended; callable in the consumer's thread."""
        return self.source_ended and self.submitted == self.meter.taken and not self.outbox

    @property
    def pulls(self) -> bool:
        """Return whether another row may be wanted; callable in the thread that pulls."""
        return not (self.exhausted or self.closed or self.expired)

    def wanted(self) -> int:
        """Return the rows to pull now, one ahead of the free slots; callable in the thread that pulls."""
        if not self.pulls:
            return 0
        untaken = self.pulled - self.meter.taken
        return min(self.options.window - untaken, self._functions.free + 1 - (self.pulled - self._begun))

    def pull(self, iterator: Iterator[Any], context: Context) -> None:
        """Pull one row, and submit it; callable in the one thread that pulls."""
        try:
            body = next(iterator)
        except StopIteration:
            self.exhausted = True
            self.post(self._end_source, None)
        except BaseException as error:
            self.fail_source(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            self.pulled += 1
            self.post(self._submit, body, context)

    def take(self) -> PoolRow:
        """Remove the next ended row from `outbox`; callable in the consumer's thread."""
        row = self.outbox.popleft()
        self.meter.note_taken(row, self.loop.time())
        if self.reader is not None:
            self.reader.notify()
        elif self._thread == threading.get_ident() and self.wanted() > 0:
            self.wake()
        return row

    def fail_source(self, error: BaseException) -> None:
        """Record the exception that ended the source; callable in the thread that pulls."""
        self.exhausted = True
        self.post(self._end_source, error)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop, at once in its own thread; callable in any thread, even after its end."""
        if threading.get_ident() == self._thread:
            function(*args)
        else:
            self.in_loop(function, *args)

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop soon; callable in any thread at any point, even after its end."""
        call_in_loop(self.loop, self._thread, function, *args)

    def abandon(self) -> None:
        """Close soon; callable in any thread at any point."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.close)

    def wake(self) -> None:
        """Schedule one check; further calls until then have no effect."""
        if not self._check_scheduled and not self.closed and not self.loop.is_closed():
            self._check_scheduled = True
            self.loop.call_soon(self.check)

    def _submit(self, body: Any, context: Context) -> None:
        if self.closed or self.expired:
            return
        row = PoolRow(self.submitted, body, context, self.loop.time())
        self.submitted += 1
        self.meter.max_pending = max(self.meter.max_pending, self.submitted - self.meter.taken)
        self._open.add(row)
        self._queue.fresh.append(row)
        self.wake()

    def _end_source(self, error: BaseException | None) -> None:
        if not self.source_ended:
            self.source_ended, self.source_error = True, error
            self._tell()

    async def _read(self, source: AsyncIterable[Any]) -> None:
        rows: AsyncIterator[Any] | None = None
        try:
            rows = aiter(source)
            async for body in rows:
                self.pulled += 1
                self._submit(body, self.context)
                while self.pulls and self.wanted() <= 0:
                    self._room = self.loop.create_future()
                    await self._room
                if not self.pulls:
                    break
        except BaseException as error:
            self.exhausted = True
            self._end_source(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.exhausted = True
            self._end_source(None)
        finally:
            if rows is not None:
                await aclose_source(rows)

    def _on_stream_ended(self, _: asyncio.Task[None]) -> None:
        self._stream = None
        self._tell_if_drained()

    def _fill(self) -> bool:
        """Pull rows while slots are free; return whether there were any."""
        if self._iterator is None:
            if self._room is not None and not self._room.done() and self.wanted() > 0:
                self._room.set_result(None)
            return False
        before = self.pulled
        context = self.context
        while self.wanted() > 0:
            context.run(self.pull, self._iterator, context)
        return self.pulled > before

    def _fresh_gate(self) -> Hashable:
        """Return the gate of fresh rows: the newest key that is open, else the newest one."""
        newest: Hashable = UNKNOWN_KEY
        for key in reversed(self._keys):
            if not self._queue.is_closed(key):
                return key
            newest = key if newest is UNKNOWN_KEY else newest
        return newest

    def _note_load(self) -> None:
        """Note the rows that wait for capacity now; one whose key is not known yet waits for another row."""
        if self.closed:
            return
        functions = self._functions
        waiting = functions.lent + self._backing_off
        if self._key_known:
            waiting += self._queue.count_held(self._fresh_gate())
        self.meter.note_load(waiting, functions.in_flight > functions.lent, self.loop.time())

    def _finish(self, row: PoolRow, verdict: NextStep, error: BaseException | None) -> None:
        if not row.begun:
            row.begun = True
            self._begun += 1
        row.error = error
        self._open.discard(row)
        ended = self.submitted - len(self._open)
        row.end(self.loop.time(), verdict, ended - 1)
        self.meter.note_end(row, ended)
        if not self.options.ordered:
            self.outbox.append(row)
            return
        self._early[row.index] = row
        while (next_row := self._early.pop(self._given, None)) is not None:
            self.outbox.append(next_row)
            self._given += 1

    def _tell(self) -> None:
        self._notify()
        if self.reader is not None:
            self.reader.notify()

    def _tell_if_drained(self) -> None:
        if self.is_drained:
            for tell in self.drained:
                tell()


def close_source(rows: object) -> None:
    """Close a generator, or the results of another pool; any other iterator stays as it is."""
    if (hasattr(rows, "throw") or hasattr(rows, "rows")) and not getattr(rows, "gi_running", False):
        try:
            rows.close()  # type: ignore[attr-defined]
        except Exception as error:
            _log_failure(error)


async def aclose_source(rows: object) -> None:
    if hasattr(rows, "athrow") or hasattr(rows, "rows"):
        try:
            await rows.aclose()  # type: ignore[attr-defined]
        except Exception as error:
            _log_failure(error)


def _log_failure(error: Exception) -> None:
    logger.warning("source not closed: %s was raised; it is left as it is", type(error).__name__, exc_info=error)


class SourceReader:
    """Thread that pulls a source, always the same one, so that a source that blocks does not block the consumer.

    A deadline needs it: nothing can interrupt `next` in the consumer's own thread.
    """

    def __init__(self, scheduler: RowFlow, rows: Iterable[Any]) -> None:
        self._scheduler = scheduler
        self._rows = rows
        self._changed = threading.Event()

    def start(self) -> None:
        context = self._scheduler.context.copy()
        threading.Thread(target=context.run, args=(self._run,), name="tidegate source", daemon=True).start()

    def notify(self) -> None:
        """Look again whether a row is wanted; callable in any thread."""
        self._changed.set()

    def _run(self) -> None:
        scheduler = self._scheduler
        try:
            iterator = iter(self._rows)
            while scheduler.pulls:
                self._changed.clear()
                if scheduler.wanted() > 0:
                    scheduler.pull(iterator, scheduler.context)
                elif scheduler.pulls:
                    self._changed.wait()
            if not scheduler.exhausted:
                close_source(iterator)
        except BaseException as error:
            scheduler.fail_source(error)
