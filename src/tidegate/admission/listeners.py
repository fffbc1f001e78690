"""Listeners of events, and the events that they have not received yet."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from threading import get_ident

from tidegate.core import events

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
