"""Steps of a key table under its lock, the rests that finalizers and interrupts leave, and the listeners of events.

Theory of operation. The garbage collector and signal handlers run at any point, also inside a step. What a finalizer
has to do is deferred to the next step of any call. Any other use of the table inside a step of its own thread does not
wait for that step, and changes nothing. A step that an interrupt cuts off is mended by the next one.
"""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tidegate.admission.key_log import write_record
from tidegate.admission.wait_queue import Waiter
from tidegate.core import events
from tidegate.core.limiter_state import Out
from tidegate.errors import ConfigurationError, PermitMisuse

if TYPE_CHECKING:
    from tidegate.admission.key_queue import KeyQueue
    from tidegate.admission.shared_keys import SharedKeys

Listener = Callable[[events.Event], object]
logger = logging.getLogger("tidegate")

next_call_number = itertools.count(1).__next__
"""Return the next number of a call; it is unique in the process, whichever registry has the call."""


class Listeners:
    """The listeners of one registry, in order of subscription.

    `all` is replaced, never changed, so it can be read without a lock. `pending` holds events of permits that were
    settled after a drop, and of sharing; the next step of any call reports them.
    """

    __slots__ = ("_notifying", "all", "pending")

    def __init__(self) -> None:
        self.all: tuple[Listener, ...] = ()
        self.pending: deque[events.Event] = deque()
        # Threads that are inside a listener.
        self._notifying: set[int] = set()

    def add(self, listener: Listener) -> None:
        """Notify `listener` of every event from now on; the caller holds the key table's lock."""
        self.all = (*self.all, listener)

    def remove(self, listener: Listener) -> None:
        """Stop notifying `listener`; the caller holds the key table's lock."""
        self.all = tuple(each for each in self.all if each is not listener)

    def note(self, event: events.Event) -> None:
        """Keep an event that no call caused; the next step of any call reports it."""
        if self.all:
            self.pending.append(event)

    def emit(self, out: Iterable[events.Event]) -> None:
        """Report the events in `pending`, then those in `out`; log a listener that raises, and keep it subscribed.

        A finalizer inside a listener, which may hold a lock, reports nothing: the listener's own thread does so later.
        """
        thread = get_ident()
        if thread in self._notifying:
            self.pending.extend(out)
            return
        try:
            self._notifying.add(thread)
            if self.pending:
                self._report_pending()
            for event in out:
                self._notify(event)
            if self.pending:
                self._report_pending()
        finally:
            self._notifying.discard(thread)

    def _report_pending(self) -> None:
        while self.pending:
            with suppress(IndexError):  # An empty context: the running call has no part in this event.
                Context().run(self._notify, self.pending.popleft())

    def _notify(self, event: events.Event) -> None:
        for listener in self.all:
            try:
                listener(event)
            except Exception as error:
                reason = type(error).__name__
                logger.exception(
                    "listener failed at %s: %s was raised; it stays subscribed", type(event).__name__, reason
                )


NUDGED_EXECUTORS = 8
"""Executors of waiting calls that a finalizer wakes, at most, so that one of them does its rest. Raising it wakes more
in vain; lowering it trusts fewer to run. Chosen: as many as look in a second (`key_queue.LOOKS_PER_SECOND`)."""

T = TypeVar("T")

Rest: TypeAlias = Callable[[Out], list[Waiter]]
"""Rest of a step: it runs under the lock, and returns the waiters to wake. Its repetition does nothing more."""


