"""Threads for blocking calls; they delay neither the event loop, nor other calls, nor the end of the process.

Theory of operation. A thread cannot be cancelled. A thread that hangs is abandoned, and the process ends without it;
the threads of `concurrent.futures` and anyio would prevent that end. An idle thread is reused, so objects that a
function keeps per thread, such as a client, survive until the next call. A thread ends after `IDLE_SECONDS` without
work. If the system starts no further thread, calls wait until one of these threads is free.

A child that a function has forked has a copy of the runner, its loop and its database connections, which belong to the
parent. It may finish its function, and then it exits. It never continues as a second runner, and closes nothing of the
parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeVar

from tidegate.errors import Error

T = TypeVar("T")

MAX_ABANDONED_THREADS = 4000
"""Abandoned threads at which no new call starts. Chosen: a thousand calls may time out at once when a provider hangs,
and a function that hangs more often will not recover."""

IDLE_SECONDS = 10.0
"""Seconds that an idle thread waits for work. Precedent: anyio 4, 10 s."""


class TooManyHang(Error):
    """Error for a call that is not started: too many abandoned threads have not ended."""

    def __init__(self) -> None:
        super().__init__(
            f"call not started: {MAX_ABANDONED_THREADS} abandoned calls still run in their threads; "
            "a call can start once one of them ends"
        )


def call_in_loop(loop: asyncio.AbstractEventLoop, thread: int, function: Callable[..., object], *args: Any) -> None:
    """Call a function in the loop of `thread` soon; callable in any thread, even after the loop has closed."""
    with contextlib.suppress(RuntimeError):
        if threading.get_ident() == thread:
            loop.call_soon(function, *args)
        else:
            loop.call_soon_threadsafe(function, *args)


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in a thread with a copy of this context, and return its result or raise its error.

    A cancellation of the caller abandons the thread. Raise `TooManyHang` if `MAX_ABANDONED_THREADS` threads are
    abandoned.
    """
    if len(_abandoned) >= MAX_ABANDONED_THREADS:
        raise TooManyHang
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    work = _Work(call, loop, future)
    _begin(work)
    try:
        return await future
    except asyncio.CancelledError:
        try:
            _waiting.remove(work)
        except ValueError:
            # A thread has it.
            _abandoned.add(work)
            work.forget_if_ended()
        raise


def _begin(work: _Work) -> None:
    try:
        thread = _idle.pop()
    except IndexError:
        try:
            thread = _Thread()
        except RuntimeError:
            # The system starts no more threads. The next one of ours that is free takes the work.
            if not _threads:
                raise
            _waiting.append(work)
            _take_waiting()
            return
    thread.start_work(work)


def _take_waiting() -> None:
    """Give waiting work to an idle thread: a thread may have become idle just before the work began to wait."""
    while _waiting and _idle:
        try:
            thread = _idle.pop()
        except IndexError:
            return
        try:
            thread.start_work(_waiting.popleft())
        except IndexError:
            _idle.append(thread)
            return


class _Work:
    __slots__ = ("_call", "_context", "_ended", "_future", "_loop")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self._call = call
        self._loop = loop
        self._future = future
        self._context = contextvars.copy_context()
        self._ended = False

    def forget_if_ended(self) -> None:
        """Forget work that ended before it was recorded as abandoned."""
        if self._ended:
            _abandoned.discard(self)

    def done(self, thread: _Thread) -> None:
        result: Any = None
        error: BaseException | None = None
        process = os.getpid()
        try:
            result = self._context.run(self._call)
        except BaseException as raised:
            if os.getpid() != process:
                exit_child(raised)
            error = raised
        if os.getpid() != process:
            exit_child(None)
        if isinstance(error, StopIteration):
            # A future refuses StopIteration, which would end a generator that awaits it.
            stop, error = error, RuntimeError(f"call failed: the function raised {error!r}")
            error.__cause__ = stop
        self._ended = True
        _abandoned.discard(self)
        _idle.append(thread)
        if _waiting:
            _take_waiting()
        try:
            self._loop.call_soon_threadsafe(self._report, result, error)
        except RuntimeError:
            # The loop is closed, so no caller waits for the result.
            return

    def _report(self, result: Any, error: BaseException | None) -> None:
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
        _threads.add(self)

    def start_work(self, work: _Work) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    # A caller has just taken this thread.
                    continue
                _threads.discard(self)
                return
            work.done(self)
            del work


_idle: deque[_Thread] = deque()
_threads: set[_Thread] = set()
_waiting: deque[_Work] = deque()
_abandoned: set[_Work] = set()


def _forget() -> None:
    # The threads belong to the parent process.
    _idle.clear()
    _threads.clear()
    _waiting.clear()
    _abandoned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def exit_children(loop: asyncio.AbstractEventLoop) -> None:
    """Make a forked child exit as soon as it runs `loop`, which belongs to its parent."""
    _loops.add(loop)


def exit_child(error: BaseException | None) -> NoReturn:
    """Exit this child with the exit code that its function's end implies, as `multiprocessing` does."""
    code = 0
    if isinstance(error, SystemExit):
        code = _exit_code(error.code)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    _end(code)


def _exit_code(asked: object) -> int:
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked & 0xFF
    _say(str(asked))
    return 1


def _exit_from_loop() -> None:
    _say("tidegate: a child that a function forked ended: it came back to the loop of its parent")
    _end(1)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{text}\n")


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _after_in_child() -> None:
    for loop in list(_loops):
        with contextlib.suppress(RuntimeError):
            loop.call_soon(_exit_from_loop)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
