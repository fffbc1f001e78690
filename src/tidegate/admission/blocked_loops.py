"""Warnings of event loops that are blocked, while calls wait on them or for their slots."""

from __future__ import annotations

import logging
import threading

from tidegate.admission.loop_monitor import LoopProbe
from tidegate.admission.wait_queue import Waiter

logger = logging.getLogger("tidegate")
_warned = False
_expected = False


def expect_blocked_loops(expected: bool) -> None:
    """Set that synchronous calls block the loop of their thread as a rule, so that none is worth a warning.

    The kernel of a notebook runs each cell on its own event loop.
    """
    global _expected
    _expected = expected


def _warn_once(message: str, *arguments: object) -> None:
    """Write at most one warning per process about event loops that are blocked."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(message, *arguments)


def warn_of_blocking(waiter: Waiter) -> None:
    """Warn of a call that has to wait and keeps an event loop from running."""
    executor = waiter.executor
    if executor is not None and executor.blocks and not _expected:
        _warn_once(
            "event loop of thread %s blocked: a synchronous call waits on it for %s of %s; it goes before the loop's"
            " own calls, which stand still until it returns; use the asynchronous client, or asyncio.to_thread",
            threading.current_thread().name,
            waiter.queue.gate or "its turn",
            waiter.queue.admission.key,
        )


def _warn_of_stalled_loop(probe: LoopProbe) -> None:
    """Warn that other calls do not wait for the attempts of an event loop that does not run."""
    _warn_once(
        "event loop of thread %s blocked: it holds slots that calls of other threads wait for; they go before its own"
        " calls, which stand still until it runs again; await what it waits for, or use asyncio.to_thread",
        next((thread.name for thread in threading.enumerate() if thread.ident == probe.thread), probe.thread),
    )


def wake(waiter: Waiter) -> bool:
    """Wake a waiter; return whether its executor still runs."""
    waker = waiter.waker
    if isinstance(waiter, LoopProbe) and waiter.stalled:
        _warn_of_stalled_loop(waiter)
    if waker is None:
        return True
    if waiter.permit is None and waiter.until is not None:
        return waker.arm(waiter.until)
    return waker.wake()
