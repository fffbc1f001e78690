"""End of a child process that a user's function has forked.

The child has a copy of the runner, its loop and its database connections, all of which belong to the parent. It may
finish its function, and then it exits. It never continues as a second runner, and closes nothing of the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
import weakref
from typing import NoReturn

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
