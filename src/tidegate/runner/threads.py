"""Runs what blocks in threads that hold nothing up: neither the loop, nor another call, nor the end of the process.

A thread cannot be cancelled. One that hangs is left behind: nobody waits for it, and the process ends without it,
which the threads of `concurrent.futures` and anyio do not let it. An idle one is used again, so that what a function
keeps for its thread, as a client, is there for the next call; after a while without work it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tidegate.errors import Error
from tidegate.runner import forked

T = TypeVar("T")

MOST_LEFT_BEHIND = 1000
"""Threads that hang before no other is begun: what hangs so often hangs always, and each of them costs memory."""

IDLE_SECONDS = 10.0
"""For how long a thread waits for work (anyio 4: 10 s)."""


class TooManyHang(Error):
    """No other thread is begun: too many were left behind that have not ended."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_LEFT_BEHIND} calls were given up and hang on in their threads: no other is begun")


async def in_thread(call: Callable[[], T]) -> T:
    """Return what `call` returns or raises, in a thread with a copy of this context; who is cancelled leaves it behind.

    Raises `TooManyHang` where too many were left behind.
    """
    if len(_left_behind) >= MOST_LEFT_BEHIND:
        raise TooManyHang
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread()
    work = _Work(call, loop, future)
    thread.begin(work)
    try:
        return await future
    except asyncio.CancelledError:
        _left_behind.add(work)
        work.forget_if_ended()
        raise


class _Work:
    __slots__ = ("_call", "_context", "_ended", "_future", "_loop")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self._call = call
        self._loop = loop
        self._future = future
        self._context = contextvars.copy_context()
        self._ended = False

    def forget_if_ended(self) -> None:
        """It may have ended before anybody noted that it was left behind."""
        if self._ended:
            _left_behind.discard(self)

    def done(self, thread: _Thread) -> None:
        """Does it, and says so."""
        result: Any = None
        error: BaseException | None = None
        process = os.getpid()
        try:
            result = self._context.run(self._call)
        except BaseException as raised:
            if os.getpid() != process:
                forked.leave(raised)
            error = raised
        if os.getpid() != process:
            forked.leave(None)
        if isinstance(error, StopIteration):
            # No future takes one; it would end whatever generator is near.
            stop, error = error, RuntimeError(f"the function raised {error!r}")
            error.__cause__ = stop
        self._ended = True
        _left_behind.discard(self)
        _idle.append(thread)
        try:
            self._loop.call_soon_threadsafe(self._tell, result, error)
        except RuntimeError:
            # Its loop has ended: nobody wants to know.
            return

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


class _Thread:
    def __init__(self) -> None:
        self._work: SimpleQueue[_Work] = SimpleQueue()
        threading.Thread(target=self._run, name="tidegate function", daemon=True).start()

    def begin(self, work: _Work) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    # Somebody has just taken it up.
                    continue
                return
            work.done(self)
            del work


_idle: deque[_Thread] = deque()
_left_behind: set[_Work] = set()


def _forget() -> None:
    # The threads are the parent's.
    _idle.clear()
    _left_behind.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
