"""Detection of an interrupted program that only waits for its threads to end.

Theory of operation. Ctrl-C raises `KeyboardInterrupt` in the main thread alone. Often that thread then blocks until the
worker threads have ended: at the end of a `with` block of a thread pool, in `Thread.join`, in `asyncio.run`, or when
the interpreter exits. Without tidegate a worker's call ends after the few retries of its SDK. A call that waits for
capacity could hold the program for `max_wait`, so waiting threads look for this state and end their waits.

Any thread can see the state. The main thread's stack is inside one of the functions of `JOINS`, and the exception that
it handles is the interrupt. In `SHUTDOWN`, the interrupt is the exception that ended the program. So a pool or a
program that ends normally is never in this state, nor is one that continues after an interrupt.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

from tidegate.admission.thread_states import frame_of, handled_by

LOOK_EVERY = 1.0
"""Seconds after which a waiting thread wakes to ask for this state, and between two looks of the process. Raising it
ends an interrupted program later; lowering it wakes threads more often. Chosen: a fifth of `GRACE`."""

GRACE = 5.0
"""Seconds for which calls still wait in this state. Raising it ends an interrupted program later; lowering it gives up
calls that the SDK's own retries would get answered. Derived: two retries of the SDKs, after 0.5 to 2 s each."""

MAX_CONTEXTS = 8
"""Exceptions of a chain that are searched for the interrupt. Raising it finds one below more failed handlers. Chosen:
a program rarely nests more; a chain may be a circle."""

JOINS = (threading.Thread.join, asyncio.Runner.close)
"""Functions that wait until threads end; the exit of a pool joins each of its threads."""

SHUTDOWN: Any = getattr(threading, "_shutdown", None)
"""Function in which the interpreter waits for threads before it exits. Without it that state is not seen."""


class ExitWatch:
    """Knowledge that all waiting threads of a process share: one of them looks once in `LOOK_EVERY` seconds."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._look_at = 0.0
        self._since: float | None = None

    def is_exiting(self, now: float) -> bool:
        """Return whether the program has been in this state for `GRACE` seconds; `now` is in monotonic seconds."""
        if threading.current_thread() is threading.main_thread():
            return False  # It waits for a call, not for threads.
        if now >= self._look_at and self._looking.acquire(blocking=False):
            try:
                self._look_at = now + LOOK_EVERY
                if not _joins_after_interrupt():
                    self._since = None
                elif self._since is None:
                    self._since = now
            finally:
                self._looking.release()
        since = self._since
        return since is not None and now - since >= GRACE


is_exiting = ExitWatch().is_exiting


def _joins_after_interrupt() -> bool:
    """Return whether the main thread waits for threads to end because of an interrupt."""
    main = threading.main_thread().ident or 0
    handled, ended_by = handled_by(main), getattr(sys, "last_value", None)
    # Frames cost more than exceptions, and most programs were not interrupted.
    codes = _codes_of(frame_of(main)) if _is_interrupt(handled) or _is_interrupt(ended_by) else set()
    if getattr(SHUTDOWN, "__code__", None) in codes:
        return _is_interrupt(ended_by)
    return _is_interrupt(handled) and any(getattr(join, "__code__", None) in codes for join in JOINS)


def _codes_of(frame: FrameType | None) -> set[object]:
    """Return the code of the functions that a stack is inside."""
    found: set[object] = set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back
    return found


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception is the interrupt, or was raised while the interrupt was handled."""
    for _ in range(MAX_CONTEXTS):
        if error is None or isinstance(error, KeyboardInterrupt):
            break
        error = error.__context__
    return isinstance(error, KeyboardInterrupt)
