"""Rejection of a credential by its provider: it is wrong or revoked, its money is spent, or its daily quota is.

Theory of operation. Such an answer seldom concerns one call only, but a single one proves little: a gateway may reject
for a moment, or one of its servers always. So one call at a time asks the provider, and others with the same credential
wait for a few of its round trips. Any other answer to a later attempt ends the rejection. A rejection returns quickly,
so an asking call that is not rejected within a few of its round trips was admitted.

After `REPEATED_AFTER` seconds of such answers alone the rejection is repeated without a request, but only to a call
that began before the newest rejected attempt was sent: without tidegate that call would have been sent no later. Every
other call waits for the attempt that asks, or asks itself. Calls with other credentials are sent as usual, though they
use the same quota: a refreshed token is valid where the old one is not.

Another process that shares the key may get the answer. Its text and its credential stay there, so calls of this process
ask for a text of their own, while the others wait for it.

A daily quota may name its reset. A call whose deadline is later waits for the reset, and then one goes alone. If that
one is rejected again, and the next one too, the named reset is no longer believed.
"""

from __future__ import annotations

from http import HTTPStatus

from tidegate.core.backoff import GRACE_BOUNDS, GRACE_FIRST, GRACE_ROUND_TRIPS
from tidegate.core.values import INFINITY, Cause, Kind, Outcome, ReplayableRefusal

REPEATED_AFTER = 5.0
"""Seconds for which every answer is the rejection before it is repeated to a waiting call. Raising it asks more often
with a dead key, and a rejection that ends sooner costs only the calls that asked. Derived: a sixth of the 30 s within
which an error that no wait can cure is shown, since a failover or a new key takes seconds at a gateway."""

REST_SECONDS = 1.0
"""Seconds after a rejection for which a caller with another choice, such as a fallback, takes the other. Raising it
sends fewer requests in vain, and finds out later that the key works again. Chosen: one a second costs little."""

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
        "_asked_at",
        "_fruitless",
        "_grace",
        "_own_since",
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
        # Instants of the first own rejection with the credential of `own`, and when the newest such attempt was sent.
        self._own_since, self._asked_at = since, float("-inf")

    @property
    def answer(self) -> ReplayableRefusal | None:
        """Return the provider's answer to this process, as far as it may be repeated."""
        return self.own.answer if self.own is not None else None

    @property
    def holding(self) -> ReplayableRefusal | None:
        """Return the answer that holds calls with its credential; one of another process holds all of the key."""
        return self.answer or self.outcome.answer

    @property
    def has_false_reset(self) -> bool:
        """Return whether the named reset proved false: a call that waits for it would wait in vain again."""
        return self.reset_at is None and self._fruitless >= FRUITLESS

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
            self._note_own(outcome, order, last_order, sent_at, now)
        elif not same:
            # The answer to this process does not hold any more.
            self.own, self.confirmed = None, False
        self.outcome, self.order = outcome, order
        if not sent_together and order >= self._probe_order:
            # The answer to an earlier attempt leaves the attempt that asks the only one.
            self.probe_at = now
            self._probed_at = float("-inf")
        named = outcome.retry_after if outcome.kind is Kind.DAILY_LIMIT else None
        self.reset_at = now + named if named and self._fruitless < FRUITLESS else None
        self.in_force = self.in_force or repeats or self.reset_at is not None

    def _note_own(self, outcome: Outcome, order: int, last_order: int, sent_at: float, now: float) -> None:
        """Record a rejecting answer to this process."""
        before, answer = self.answer, outcome.answer
        if before is None or answer is None or answer.credential != before.credential:
            self.confirmed, self._own_until, self._asked = False, last_order, None
            self._own_since, self._asked_at = now, sent_at
        elif order > self._own_until:
            self.confirmed = True
        self._asked_at = max(self._asked_at, sent_at)
        self.own = outcome if answer is not None else None

    def waits(self, deadline: float) -> bool:
        """Return whether a call with that deadline waits for the reset."""
        return self.reset_at is not None and self.reset_at <= deadline

    def replays(self, deadline: float, began_at: float, now: float) -> bool:
        """Return whether a call that began at `began_at` gets the kept answer at `now`; else it waits, or asks."""
        if not self.confirmed or self.waits(deadline):
            return False
        return began_at < self._asked_at and now >= self._own_since + REPEATED_AFTER

    def opens_at(self, deadline: float, now: float) -> float:
        """Return when a call with that deadline may be sent, if it does not get the kept answer."""
        judged_at = self._probed_at + self._grace
        if self.waits(deadline):
            assert self.reset_at is not None, "it waits for a reset"
            return max(self.reset_at, judged_at if self._probed_at >= self.reset_at else now)
        if self.confirmed:
            return max(now, judged_at)
        return self._asked[1] + self._grace if self.holding is not None and self._asked is not None else now

    def rests_until(self, now: float) -> float:
        """Return until when a caller that does not wait, and may have another choice, leaves the key alone."""
        opens = self.opens_at(INFINITY, now)
        return max(opens, self.probe_at + REST_SECONDS) if self.confirmed and self.reset_at is None else opens

    def may_probe(self, now: float) -> bool:
        """Return whether an attempt sent at `now` asks if the rejection lasts."""
        begins = self.probe_at
        if self.reset_at is not None and now >= self.reset_at:
            begins = max(begins, self.reset_at)
        return now >= begins > self._probed_at

    def may_ask(self, now: float) -> bool:
        """Return whether a call of this process that is sent at `now` asks for the others, beyond learned limits."""
        if self.answer is None:
            return self.outcome.answer is not None and self._asked is None
        return self.confirmed and self.may_probe(now)

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


def in_force(rejection: KeyRejection | None) -> KeyRejection | None:
    """Return a rejection that calls get or wait for; None for one that is not confirmed."""
    return rejection if rejection is not None and rejection.in_force else None
