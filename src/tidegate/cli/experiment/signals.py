"""What signals ask of a run: the first Ctrl-C to stop, the second to cancel; TERM and HUP to go and keep the claim."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

GOING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def heard(on_interrupt: Callable[[], None], on_going: Callable[[], None]) -> Iterator[None]:
    """Calls them in the running loop, as often as the signals come; does nothing where loops hear none (Windows)."""
    loop = asyncio.get_running_loop()
    put = []
    for number, call in [(signal.SIGINT, on_interrupt), *((each, on_going) for each in GOING)]:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call)
            put.append(number)
    try:
        yield
    finally:
        for number in put:
            loop.remove_signal_handler(number)
