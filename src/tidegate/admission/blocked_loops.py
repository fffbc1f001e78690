"""Event loops that do not run, while calls wait on them or for their slots: a probe, and warnings.

Theory of operation. An attempt of an event loop ends only when that loop runs. If calls of other executors wait for its
slot and nothing happens at the key, the loop gets a probe: a callback to run. A loop that does not run the callback in
time is blocked, perhaps by a thread whose call waits for the slot.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any

from tidegate.admission.wait_queue import ReadyCallback, Waiter
from tidegate.core.limiter_state import Permit

logger = logging.getLogger("tidegate")
_warned = False
_expected = False


class LoopProbe(ReadyCallback):
    """Probe of the event loop, asyncio's or trio's, of `attempt`, sent when it is first woken.

    `sent_at` is in monotonic seconds. `answered` says that the loop ran the callback. A second wake warns that the loop
    is blocked.
    """

    __slots__ = ("_sent", "answered", "attempt", "sent_at")

    def __init__(self, attempt: Permit, now: float) -> None:
        super().__init__(self._send)
        self.attempt = attempt
        self.sent_at = now
        self.answered = self._sent = False

    def _send(self) -> None:
        loop: Any = self.attempt.loop
        if self._sent:
            _warn_once(
                "event loop of thread %s blocked: it holds slots that calls of other threads wait for; they go before"
                " its own calls, which stand still until it runs again; await what it waits for, or use"
                " asyncio.to_thread",
                next((each.name for each in threading.enumerate() if each.ident == self.attempt.thread), "unknown"),
            )
        if self._sent or loop is None:
            return
        self._sent = True
        schedule = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        # A loop that is closed never answers.
        with suppress(RuntimeError):
            schedule(self._answer)

    def _answer(self) -> None:
        self.answered = True


def expect_blocked_loops(expected: bool) -> None:
    """Set that synchronous calls block the loop of their thread as a rule, so that none is worth a warning.

    The kernel of a notebook runs each cell on its own event loop.
    """
    global _expected
    _expected = expected


def warn_of_blocking(waiter: Waiter) -> None:
    """Warn of a call that has to wait and keeps an event loop from running."""
    if getattr(waiter.waker, "blocks", False) and not _expected:
        _warn_once(
            "event loop of thread %s blocked: a synchronous call waits on it for %s of %s; it goes before the loop's"
            " own calls, which stand still until it returns; use the asynchronous client, or asyncio.to_thread",
            threading.current_thread().name,
            waiter.queue.gate or "its turn",
            waiter.queue.admission.key,
        )


def _warn_once(message: str, *arguments: object) -> None:
    """Write at most one warning per process about event loops that are blocked."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(message, *arguments)
