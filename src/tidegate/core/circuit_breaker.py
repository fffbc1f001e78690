"""Circuit breaker of a key whose provider is down, and the clocks of the time for which the key answered no call.

Theory of operation. `TRANSITIONS` is the state machine: it says which state follows which event, and a missing entry
changes nothing. `OUTAGE_FAILURES` consecutive ones open the breaker, unless as many attempts sent since the first of
them have not failed: those wait for their answers, which take longer than failures. While it is open nothing is sent
until `ready_at`. Then one attempt goes out as the *probe* (half open), and all other calls wait for its outcome. A
failed probe opens the breaker again for longer, and any answer to it closes the breaker. After an abandoned probe the
next call may probe at once. Answers take long, but failures came quickly. So a probe without a result for a few times
the duration of a failure has reached a working server too, if the event loop that would read the result has run since.

A key that was never `reached` has more likely a wrong address than an outage: no server answered there, or a proxy
answers with its own failures (502, 503). From `gives_up_at` on, no call waits for it: each gets the error of an attempt
by itself, until a server answers. Probes continue.

A stretch of the clocks (`OutageClock`) begins with a refusal, or when the breaker opens, and ends with the next answer.
The clocks stop while a reset that the provider named (a cooldown, a quota) is still ahead, because such a wait has a
known end. All instants are monotonic seconds.

The last calls of a program may be those that always fail: then no other call is left that could be answered. Such calls
were outrun before: they failed again after a later call was answered. In an outage, many more calls begin to fail after
the last answer (`FailingCalls`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.backoff import GRACE_BOUNDS_SECONDS, GRACE_ROUND_TRIPS
from tidegate.core.refusal_cause import JITTER_ROUND_TRIPS
from tidegate.core.values import INFINITY, PAST_WEIGHT_SHARE, Outcome


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

COOLDOWN_GROWTH = 1.05
"""Factor on the cooldown after each failed probe. Chosen: 12 s of outage meet 20 requests at most, and later the
cooldown is a twentieth of the outage."""

MIN_SILENCE_SECONDS = GRACE_BOUNDS_SECONDS[0]
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

    @property
    def retests(self) -> bool:
        """Return whether the last probe failed."""
        return self._cooldown > FIRST_COOLDOWN_SECONDS

    def reach(self) -> None:
        """Record that a server works at the address of the key: its answer is no failure of a server."""
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

    def failed(self, probe: bool, sent_at: float, now: float, draw: float, in_flight: Iterable[float] = ()) -> bool:
        """Record an outage failure; return whether it opened the breaker.

        `in_flight` are the instants at which the attempts in flight were sent. An attempt sent before the breaker last
        closed belongs to the past outage and does not count.
        """
        if sent_at < self._closed_at:
            return False
        self._took = max(now - sent_at, PAST_WEIGHT_SHARE * self._took)
        if not (self.reached or self.gives_up_at < INFINITY):
            self.gives_up_at = now + self.max_unreached
        if not self.failures:
            self._failing_since = sent_at
        self.failures += 1
        if probe:
            opened = self._to(BreakerEvent.PROBE_FAILED)
            self._cooldown = min(MAX_COOLDOWN_SECONDS, self._cooldown * COOLDOWN_GROWTH)
        else:
            opened = self._is_outage(in_flight, now) and self._to(BreakerEvent.TRIPPED)
        if opened:
            self.ready_at = now + self._cooldown * (0.75 + 0.5 * draw)
        return opened

    def _is_outage(self, in_flight: Iterable[float], now: float) -> bool:
        """Return whether most attempts sent since the first failure failed; one that just went may still do so."""
        if self.failures < OUTAGE_FAILURES:
            return False
        settled = now - (1.0 + JITTER_ROUND_TRIPS) * self._took
        return sum(self._failing_since < sent_at <= settled for sent_at in in_flight) < self.failures

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


NEVER = -INFINITY

OUTAGE_CHANCE = 0.001
"""Chance that the calls which fail have an error of their own, below which their failures are those of an outage.
Chosen: where one call in ten always fails, the last three of them are no outage."""

RECENT_ANSWERS = 128
"""Answers after which a call that was outrun is forgotten. Chosen: more calls than an SDK repeats at once."""


class KeyOutage(NamedTuple):
    """Availability of a key at one instant, in seconds.

    `unanswered` counts since the first refusal or outage after the last answer, `outage` since the breaker opened. Both
    exclude stated resets. `stated_for` is left of the present one. `last` is the newest refusal or failure.
    """

    unanswered: float = 0.0
    outage: float = 0.0
    stated_for: float = 0.0
    last: Outcome | None = None


AVAILABLE = KeyOutage()


class OutageClock:
    """Clocks of one key; `stated_until` is the instant of the latest stated reset.

    `running` says that no call was answered since a refusal or an outage.
    """

    __slots__ = ("_down", "_since", "_stated", "_stated_from", "last", "running", "stated_until")

    def __init__(self) -> None:
        self.running = False
        self._since: tuple[float, float] | None = None
        self._down: tuple[float, float] | None = None
        self._stated = 0.0
        self._stated_from = self.stated_until = NEVER
        self.last: Outcome | None = None

    def refused(self, outcome: Outcome, now: float) -> None:
        self.last = outcome
        self.running = True
        if self._since is None:
            self._since = now, self._stated_by(now)

    def opened(self, now: float) -> None:
        """Record that the breaker is not closed; repeating it changes nothing."""
        if self._down is None:
            self._down = now, self._stated_by(now)

    def closed(self) -> None:
        self._down = None

    def answered(self) -> None:
        self.running = False
        self._since = None

    def stated(self, now: float, until: float) -> None:
        """Stop the clocks until a reset that the provider has named."""
        if until <= now:
            return
        if now >= self.stated_until:
            self._stated = self._stated_by(now)
            self._stated_from = now
        self.stated_until = max(self.stated_until, until)

    def at(self, now: float) -> KeyOutage:
        stated = self._stated_by(now)
        unanswered, outage = (
            0.0 if begun is None else max(0.0, now - begun[0] - (stated - begun[1]))
            for begun in (self._since, self._down)
        )
        return KeyOutage(unanswered, outage, max(0.0, self.stated_until - now), self.last)

    def _stated_by(self, now: float) -> float:
        """Return the seconds for which the clocks have stopped until `now`, in all."""
        if self._stated_from == NEVER:
            return 0.0
        return self._stated + max(0.0, min(now, self.stated_until) - self._stated_from)


class FailingCalls:
    """Calls of one key that fail: those that began to since the last answer, and those that were outrun lately.

    `repeated` counts the failures of calls that had failed before. `too_large` is the least cost in tokens of a call
    that was given back because it never fits.
    """

    __slots__ = ("_after", "_began", "_outrun", "repeated", "too_large")

    def __init__(self) -> None:
        self._began = self._after = self.repeated = 0
        self._outrun: list[int] = []
        self.too_large = INFINITY

    def began(self, after: int) -> None:
        """Count a call that failed for the first time; `after` is the order of the newest answered attempt."""
        if after != self._after:
            self._began, self._after = 0, after
        self._began += 1

    def outran(self, answers: int) -> None:
        """Count a call that failed again after a later one was answered; `answers` is the number of all answers."""
        self._outrun = [*self._recent(answers), answers]

    def is_no_outage(self, after: int, answers: int, anew: bool = True) -> bool:
        """Return whether calls that always fail explain the failures since the last answer.

        With `anew`, their callers may repeat them as new calls.
        """
        outrun = len(self._recent(answers))
        share = min(1.0, (outrun + 1.0) / (min(answers, RECENT_ANSWERS) + 2.0))
        others = max(0, (self._began if after == self._after else 0) - outrun * anew)
        return answers > 0 and share**others >= OUTAGE_CHANCE

    def _recent(self, answers: int) -> list[int]:
        return [each for each in self._outrun if each > answers - RECENT_ANSWERS]
