"""State of another thread: the frame that it runs, and the exception that it handles.

Python 3.11 may collect garbage while it looks at all threads, under its own lock. A finalizer can then let another
thread run that needs this lock, and the process stands still (CPython issue 106883). So no garbage is collected during
a look, and one thread looks at a time: the end of a look starts the collector again. Later versions collect between two
bytecodes only.
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
