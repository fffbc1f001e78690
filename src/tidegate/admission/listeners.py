"""The listeners of events, and the events that they have not been told yet."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context

from tidegate.core import events

Listener = Callable[[events.Event], object]
logger = logging.getLogger("tidegate")


class Listeners:
    """The listeners of one registry, in the order in which they came.

    `all` is replaced, never changed, so that it may be read without a lock. `untold` are events that befell nobody who
    could tell of them: the next step of anybody does.
    """

    __slots__ = ("all", "untold")

    def __init__(self) -> None:
        self.all: tuple[Listener, ...] = ()
        self.untold: deque[events.Event] = deque()

    def add(self, listener: Listener) -> None:
        """Tells `listener` of everything from now on; the caller holds the registry's lock."""
        self.all = (*self.all, listener)

    def remove(self, listener: Listener) -> None:
        """Tells `listener` of nothing more; the caller holds the registry's lock."""
        self.all = tuple(each for each in self.all if each is not listener)

    def tell(self, out: Iterable[events.Event]) -> None:
        """Tells of what was untold, then of `out`; a listener that raises is logged and goes on being called."""
        while self.untold:
            with suppress(IndexError):  # The call that happens to be here has nothing to do with it.
                Context().run(self._announce, self.untold.popleft())
        for event in out:
            self._announce(event)

    def _announce(self, event: events.Event) -> None:
        for listener in self.all:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed at %s", type(event).__name__)
