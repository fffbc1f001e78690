"""The calls that wait at one key: equal ones, those inside other calls, and those of blocked event loops.

Theory of operation. An attempt of an event loop ends only when that loop runs. If calls of other executors wait for its
slot and nothing happens at the key, the loop gets a probe: a callback to run. A loop that does not run the callback in
time is blocked, perhaps by a thread whose call waits for the slot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from itertools import islice
from typing import Any

from tidegate.admission.wait_queue import Waiter, WaitQueue
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY

logger = logging.getLogger("tidegate")
_warned = False
_expected = False


class ReadyCallback(Waiter):
    """Callback for when another look at the queue may succeed; it has no place in the queue."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        super().__init__(lambda: self, 0)
        self.waker = self
        self._callback = callback

    def wake(self) -> bool:
        """Call the function; return True, as it can always be called again."""
        self._callback()
        return True

    def arm(self, until: float) -> bool:
        """Call the function; its owner keeps its own timer."""
        return self.wake()


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


LEAST_PATIENCE_SECONDS = 1.0
"""Seconds within which no program abandons a thread: calls that are equal and come closer together are all waited for.
Chosen: below the least time limit of a call in public harnesses, 2 s."""

SEARCHED_TWINS = 8
"""Newest calls of one request among which one that waits is looked for. Raising it finds one behind more calls that are
in flight. Chosen: the newest one waits, unless it was just sent."""


class Callers:
    """The calls that wait at one key until they look: queued, or with a result that they have not seen yet.

    `nested` are those inside other calls of the key.
    """

    __slots__ = ("_ended", "_joined_at", "_last", "_replaced", "_twins", "nested", "waiting")

    def __init__(self) -> None:
        self.waiting: set[Waiter] = set()
        self.nested: dict[Waiter, None] = {}
        # The calls of each request, in order of arrival, with the instants at which they joined.
        self._twins: dict[Hashable, dict[Waiter, float]] = {}
        # The newest of these instants, and which it was when a call ended that has equal ones.
        self._joined_at = -INFINITY
        self._ended: dict[Hashable, float] = {}
        # The calls that gave their places to twins, in the order of the queue.
        self._replaced: dict[Waiter, None] = {}
        # Those that did so twice.
        self._last: set[Waiter] = set()

    def add(self, waiter: Waiter) -> None:
        """Note a call that waits from now on."""
        self.waiting.add(waiter)
        if waiter.inside:
            self.nested[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        self.waiting.discard(waiter)

    def forget(self, waiter: Waiter) -> None:
        """Forget a call that has ended; safe in a finalizer."""
        self.waiting.discard(waiter)
        self.nested.pop(waiter, None)
        self._replaced.pop(waiter, None)
        self._last.discard(waiter)
        twins = self._twins.get(waiter.twin_of)
        if twins is not None:
            twins.pop(waiter, None)
            if twins:
                self._ended[waiter.twin_of] = self._joined_at
            else:
                self._twins.pop(waiter.twin_of, None)
                self._ended.pop(waiter.twin_of, None)

    def clear(self) -> None:
        """Forget all calls."""
        self.waiting.clear()
        self.nested.clear()
        self._twins.clear()
        self._ended.clear()
        self._replaced.clear()
        self._last.clear()

    def replace_twin(self, waiter: Waiter, queue: WaitQueue, now: float) -> None:
        """Give a call that joins the place of the same request that joined before it; that one goes last.

        A thread cannot be cancelled, nor the call of an event loop from another thread that waits for its result: a
        program that has waited long enough abandons the call, and sends the request again. The abandoned call must not
        stand before any that is waited for. So the new one takes the place of the first call that gave its own to a
        twin, where its own twin does not queue or has a later place. A refused call that returns gives its place to a
        later twin.

        Equal calls may also be all waited for: they come close together, or one of them ends between two of them. They
        change places with each other alone. Each goes last twice at most, and none of them starves.
        """
        identity = waiter.twin_of = waiter.twin_of or waiter.identity()
        if identity is None or waiter in self._replaced or waiter in self._last:
            return
        twins = self._twins.setdefault(identity, {})
        known: list[Waiter] = []
        with suppress(RuntimeError):  # A call that ends leaves these tables without the lock: none is found then.
            known += [each for each in islice(reversed(twins), SEARCHED_TWINS) if each is not waiter]
        twin = next((each for each in known if each.is_queued and each.priority == waiter.priority), None)
        self._joined_at = max(self._joined_at, now)
        twins.setdefault(waiter, now)
        if waiter.place:
            if twin is not None and twin.place > waiter.place:
                self._note_last(waiter, twins)
                queue.dequeue(twin)
                waiter.place, twin.place, twin.until = 0, waiter.place, None
                queue.enqueue(twin)
            return
        joined_at = twins.get(known[0], now) if known else now
        if now - joined_at >= LEAST_PATIENCE_SECONDS and self._ended.get(identity, -INFINITY) < 2.0 * joined_at - now:
            replaced = list(self._replaced)
            first = next((each for each in replaced if each.is_queued and each.priority == waiter.priority), None)
            if first is not None and (twin is None or first.place < twin.place):
                twin = first
        if twin is not None:
            self._note_last(twin, twins)
            queue.dequeue(twin)
            waiter.place, twin.place, twin.until = twin.place, 0, None
            queue.enqueue(twin)

    def _note_last(self, waiter: Waiter, twins: dict[Waiter, float]) -> None:
        """Note that a call goes last, for the first or the second time."""
        if waiter in self._replaced:
            self._replaced.pop(waiter, None)
            self._last.add(waiter)
        else:
            twins.pop(waiter, None)
            self._replaced[waiter] = None

    def next_nested(self, in_flight: Collection[Permit]) -> list[Waiter]:
        """Return the call to admit where calls that wait for such calls hold all slots: none would ever end."""
        nested = [waiter for waiter in list(self.nested) if waiter.is_queued]
        outer = {permit for waiter in nested for permit in waiter.inside}
        return nested[:1] if all(permit in outer for permit in in_flight) else []
