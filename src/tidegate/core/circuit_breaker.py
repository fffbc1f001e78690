"""Stops sending to a key whose provider is down, and finds out when it is back.

Theory of operation. Two tables are the machine: `TRANSITIONS` says which state follows which event, and a missing
entry means that the event changes nothing there. `threshold` consecutive outage failures open it. While it is open
nothing is sent until `ready_at`; then one attempt goes out as the *probe* (half open) and everybody else waits for its
outcome. A failed probe opens it again for longer, any answer of a living server closes it, a probe that was given up
lets the next caller probe at once. Answers take long, failures came quickly: a probe of which nothing was heard for a
few times as long as a failure took has met a living server too.
"""

from __future__ import annotations

from enum import StrEnum


class BreakerState(StrEnum):
    """The state of a breaker: the calls that it lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


CLOSED = BreakerState.CLOSED
"""By a name of its own, as `vocabulary.OK` is."""


class BreakerEvent(StrEnum):
    """The events that change a breaker."""

    TRIPPED = "tripped"
    PROBE_SENT = "probe_sent"
    PROBE_ANSWERED = "probe_answered"
    PROBE_FAILED = "probe_failed"
    PROBE_ABANDONED = "probe_abandoned"


TRANSITIONS: dict[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.PROBE_SENT): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_ANSWERED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_FAILED): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_ABANDONED): BreakerState.OPEN,
}

GROWTH = 1.06
"""Each failed probe makes the cool-down this much longer: the first ten come within ten seconds, and find a recovery
within one (the openai and anthropic SDKs double; a probe is cheap)."""

SILENCE = 3.0
SILENCE_LEAST = 0.05
"""How long a probe that nothing was heard of counts as failed or lost: three times as long as failures took lately, and
at least this many seconds."""

FADES = 0.8
"""What is left of the longest failure at each shorter one."""


class CircuitBreaker:
    """The breaker of one key."""

    __slots__ = (
        "_closed_at",
        "_cooldown",
        "_failing_since",
        "_silent_at",
        "_took",
        "cap",
        "failures",
        "first",
        "ready_at",
        "state",
        "threshold",
    )

    def __init__(self, threshold: int, first: float, cap: float) -> None:
        self.threshold = threshold
        self.first = first
        self.cap = cap
        self.state = BreakerState.CLOSED
        self.ready_at = float("-inf")
        self.failures = 0
        self._cooldown = first
        self._closed_at = float("-inf")
        self._failing_since = float("-inf")
        self._took = 0.0
        self._silent_at = float("inf")

    @property
    def closed(self) -> bool:
        """Return whether everything may pass."""
        return self.state is BreakerState.CLOSED

    def answered(self, probe: bool, sent_at: float, now: float) -> bool:
        """A server that lives answered; returns whether that closed the breaker.

        An answer to what was sent before the failures began does not begin their count anew.
        """
        if sent_at >= self._failing_since:
            self.failures = 0
            self._failing_since = float("-inf")
        return probe and self._close(now)

    def failed(self, probe: bool, sent_at: float, now: float, draw: float) -> bool:
        """An outage failure; returns whether it opened the breaker. `draw` is uniform in [0, 1).

        One that was sent before the breaker last closed is of the outage that is over, and counts for nothing.
        """
        if sent_at < self._closed_at:
            return False
        self._took = max(now - sent_at, FADES * self._took)
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        if probe:
            opened = self._to(BreakerEvent.PROBE_FAILED)
            self._cooldown = min(self.cap, self._cooldown * GROWTH)
        else:
            opened = self.failures >= self.threshold and self._to(BreakerEvent.TRIPPED)
        if opened:
            self.ready_at = now + self._cooldown * (0.75 + 0.5 * draw)
        return opened

    def abandoned(self, probe: bool, now: float) -> None:
        """The probe ended without an answer (cancelled): the next caller may probe at once."""
        if probe and self._to(BreakerEvent.PROBE_ABANDONED):
            self.ready_at = now

    def sent(self, now: float) -> bool:
        """An attempt goes out; returns whether it is the probe."""
        if self.state is BreakerState.HALF_OPEN and now >= self._silent_at:
            self._close(now)
            return False
        if self.state is BreakerState.CLOSED or not self._to(BreakerEvent.PROBE_SENT):
            return False
        self._silent_at = now + max(SILENCE_LEAST, SILENCE * self._took)
        return True

    def opens_at(self, now: float) -> float:
        """When the next attempt may go out: now, the end of the cool-down, or when a probe has been silent enough."""
        if self.state is BreakerState.CLOSED:
            return now
        return max(now, self.ready_at if self.state is BreakerState.OPEN else self._silent_at)

    def _close(self, now: float) -> bool:
        if not self._to(BreakerEvent.PROBE_ANSWERED):
            return False
        self._cooldown = self.first
        self.ready_at = float("-inf")
        self._closed_at = now
        self.failures = 0
        return True

    def _to(self, event: BreakerEvent) -> bool:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return False
        self.state = following
        return True
