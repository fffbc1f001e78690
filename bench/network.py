"""The way between a client and its provider in virtual time: messages travel, connections have to be set up."""

from __future__ import annotations

from collections.abc import Callable

from bench.world import PUNCTUAL, LateLoop, Timeline

TRAVEL = 0.005
"""Seconds each way."""

SETUP = 0.003
"""Seconds for each new connection, after those that are being set up already; who finds an idle one overtakes them.

So that calls are overtaken by as many places as over HTTP (openai 3.52, request-bound and token-bound: 4 to 8).
"""

READING = 0.002
"""Seconds by which an answer comes after the timers, where both wait for a stalled event loop: a client reads it
in several steps of the loop, and a timer needs one."""

MOST_IDLE = 100
"""Connections that are kept (openai 3.52: DEFAULT_CONNECTION_LIMITS)."""


class Network:
    """One client's connections, whose ends are handled by the client's event loop."""

    def __init__(self, timeline: Timeline, loop: LateLoop = PUNCTUAL, work: float = 0.0) -> None:
        self._timeline = timeline
        self._loop = loop
        # Seconds of the loop that each message takes; the loop handles one after another.
        self._work, self._free_at = work, 0.0
        # Answers are read in the order in which they came.
        self._read_until = 0.0
        self._idle = self._opening = 0

    def carry(self, action: Callable[[], object]) -> None:
        """Plays `action` when a request that is made now has arrived."""
        self._handle(lambda: self._leave(action))

    def _leave(self, action: Callable[[], object]) -> None:
        delay = 0.0
        if self._idle:
            self._idle -= 1
        else:
            self._opening += 1
            now = self._timeline.now
            delay = self._loop.handles(now + SETUP * self._opening) - now
            self._timeline.after(delay, self._opened)
        self._timeline.after(TRAVEL + delay, action)

    def bring_back(self, action: Callable[[], object]) -> None:
        """Plays `action` when an answer that leaves now has arrived."""
        self._timeline.after(self._handled(TRAVEL), lambda: self._handle(action))

    def release(self) -> None:
        """An answer has been read to its end: its connection is free."""
        self._idle = min(MOST_IDLE, self._idle + 1)

    def _handle(self, action: Callable[[], object]) -> None:
        """Plays `action` when the loop is through with the messages before this one, and with it."""
        if not self._work:
            action()
            return
        now = self._timeline.now
        self._free_at = max(now, self._free_at) + self._work
        self._timeline.after(self._free_at - now, action)

    def _handled(self, delay: float) -> float:
        due = self._timeline.now + delay
        handled = self._loop.handles(due)
        if handled > due + self._loop.late:
            handled += READING
        self._read_until = max(self._read_until, handled)
        return self._read_until - self._timeline.now

    def _opened(self) -> None:
        self._opening -= 1
