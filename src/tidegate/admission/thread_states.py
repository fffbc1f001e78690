"""State of other threads, and of an interrupted program that only waits for its threads to end.

Python 3.11 may collect garbage while it looks at all threads, under its own lock. A finalizer can then let another
thread run that needs this lock, and the process stands still (CPython issue 106883). So no garbage is collected during
a look, and one thread looks at a time: the end of a look starts the collector again. Later versions collect between two
bytecodes only.

Ctrl-C raises `KeyboardInterrupt` in the main thread alone. Often that thread then blocks until the worker threads have
ended: at the end of a `with` block of a thread pool, in `Thread.join`, in `asyncio.run`, or when the interpreter exits.
Without tidegate a worker's call ends after the few retries of its SDK. A call that waits for capacity could hold the
program for `max_wait`, so waiting threads look for this state and end their waits.

Any thread can see the state. The main thread's stack is inside a function that joins threads, and the exception that it
handles is the interrupt. At the shutdown, the interrupt is the exception that ended the program. So a pool or a
program that ends normally is never in this state, nor is one that continues after an interrupt.

A program may also shut its pool down with `cancel_futures`. A pool keeps no trace of that, so its `shutdown` is
wrapped. If the program does so while it handles the interrupt, the user wants the end once the interpreter waits before
it exits, and no thread is left but those of such pools. Otherwise what the threads do may still be wanted: a handler of
signals tells nobody of the interrupt, and a program that has enough rows lets its threads store the last ones. Their
calls wait as long as an SDK alone would have repeated them. So do those of a thread whose task of anyio or trio was
cancelled, by an interrupt or otherwise: both libraries wait for the thread inside their loop, and let it ask.

A process without calls imports this module, so it imports only modules that the interpreter has loaded already.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any
    from weakref import WeakKeyDictionary


_looking = _thread.RLock()
"""Held during a look. A finalizer may look inside the look of its own thread, before the collector is off."""

if hasattr(os, "register_at_fork"):
    # A child must have the collector on and the lock free.
    os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)


def frame_of(thread: int) -> FrameType | None:
    """Return the frame that a thread runs, by the thread's identifier; None where the interpreter tells none."""
    frame: FrameType | None = _look("_current_frames", thread)
    return frame


def handled_by(thread: int) -> BaseException | None:
    """Return the exception that a thread handles, by the thread's identifier; None if there is none."""
    handled: Any = _look("_current_exceptions", thread)
    if isinstance(handled, tuple):  # Python 3.11
        handled = handled[1]
    return handled if isinstance(handled, BaseException) else None


def _look(name: str, thread: int) -> Any:
    look: Callable[[], dict[int, Any]] | None = getattr(sys, name, None)
    if look is None:
        return None
    with _looking:
        if sys.version_info >= (3, 12) or not gc.isenabled():
            return look().get(thread)
        try:
            gc.disable()
            return look().get(thread)
        finally:
            gc.enable()


LOOK_SECONDS = 1.0
"""Seconds after which a waiting thread wakes to ask for this state, and between two looks of the process. Raising it
ends an interrupted program later; lowering it wakes threads more often. Chosen: a fifth of `GRACE_SECONDS`."""

_cancelled: WeakKeyDictionary[Any, bool] | None = None
"""Threads of pools that were shut down with `cancel_futures`, and whether an interrupt was handled then; None before
the first call waits."""


def watch_pools() -> None:
    """Note from now on the threads of pools that are shut down with `cancel_futures`."""
    global _cancelled
    if _cancelled is not None:
        return
    from concurrent.futures import ThreadPoolExecutor
    from functools import wraps
    from weakref import WeakKeyDictionary

    _cancelled, shutdown = WeakKeyDictionary(), ThreadPoolExecutor.shutdown

    @wraps(shutdown)
    def noting(pool: Any, *arguments: Any, **options: Any) -> None:
        if options.get("cancel_futures") and _cancelled is not None:
            # After it no thread is added any more. The caller may then wait for the threads.
            shutdown(pool, wait=False, cancel_futures=True)
            by_interrupt = _is_interrupt(sys.exc_info()[1])
            for thread in tuple(getattr(pool, "_threads", ())):
                _cancelled[thread] = by_interrupt or _cancelled.get(thread, False)
        shutdown(pool, *arguments, **options)

    ThreadPoolExecutor.shutdown = noting  # type: ignore[assignment]