class StepTable(ABC):
    """The lock of a key table, and what is done inside and after it; `_mend` makes consistent what was cut off."""

    _shared: SharedKeys | None

    def __init__(self) -> None:
        # It lets a signal handler or a finalizer in, which then finds that a step is under way on its own thread.
        self._lock = threading.RLock()
        self._stepping = False
        self._listeners = Listeners()
        # Log records to write, and shared logs to append to, with the lock free.
        self._records: deque[Callable[[], object]] = deque()
        # Rests of steps: of finalizers, which take no lock, and of what an interrupt has cut off.
        self._deferred: deque[Rest] = deque()

    def emit(self, event: events.Event) -> None:
        self._act([], [event])

    @property
    def listening(self) -> bool:
        return bool(self._listeners.all)

    def catch_up(self) -> None:
        """Do what is deferred, and report its events."""
        if self._deferred or self._records or self._listeners.pending:
            self._act([], None)

    def _step(self, body: Callable[[Out], tuple[list[Waiter], T]], otherwise: Callable[[], T]) -> T:
        """Run one step: `body` under the lock, with the list of its events, then wake and report.

        Inside a step of this thread return what `otherwise` returns.
        """
        out = self._out()
        try:
            if self._deferred:
                self._drain()
            with self._lock:
                if self._stepping:
                    return otherwise()
                self._stepping = True
                try:
                    to_wake, result = body(out)
                finally:
                    # Written out, here and where calls come: an interrupt at a function's entry precedes its `try`.
                    try:
                        if self._shared is not None:
                            self._shared.end_steps()
                    finally:
                        self._stepping = False
            if to_wake or out or self._deferred or self._records:
                self._act(to_wake, out)
        except (PermitMisuse, ConfigurationError):
            raise
        except BaseException:
            self._deferred.append(self._mend)
            raise
        return result

    def _apply(self, change: Callable[[], object], always: bool = False) -> None:
        """Run a step that admits nothing; inside another step of this thread only if it is to happen `always`."""
        self._step(lambda out: ([], change()), change if always else nothing)

    def _defer(self, rest: Rest, queue: KeyQueue | None) -> None:
        """Leave the rest of a step to the next step of any call; wake a few that wait for `queue`, to make one."""
        self._deferred.append(rest)
        if queue is None:
            return
        # Without the lock: what another thread changes at the same time is looked at by its own step.
        for callback in list(queue.ready_callbacks.values()):
            callback.wake()
        for group in list(queue.waiting.groups.values())[:NUDGED_EXECUTORS]:
            first = group.first
            if first is not None and first.waker is not None:
                getattr(first.waker, "nudge", first.waker.wake)()

    def _act(self, to_wake: list[Waiter], out: list[events.Event] | None) -> None:
        """Wake waiters, do what is deferred, write records and notify listeners, with the lock free."""
        self._wake_all(to_wake)
        if self._deferred:
            self._drain()
        while self._records:
            with suppress(IndexError):
                write_record(self._records.popleft())
        if out or self._listeners.pending:
            self._listeners.emit(out or ())

    def _wake_all(self, to_wake: list[Waiter]) -> None:
        for waiter in to_wake:
            if not waiter.wake_up():
                # Its event loop is closed: its place or its permit stays unused.
                self._deferred.append(partial(self._take_out, waiter))

    def _drain(self) -> None:
        """Do what is deferred; an interrupt leaves it to the next step."""
        while self._deferred:
            out = self._out()
            with self._lock:
                if self._stepping:
                    return
                self._stepping = True
                try:
                    to_wake = self._rest(out)
                finally:
                    try:
                        if self._shared is not None:
                            self._shared.end_steps()
                    finally:
                        self._stepping = False
            self._listeners.pending.extend(out or ())
            self._wake_all(to_wake)

    def _rest(self, out: Out) -> list[Waiter]:
        if not self._deferred:
            return []
        try:
            to_wake = self._deferred[0](out)
        except Exception as error:
            # It must fail no call, and not come again.
            to_wake, text = [], "rest of a step failed: %s was raised; what it was to give back may be lost"
            self._records.append(partial(logger.error, text, type(error).__name__, exc_info=error))
        self._deferred.popleft()
        return to_wake

    @abstractmethod
    def _mend(self, out: Out) -> list[Waiter]:
        """Mend what an interrupt of the program cut off."""

    @abstractmethod
    def _take_out(self, waiter: Waiter, out: Out) -> list[Waiter]:
        """Take a call out of its queue, with an unused permit."""

    def _out(self) -> list[events.Event] | None:
        return [] if self._listeners.all else None


def nothing() -> None:
    """Do nothing inside another step."""
