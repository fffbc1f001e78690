"""Rolling window that mirrors a provider's quota: each unit comes back one window after it was taken.

Theory of operation. Every charge made here is kept until its window is over, confirmed or not. Units taken by other
clients show in a refusal. They count as taken a window before the instant at which that says they are back.

    level(now) = limit − (charged in the last window) − (taken by others in the last window)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import merge
from operator import attrgetter

from tidegate.core.quota_base import OVERTAKEN_SECONDS, RETURN_GUARD_SECONDS, LoggedCharge, QuotaMirror
from tidegate.core.values import INFINITY, QuotaReading, Refill

ARRIVAL_SPREAD_SECONDS = 0.004
MAX_ARRIVAL_SPREAD_SECONDS = 0.4
"""Seconds between the arrivals of calls sent at once (openai 3.52 over new connections: 3 ms), and most seconds of the
last one."""

_charged_at = attrgetter("charged_at")


class RollingWindowMirror(QuotaMirror):
    """The mirror of one rolling-window quota of one key; `window` is in seconds."""

    __slots__ = (
        "_arrived_at",
        "_back_at",
        "_denied",
        "_gap",
        "_late_from",
        "_late_until",
        "_others",
        "_theirs",
        "window",
    )

    window: float

    def __init__(
        self, reading: QuotaReading, now: float, window: float, taken: Iterable[tuple[float, float]] = ()
    ) -> None:
        """`taken` holds earlier charges as (instant, units), oldest first."""
        super().__init__(reading, now)
        self.window = window
        self._arrived_at = -INFINITY
        self._others = deque(LoggedCharge(amount, 0, self._arrival(at)) for at, amount in taken)
        self._theirs = sum(debit.amount for debit in self._others)
        self._denied = False
        self._gap = self._back_at = 0.0
        self._late_from, self._late_until = INFINITY, -INFINITY

    @property
    def turned(self) -> Refill | None:
        """Return `fixed` where an answer names another time than the window."""
        return "fixed" if self._denied else None

    def level(self, now: float) -> float:
        self._expire(now - self.window)
        # What is charged less at the end of an answer comes back before the charge itself does.
        return self.limit - max(0.0, self.ledger.total + self._theirs) - self.reserved

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        if amount + reserve <= 0.0:
            return now
        missing = min(amount + reserve, self.limit) - self.level(now)
        if missing <= 1e-9 * self.limit:
            return now
        for debit in merge(self.ledger.entries, self._others, key=_charged_at):
            missing -= debit.amount
            if missing <= 1e-9 * self.limit:
                return debit.charged_at + self.window + RETURN_GUARD_SECONDS
        return now + self.window

    def debit(self, amount: float, reserve: float, order: int, now: float) -> LoggedCharge:
        debit = LoggedCharge(amount, order, self._arrival(now))
        self.ledger.add(debit)
        self.reserved += reserve
        return debit

    def spread(self) -> None:
        """Take the charges of the ledger, made by another mirror, to have arrived as this one's would."""
        for debit in self.ledger.entries:
            debit.charged_at = self._arrival(debit.charged_at)

    def _arrival(self, sent_at: float) -> float:
        # Of a burst over new connections each arrives a little after the one before.
        self._arrived_at = max(
            sent_at, min(self._arrived_at + ARRIVAL_SPREAD_SECONDS, sent_at + MAX_ARRIVAL_SPREAD_SECONDS)
        )
        return self._arrived_at

    def refund(self, debit: LoggedCharge, reserve: float) -> None:
        if self._late_from <= debit.charged_at <= self._late_until and debit.amount > 0.0:
            self._back_at += self._gap
            self._correct(debit.amount, self._back_at)
        self.ledger.amend(debit, 0.0)
        self.reserved = max(0.0, self.reserved - reserve)

    def on_refused(self, sent_at: float, now: float, retry_after: float | None, amount: float = INFINITY) -> None:
        """Book the missing room as taken by others, which comes back when the refusal says."""
        wait, room = retry_after or 0.0, max(0.0, self.level(now))
        if wait >= OVERTAKEN_SECONDS:
            self._correct(room, now - self.window + wait)
            return
        # What was to be back was taken later than it was sent, over connections made one after another: so it comes,
        # first for this one and then for those of its wave that will be refused too.
        self._gap = min(RETURN_GUARD_SECONDS, max(ARRIVAL_SPREAD_SECONDS, 2.0 * wait))
        self._late_from, self._late_until = sent_at, now
        self._back_at = now - self.window + wait
        self._correct(room, self._back_at)

    def observe(
        self, reading: QuotaReading, order: int, sent_at: float, now: float, debit: LoggedCharge | None
    ) -> None:
        if reading.limit is not None:
            self.limit = max(reading.limit, 1.0)
        if debit is not None and debit.amount > 0.0 and reading.reset_after is not None and not reading.from_receipt:
            # What a call takes comes back a window later: a time that is not the window's counts to a boundary.
            self._denied = abs(reading.reset_after - self.window) > max(OVERTAKEN_SECONDS, reading.resolution)
        if reading.remaining is None or order <= self._anchor_order:
            return
        self._anchor_order = order

    def _correct(self, amount: float, at: float) -> None:
        if amount > 0.0:
            self._others.append(LoggedCharge(amount, 0, at))
            self._theirs += amount

    def _expire(self, instant: float) -> None:
        self.ledger.drop_before(instant - RETURN_GUARD_SECONDS)
        while self._others and self._others[0].charged_at < instant - RETURN_GUARD_SECONDS:
            self._theirs -= self._others.popleft().amount
        if not self._others:
            self._theirs = 0.0
