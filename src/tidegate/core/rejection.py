"""Rejection of a credential by its provider: it is wrong or revoked, its money is spent, or its daily quota is.

Theory of operation. Such an answer seldom concerns one call only, but a single one proves little. So one more call with
the same credential is sent alone, and others with it wait for a few of its round trips. If it is rejected as well, and
no call of the key was answered in between, the rejection is confirmed. The key then gives the answer to the calls of
the next `HOLDS` seconds that carry the same credential. After them one call asks the provider again, while the others
still get the kept answer. A rejection returns quickly, so an asking call that is not rejected within a few of its round
trips was admitted. Any other answer to a later attempt ends the rejection. Calls with other credentials are sent as
usual, though they use the same quota: a refreshed token is valid where the old one is not.

Another process that shares the key may get the answer. Its text and its credential stay there, so calls of this process
ask for a text of their own, while the others wait for it.

A daily quota may name its reset. A call whose deadline is later waits for the reset, and then one goes alone. If that
one is rejected again, and the next one too, the named reset is no longer believed.
"""

from __future__ import annotations

from http import HTTPStatus

from tidegate.core.backoff import GRACE_BOUNDS, GRACE_FIRST, GRACE_ROUND_TRIPS
from tidegate.core.values import Cause, Kind, Outcome, ReplayableRefusal

HOLDS = 1.0
"""Seconds for which a rejection is repeated before one call asks again. Raising it sends fewer requests in vain, and
finds out later that the key works again. Chosen: one request per second in vain costs little."""

FRUITLESS = 2
"""Waits for a named reset, in a row, that ended in the same rejection: then the reset is not believed. Raising it waits
more often in vain. Source: Gemini names seconds where the quota returns at midnight (capture
gemini-429-multi-violation)."""

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
        return outcome.cause is Cause.AUTH and outcome.answer is not None
    if outcome.kind is Kind.QUOTA_EXHAUSTED:
        return outcome.answer is not None
    return outcome.kind is Kind.DAILY_LIMIT and (outcome.answer is not None or bool(outcome.retry_after))


