"""The effects of signals on a run: the first Ctrl-C stops it, the second cancels, the third ends the process at once.

TERM and HUP ask it to go and to keep the claim. The first two are heard by the event loop; code that holds the loop up
keeps it from hearing anything, so that the third is counted where Python itself hears it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

GOING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

LAST = 3
"""The Ctrl-C that ends the process, whatever it does."""

SHOW_CURSOR = b"\x1b[?25h\n"
"""What the picture of a run hides (ECMA-48, xterm: DECTCEM)."""


@contextlib.contextmanager
def heard(on_interrupt: Callable[[], None], on_going: Callable[[], None]) -> Iterator[None]:
    """Calls them in the running loop, as often as the signals come; does nothing where loops hear none (Windows)."""
    loop = asyncio.get_running_loop()
    put = []
    for number, call in [(signal.SIGINT, on_interrupt), *((each, on_going) for each in GOING)]:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call)
            put.append(number)
    if signal.SIGINT in put:
        # In place of the loop's own, which does nothing: the loop hears of a signal through its wakeup descriptor.
        signal.signal(signal.SIGINT, _Counted())
        signal.siginterrupt(signal.SIGINT, False)
    try:
        yield
    finally:
        for number in put:
            loop.remove_signal_handler(number)


class _Counted:
    """Counts what comes, and ends the process at the last one."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count < LAST:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), SHOW_CURSOR)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
