"""Circuit breaker: stops sending to a key whose provider is down, and detects the recovery.

Theory of operation. `TRANSITIONS` is the state machine: it says which state follows which event, and a missing entry
changes nothing. `OUTAGE_FAILURES` consecutive ones open the breaker. While it is open nothing is sent until
`ready_at`. Then one attempt goes out as the *probe* (half open), and all other calls wait for its outcome. A failed
probe opens the breaker again for longer, and any answer to it closes the breaker. After an abandoned probe the next
call may probe at once. Answers take long, but failures came quickly. So a probe without a result for a few times the
duration of a failure has reached a working server too, if the event loop that would read the result has run since.

A key that was never `reached` has more likely a wrong address than an outage. From `gives_up_at` on, no call waits for
it: each gets the error of an attempt by itself, until one is answered. Probes continue.
"""

from __future__ import annotations

from enum import StrEnum

from tidegate.core.backoff import FADES, GRACE_BOUNDS, GRACE_ROUND_TRIPS
from tidegate.core.values import INFINITY


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


CLOSED = BreakerState.CLOSED
"""Alias for speed, as `values.OK` is."""


class BreakerEvent(StrEnum):
    """Event that changes a circuit breaker."""

    TRIPPED = "tripped"
    PROBE_SENT = "probe_sent"
    PROBE_ANSWERED = "probe_answered"
    PROBE_FAILED = "probe_failed"
    PROBE_ABANDONED = "probe_abandoned"


TRANSITIONS: dict[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.PROBE_SENT): BreakerState.HALF_OPEN,
    (BreakerState.OPEN, BreakerEvent.PROBE_ANSWERED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_ANSWERED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_FAILED): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_ABANDONED): BreakerState.OPEN,
}

OUTAGE_FAILURES = 5
"""Consecutive outage failures that open the breaker. Raising it sends more into an outage. Precedent: Phoenix, 5."""

FIRST_COOLDOWN_SECONDS = 0.5
MAX_COOLDOWN_SECONDS = 60.0
"""Mean time before the first probe, and the longest between two probes. Raising them finds a recovery later. Precedent:
openai, `INITIAL_RETRY_DELAY`; chosen: half the longest backoff of a gRPC connection, because a probe is one call."""

GROWTH = 1.05
"""Factor on the cooldown after each failed probe. Chosen: 12 s of outage meet 20 requests at most, and later the
cooldown is a twentieth of the outage."""

MIN_SILENCE_SECONDS = GRACE_BOUNDS[0]
"""Least seconds after which a silent probe counts as answered. A look later than this may have left the answer
unread."""


class CircuitBreaker:
    """Circuit breaker of one key."""

    __slots__ = (
        "_closed_at",
        "_cooldown",
        "_failing_since",
        "_silent_at",
        "_took",
        "failures",
        "gives_up_at",
        "max_unreached",
        "reached",
        "ready_at",
        "state",
    )

    def __init__(self, max_unreached: float = INFINITY) -> None:
        self.max_unreached = max_unreached
        self.gives_up_at = INFINITY
        self.reached = False
        self.state = BreakerState.CLOSED
        self.ready_at = -INFINITY
        self.failures = 0
        self._cooldown = FIRST_COOLDOWN_SECONDS
        self._closed_at = -INFINITY
        self._failing_since = -INFINITY
        self._took = 0.0
        self._silent_at = INFINITY

    @property
    def closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    def reach(self) -> None:
        """Record that the server of the key exists: it sent an answer, whatever that says."""
        self.reached, self.gives_up_at = True, INFINITY

    def answered(self, probe: bool, sent_at: float, now: float) -> bool:
        """Record an answer of a working server; return whether it closed the breaker.

        It resets the count of failures if its attempt was sent after the first failed one.
        """
        if sent_at > self._failing_since:
            self.failures = 0
            self._failing_since = -INFINITY
        # Where calls no longer wait for a probe, any of them may be the first to be answered.
        return (probe or now >= self.gives_up_at) and self._close(now)

    def failed(self, probe: bool, sent_at: float, now: float, draw: float) -> bool:
        """Record an outage failure; return whether it opened the breaker.

        An attempt sent before the breaker last closed belongs to the past outage and does not count.
        """
        if sent_at < self._closed_at:
            return False
        self._took = max(now - sent_at, FADES * self._took)
        if not (self.reached or self.gives_up_at < INFINITY):
            self.gives_up_at = now + self.max_unreached
        if not self.failures:
            self._failing_since = sent_at
        self.failures += 1
        if probe:
            opened = self._to(BreakerEvent.PROBE_FAILED)
            self._cooldown = min(MAX_COOLDOWN_SECONDS, self._cooldown * GROWTH)
        else:
            opened = self.failures >= OUTAGE_FAILURES and self._to(BreakerEvent.TRIPPED)
        if opened:
            self.ready_at = now + self._cooldown * (0.75 + 0.5 * draw)
        return opened

    def abandoned(self, probe: bool, now: float) -> None:
        """Record that the probe ended without an answer (cancelled): the next call may probe at once."""
        if probe and self._to(BreakerEvent.PROBE_ABANDONED):
            self.ready_at = now

    def sent(self, now: float) -> bool:
        """Record that an attempt goes out; return whether it is the probe."""
        if self.state is BreakerState.HALF_OPEN and now >= self._silent_at:
            self._close(now)
            return False
        if self.state is BreakerState.OPEN and self.ready_at > now >= self.gives_up_at:
            return False
        if self.state is BreakerState.CLOSED or not self._to(BreakerEvent.PROBE_SENT):
            return False
        self._silent_at = now + max(MIN_SILENCE_SECONDS, GRACE_ROUND_TRIPS * self._took)
        return True

    def opens_at(self, now: float) -> float:
        """Return when the next attempt may go: now, at the end of the cooldown, or after the probe's silence."""
        if self.state is BreakerState.CLOSED:
            return now
        if self.state is BreakerState.OPEN:
            return max(now, self.ready_at)
        if now > self._silent_at + MIN_SILENCE_SECONDS:
            # No call looked in time: an event loop that did not run may hold the answer to the probe.
            self._silent_at = now + MIN_SILENCE_SECONDS
        return max(now, self._silent_at)

    def _close(self, now: float) -> bool:
        if not self._to(BreakerEvent.PROBE_ANSWERED):
            return False
        self._cooldown = FIRST_COOLDOWN_SECONDS
        self.ready_at = -INFINITY
        self._closed_at = now
        self.failures = 0
        return True

    def _to(self, event: BreakerEvent) -> bool:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return False
        self.state = following
        return True