class KeyRejection:
    """Rejection of one credential of a key. Instants are monotonic seconds.

    `outcome` is the newest rejecting answer, `order` the number of the attempt that got it. `own` is the newest one of
    this process. `replayed` calls got that answer without a request. `reset_at` is when the provider says that the
    key works again, None where it did not. `confirmed` says that two own calls with the credential of `own` were
    rejected. `in_force` says that there were two answers in a row, or that calls wait for the reset.
    """

    __slots__ = (
        "_asked",
        "_fruitless",
        "_grace",
        "_own_until",
        "_probe_order",
        "_probed_at",
        "_sent_until",
        "confirmed",
        "in_force",
        "order",
        "outcome",
        "own",
        "probe_at",
        "replayed",
        "reset_at",
        "since",
    )

    def __init__(self, since: float) -> None:
        self.since = since
        self.outcome = Outcome(Kind.PERMANENT)
        self.own: Outcome | None = None
        # Number and instant of the own attempt that asks for the others; None where there was none.
        self._asked: tuple[int, float] | None = None
        self.order = 0
        self.replayed = 0
        self.confirmed = self.in_force = False
        self.reset_at: float | None = None
        self.probe_at = since
        self._probed_at = float("-inf")
        self._probe_order = 0
        self._grace = GRACE_FIRST
        self._fruitless = 0
        # Numbers of the last attempts that were sent before the first such answer, and before the first own one.
        self._sent_until = self._own_until = 0

    @property
    def answer(self) -> ReplayableRefusal | None:
        """Return the provider's answer to this process, as far as it may be repeated."""
        return self.own.answer if self.own is not None else None

    @property
    def holding(self) -> ReplayableRefusal | None:
        """Return the answer that holds calls with its credential; one of another process holds all of the key."""
        return self.answer or self.outcome.answer

    @property
    def is_elsewhere(self) -> bool:
        """Return whether only another process has the answer."""
        return self.own is None and self.outcome.answer is not None

    @property
    def is_unanswerable(self) -> bool:
        """Return whether the named reset proved false and no answer is kept to repeat: asking again is useless."""
        return self.outcome.answer is None and self.reset_at is None and self._fruitless >= FRUITLESS

    @property
    def gate(self) -> str:
        """Return the gate under which this rejection is shown: a day quota's, or that of a key rejected as a whole."""
        return REJECTED if self.reset_at is None else DAY

    def note_rejection(self, outcome: Outcome, order: int, last_order: int, sent_at: float, now: float) -> None:
        """Record a rejecting answer to the attempt numbered `order`, which was sent at `sent_at`.

        `last_order` is the number of the last attempt that was sent so far.
        """
        if self.reset_at is not None and sent_at >= self.reset_at:
            self._fruitless += 1
        self._grace = min(GRACE_BOUNDS[1], max(GRACE_FIRST, GRACE_ROUND_TRIPS * (now - sent_at)))
        same = (self.outcome.kind, self.outcome.cause) == (outcome.kind, outcome.cause) and self.order > 0
        sent_together = same and order <= self._sent_until
        repeats = same and not sent_together
        if not same:
            self._sent_until = last_order
        if outcome.answer is None or outcome.answer.body:
            self._note_own(outcome, order, last_order)
        elif not same:
            # The answer to this process does not hold any more.
            self.own, self.confirmed = None, False
        self.outcome, self.order = outcome, order
        if not sent_together:
            # While one is not confirmed, the call that is to confirm it stays the asking one.
            self.probe_at = now + HOLDS if repeats else now
            self._probed_at = float("-inf")
        named = outcome.retry_after if outcome.kind is Kind.DAILY_LIMIT else None
        self.reset_at = now + named if named and self._fruitless < FRUITLESS else None
        self.in_force = self.in_force or repeats or self.reset_at is not None

    def _note_own(self, outcome: Outcome, order: int, last_order: int) -> None:
        """Record a rejecting answer to this process."""
        before, answer = self.answer, outcome.answer
        if before is None or answer is None or answer.credential != before.credential:
            self.confirmed, self._own_until, self._asked = False, last_order, None
        elif order > self._own_until:
            self.confirmed = True
        self.own = outcome if answer is not None else None

    def waits(self, deadline: float) -> bool:
        """Return whether a call with that deadline waits for the reset."""
        return self.reset_at is not None and self.reset_at <= deadline

    def replays(self, deadline: float, now: float) -> bool:
        """Return whether a call with that deadline gets the kept answer at `now`; else it waits, or asks."""
        if not self.confirmed or self.waits(deadline):
            return False
        return now < self.probe_at or self._probe_in_flight(now)

    def opens_at(self, deadline: float, now: float) -> float:
        """Return when a call with that deadline may be sent, if it does not get the kept answer."""
        judged_at = self._probed_at + self._grace
        if self.waits(deadline):
            assert self.reset_at is not None, "it waits for a reset"
            return max(self.reset_at, judged_at if self._probed_at >= self.reset_at else now)
        if self.confirmed:
            return max(self.probe_at, judged_at)
        return self._asked[1] + self._grace if self.holding is not None and self._asked is not None else now

    def may_probe(self, now: float) -> bool:
        """Return whether an attempt sent at `now` asks if the rejection lasts."""
        begins = self.probe_at
        if self.reset_at is not None and now >= self.reset_at:
            begins = max(begins, self.reset_at)
        return now >= begins > self._probed_at

    def note_sent(self, order: int, now: float) -> None:
        """Record that the attempt numbered `order` goes out; the first one that may ask does so alone."""
        if self.may_probe(now):
            self._probed_at, self._probe_order = now, order

    def note_asked(self, order: int, now: float) -> None:
        """Record that an attempt of this process goes out; the first one asks for the others."""
        if self._asked is None:
            self._asked = order, now

    def note_probe_lost(self, order: int) -> None:
        """Record that the attempt numbered `order` had no result: if it was the asking one, the next one asks."""
        if order == self._probe_order:
            self._probed_at = float("-inf")
        if self._asked is not None and order == self._asked[0]:
            self._asked = None

    def _probe_in_flight(self, now: float) -> bool:
        return now < self._probed_at + self._grace


def in_force(rejection: KeyRejection | None) -> KeyRejection | None:
    """Return a rejection that calls get or wait for; None for one that is not confirmed."""
    return rejection if rejection is not None and rejection.in_force else None
