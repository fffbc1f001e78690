"""The end of a child process that a function of a run has forked.

The child has a copy of the runner, its loop and its database connections, all of which are the parent's. It may do
what its function does, and then it ends: it never goes on as a second runner, and closes nothing of the parent's.
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


def follow(loop: asyncio.AbstractEventLoop) -> None:
    """Have a child end as soon as it comes back to `loop`, which is its parent's."""
    _loops.add(loop)


def leave(error: BaseException | None) -> NoReturn:
    """End this child with the exit code that its function's end asks for, as `multiprocessing` ends one."""
    code = 0
    if isinstance(error, SystemExit):
        code = _code(error.code)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    _end(code)


def _code(asked: object) -> int:
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked & 0xFF
    _say(str(asked))
    return 1


def _come_back() -> None:
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
            loop.call_soon(_come_back)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