GRACE_SECONDS = 5.0
"""Seconds for which calls still wait in this state. Raising it ends an interrupted program later; lowering it gives up
calls that the SDK's own retries would get answered. Derived: two retries of the SDKs, after 0.5 to 2 s each."""

SDK_RETRIES = 2
"""Retries of one call. Raising it keeps calls of a cancelled pool longer. Published: the default of openai 3.52 and
anthropic 2.11 (`max_retries`)."""

MAX_SDK_PAUSE_SECONDS = 60.0
"""Longest pause named by a provider that the SDKs wait out. Published: openai 3.52 and anthropic 2.11
(`_calculate_retry_timeout`)."""

MAX_CHAIN_ERRORS = 8
"""Exceptions of a chain that are searched for the interrupt. Raising it finds one below more failed handlers. Chosen:
a program rarely nests more; a chain may be a circle."""


class ExitWatch:
    """Knowledge that all waiting threads of a process share: one of them looks once in `LOOK_SECONDS` seconds."""

    def __init__(self) -> None:
        self._looking = _thread.allocate_lock()
        self._look_at = 0.0
        self._since: float | None = None

    def is_exiting(self, now: float) -> bool:
        """Return whether the program has been in this state for `GRACE_SECONDS` seconds; `now` is in monotonic
        seconds."""
        import threading

        if threading.current_thread() is threading.main_thread():
            return False  # It waits for a call, not for threads.
        if now >= self._look_at and self._looking.acquire(blocking=False):
            try:
                self._look_at = now + LOOK_SECONDS
                if not (_joins_after_interrupt() or _is_exit_of_cancelled()):
                    self._since = None
                elif self._since is None:
                    self._since = now
            finally:
                self._looking.release()
        since = self._since
        return since is not None and now - since >= GRACE_SECONDS


is_exiting = ExitWatch().is_exiting


def _joins_after_interrupt() -> bool:
    """Return whether the main thread waits for threads to end because of an interrupt."""
    import asyncio
    import threading

    # The exit of a pool joins each of its threads. In the last function, which a Python may lack, the interpreter waits
    # before it exits.
    joins, shutdown = (threading.Thread.join, asyncio.Runner.close), getattr(threading, "_shutdown", None)
    main = threading.main_thread().ident or 0
    handled, ended_by = handled_by(main), getattr(sys, "last_value", None)
    # Frames cost more than exceptions, and most programs were not interrupted.
    codes = _codes_of(frame_of(main)) if _is_interrupt(handled) or _is_interrupt(ended_by) else set()
    if getattr(shutdown, "__code__", None) in codes:
        return _is_interrupt(ended_by)
    return _is_interrupt(handled) and any(getattr(join, "__code__", None) in codes for join in joins)


def is_cancelled() -> bool:
    """Return whether the work of this thread was cancelled: by its pool, or with its task of anyio or trio."""
    import threading
    from importlib import import_module

    if _cancelled is not None and threading.current_thread() in _cancelled:
        return True
    for library in ("anyio", "trio"):
        if library in sys.modules:
            try:
                import_module(f"{library}.from_thread").check_cancelled()
            except Exception:
                pass  # It is no thread of this library, or the library is too old to be asked.
            except BaseException:
                return True  # The library's own cancellation.
    return False


def _is_exit_of_cancelled() -> bool:
    """Return whether the interpreter waits before it exits, and only for pools that an interrupt cancelled."""
    import threading

    main, cancelled = threading.main_thread(), _cancelled
    if not cancelled or any(not (each.daemon or each is main or cancelled.get(each)) for each in threading.enumerate()):
        return False
    shutdown = getattr(threading, "_shutdown", None)
    return getattr(shutdown, "__code__", None) in _codes_of(frame_of(main.ident or 0))


def _codes_of(frame: FrameType | None) -> set[object]:
    """Return the code of the functions that a stack is inside."""
    found: set[object] = set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back
    return found


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception is the interrupt, or was raised while the interrupt was handled."""
    for _ in range(MAX_CHAIN_ERRORS):
        if error is None or isinstance(error, KeyboardInterrupt):
            break
        error = error.__context__
    return isinstance(error, KeyboardInterrupt)
