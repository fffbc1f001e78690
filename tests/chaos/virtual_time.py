"""An event loop whose clock stands still while anything is to be done, and then jumps to the next timer.

What a test sees of time is exact and the same on every machine, however busy. The database's threads are real, and
so are those that read a dataset: while one of them is asked something, the loop waits for its answer, and no time
passes.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import aiosqlite.core
import pytest

from tidegate.admission import drive
from tidegate.pool import threads

PATIENCE = 300.0
"""Real seconds for which an answer of a thread is waited for: none takes as long."""

MOST_SECONDS = 100_000.0
"""Virtual seconds after which a test is ended."""


class VirtualSelector(selectors.DefaultSelector):
    """Waits for what is outside, and where nothing is, lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outside = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.outside or timeout is None:
            events = super().select(PATIENCE)
            assert events, "everybody waits for somebody else, or a thread does not answer"
            return events
        self.now += timeout
        assert self.now < MOST_SECONDS, "it never ends"
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is in virtual seconds."""

    def __init__(self) -> None:
        self.jumping = VirtualSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.asks(future)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        # Its threads end in real time.
        self.jumping.outside += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.jumping.outside -= 1

    def asks(self, future: asyncio.Future[Any]) -> None:
        self.jumping.outside += 1
        future.add_done_callback(self._answered)

    def _answered(self, _: Any) -> None:
        self.jumping.outside -= 1


class CountedQueue(SimpleQueue):  # type: ignore[type-arg]
    """What an SQLite thread is asked."""

    def put_nowait(self, item: Any) -> None:
        future, _ = item
        if future is not None and isinstance(future.get_loop(), VirtualLoop):
            future.get_loop().asks(future)
        super().put_nowait(item)


def begun(begin: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return `_Thread.start_work` of the runner's threads, whose loop waits for what they do."""

    def begin_asked(thread: Any, work: Any) -> None:
        if isinstance(work._loop, VirtualLoop):
            work._loop.asks(work._future)
        begin(thread, work)

    return begin_asked


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            patch.setattr(aiosqlite.core, "SimpleQueue", CountedQueue)
            patch.setattr(threads._Thread, "start_work", begun(threads._Thread.start_work))
            # The waits of the registry's calls are measured by what their loop's timers go by.
            patch.setattr(drive, "time", SimpleNamespace(monotonic=loop.time))
            runner.run(test(*args, **kwargs))

    return run
