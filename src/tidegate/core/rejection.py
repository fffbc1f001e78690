"""Rejection of a key by its provider: its credential is wrong or revoked, its money or its daily quota is spent.

Theory of operation. Every call is sent, and gets the provider's own answer: a gateway may reject for a moment, one of
its servers always, or one of several tokens, so no answer to one call is given to another. Two such answers in a row
show that the key as a whole is rejected. A rejected attempt takes no capacity, so learned limits would only hold back
the calls that are to fail. While the key is rejected, each rejection lets two more calls go beyond these limits. So
thousands of waiting calls end within a few round trips. An answer to an attempt that was sent since ends the rejection.

A daily quota may name its reset. A call whose deadline is later waits for the reset, and then one goes alone. If that
one is rejected again, and the next one too, the named reset is no longer believed.
"""

from __future__ import annotations

from http import HTTPStatus

from tidegate.core.backoff import FIRST_GRACE_SECONDS, GRACE_BOUNDS_SECONDS, GRACE_ROUND_TRIPS
from tidegate.core.values import Cause, Kind, Outcome

REST_SECONDS = 1.0
"""Seconds after a rejection in which a caller with a fallback takes it. Chosen: one call a second costs little."""

CALLS_PER_REJECTION = 2
"""Calls that may be in flight for each rejection in a row. Source: slow start doubles in the same way."""

FRUITLESS_WAITS = 2
"""Waits for a named reset, in a row, that ended in the same rejection: then the reset is not believed. Source: Gemini
names seconds where the quota returns at midnight (capture gemini-429-multi-violation)."""

REJECTED = "rejected"
"""Name of the closed gate (limiter) while no reset is known."""

DAY = "quota day"
"""Name of the closed gate while a reset is known."""


def rejects_key(outcome: Outcome) -> bool:
    """Return whether an answer holds for every call of its key."""
    if outcome.status == HTTPStatus.FORBIDDEN:
        # It may be about one request only, such as a region or a moderated text.
        return False
    if outcome.kind is Kind.PERMANENT:
        return outcome.cause is Cause.AUTH and outcome.of_key
    if outcome.kind is Kind.QUOTA_EXHAUSTED:
        return outcome.of_key
    return outcome.kind is Kind.DAILY_LIMIT and (outcome.of_key or bool(outcome.retry_after))


class KeyRejection:
    """Rejection of a key. Instants are monotonic seconds.

    `outcome` is the newest rejecting answer, `order` the number of the attempt that got it, `since` the instant of the
    first one, and `count` their number. `reset_at` is when the provider says that the key works again, None where it
    did not. `in_force` says that there were two answers in a row, or that calls wait for the reset.
    """

    __slots__ = (
        "_fruitless",
        "_grace",
        "_last_order",
        "_probe_order",
        "_probed_at",
        "_rejected_at",
        "count",
        "in_force",
        "order",
        "outcome",
        "reset_at",
        "since",
    )

    def __init__(self, since: float) -> None:
        self.since = since
        self.outcome = Outcome(Kind.PERMANENT)
        self.order = self.count = 0
        self.in_force = False
        self.reset_at: float | None = None
        self._rejected_at = since
        # The attempt that asks after the reset whether the rejection lasts.
        self._probed_at = float("-inf")
        self._probe_order = 0
        self._grace = FIRST_GRACE_SECONDS
        self._fruitless = 0
        # Number of the last attempt that was sent before the first such answer.
        self._last_order = 0

    @property
    def has_false_reset(self) -> bool:
        """Return whether the named reset proved false: a call that waits for it would wait in vain again."""
        return self.reset_at is None and self._fruitless >= FRUITLESS_WAITS

    @property
    def gate(self) -> str:
        return REJECTED if self.reset_at is None else DAY

    def note_rejection(self, outcome: Outcome, order: int, last_order: int, sent_at: float, now: float) -> None:
        """Record a rejecting answer to the attempt numbered `order`; `last_order` is the newest attempt's number."""
        if self.reset_at is not None and sent_at >= self.reset_at:
            self._fruitless += 1
        self._grace = min(GRACE_BOUNDS_SECONDS[1], max(FIRST_GRACE_SECONDS, GRACE_ROUND_TRIPS * (now - sent_at)))
        same = (self.outcome.kind, self.outcome.cause) == (outcome.kind, outcome.cause) and self.order > 0
        if not same:
            self._last_order, self.count = last_order, 0
        repeats = same and order > self._last_order
        self.outcome, self.order, self._rejected_at = outcome, order, now
        self.count += 1
        self._probed_at = float("-inf")
        named = outcome.retry_after if outcome.kind is Kind.DAILY_LIMIT else None
        self.reset_at = now + named if named and self._fruitless < FRUITLESS_WAITS else None
        self.in_force = self.in_force or repeats or self.reset_at is not None

    def lets_go(self, in_flight: int) -> bool:
        return self.in_force and in_flight < CALLS_PER_REJECTION * self.count

    def waits(self, deadline: float) -> bool:
        return self.reset_at is not None and self.reset_at <= deadline

    def opens_at(self, now: float) -> float:
        """Return when a call that waits for the reset may be sent; `now` where no reset is known."""
        if self.reset_at is None:
            return now
        return max(self.reset_at, self._probed_at + self._grace if self._probed_at >= self.reset_at else now)

    def rests_until(self, now: float) -> float:
        """Return until when a caller that does not wait, and may have another choice, leaves the key alone."""
        return self._rejected_at + REST_SECONDS if self.in_force and self.reset_at is None else self.opens_at(now)

    def note_sent(self, order: int, now: float) -> None:
        """Record that the attempt numbered `order` goes out; the first one after the reset asks alone."""
        if self.reset_at is not None and now >= self.reset_at > self._probed_at:
            self._probed_at, self._probe_order = now, order

    def note_probe_lost(self, order: int) -> None:
        """Record that the attempt numbered `order` had no result: if it was the asking one, the next one asks."""
        if order == self._probe_order:
            self._probed_at = float("-inf")


def is_final(outcome: Outcome, rejection: KeyRejection | None) -> bool:
    """Return whether a spent day named a false reset: another attempt of its call would get the same answer."""
    return outcome.kind is Kind.DAILY_LIMIT and rejection is not None and rejection.has_false_reset


def in_force(rejection: KeyRejection | None) -> KeyRejection | None:
    """Return a rejection of the key as a whole; None for one that no second answer confirms."""
    return rejection if rejection is not None and rejection.in_force else None
