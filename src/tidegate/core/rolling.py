"""A local copy of a provider's quota that holds in any window: what was taken comes back one window later.

Theory of operation. Every charge made here is kept until its window is over, confirmed or not; what others took shows
in the answers, as a remaining that is lower than these charges explain, and is taken to have been taken just then.

    level(now) = limit − (charged in the last window) − (taken by others in the last window)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import merge
from operator import attrgetter

from tidegate.core.ledger import Debit, Ledger
from tidegate.core.vocabulary import Reading, Refill

RETURN_GUARD = 0.02
"""Seconds waited past the return of a unit, so that a request does not arrive just before it."""

ROUNDING = 0.5
"""Units by which a reading must differ from the charges before it means anything."""

_charged_at = attrgetter("charged_at")


class Rolling:
    """The mirror of one rolling-window quota of one key; `window` is in seconds."""

    __slots__ = (
        "_anchor_order",
        "_others",
        "_theirs",
        "ledger",
        "limit",
        "name",
        "reserved",
        "room",
        "scale",
        "since",
        "stood",
        "unit",
        "used",
        "window",
    )

    turned: Refill | None = None

    def __init__(self, reading: Reading, now: float, window: float, taken: Iterable[tuple[float, float]] = ()) -> None:
        """`taken` says what was taken when, before this copy was made: (instant, units), oldest first."""
        self.name = reading.name
        self.unit = reading.unit
        self.limit = max(reading.limit if reading.limit is not None else reading.remaining or 1.0, 1.0)
        self.window = window
        self.scale = 1.0
        self.room = 0.0
        self.used, self.since, self.stood = 0.0, now, reading.remaining or 0.0
        self.ledger = Ledger()
        self.reserved = 0.0
        self._anchor_order = -1
        self._others = deque(Debit(amount, 0, at) for at, amount in taken)
        self._theirs = sum(debit.amount for debit in self._others)

    @property
    def paces(self) -> bool:
        """True: the instant of the next free unit is known."""
        return True

    def level(self, now: float) -> float:
        """Units that may be spent at `now`."""
        self._expire(now - self.window)
        return self.limit - self.ledger.total - self._theirs - self.reserved

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which both fit; what is above the limit fits alone."""
        if amount + reserve <= 0.0:
            return now
        missing = min(amount + reserve, self.limit) - self.level(now)
        if missing <= 1e-9 * self.limit:
            return now
        for debit in merge(self.ledger.entries, self._others, key=_charged_at):
            missing -= debit.amount
            if missing <= 1e-9 * self.limit:
                return debit.charged_at + self.window + RETURN_GUARD
        return now + self.window

    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` now and holds `reserve` until `settle`; returns the charge."""
        debit = Debit(amount, order, now)
        self.ledger.add(debit)
        self.reserved += reserve
        return debit

    def settle(self, reserve: float, produced: float, order: int, now: float) -> None:
        """Turns a reservation into a charge of what was `produced`."""
        self.reserved = max(0.0, self.reserved - reserve)
        if produced > 0.0:
            self.ledger.add(Debit(produced, order, now))

    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back the charge of a request that the provider refused."""
        self.ledger.amend(debit, 0.0)
        self.reserved = max(0.0, self.reserved - reserve)

    def overdrawn(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """The provider refused although this copy saw room: others took it, and it comes back when the refusal says."""
        room = self.level(now)
        if room > 0.0:
            self._others.append(Debit(room, 0, now - self.window + (retry_after or 0.0)))
            self._theirs += room

    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Compares the copy with the answer to the request numbered `order`, sent at `sent_at`."""
        if reading.limit is not None:
            self.limit = max(reading.limit, 1.0)
        if reading.remaining is None or order <= self._anchor_order:
            return
        self._anchor_order = order
        self._expire(sent_at - self.window)
        later = 0.0
        for each in reversed(self.ledger.entries):
            if each.order <= order:
                break
            later += each.amount
        others = self.limit - reading.remaining - (self.ledger.total - later)
        if others > self._theirs + ROUNDING:
            self._others.append(Debit(others - self._theirs, 0, sent_at))
            self._theirs = others
        while self._others and others < self._theirs - ROUNDING:
            newest = self._others[-1]
            back = min(newest.amount, self._theirs - others)
            newest.amount -= back
            self._theirs -= back
            if newest.amount <= 0.0:
                self._others.pop()

    def _expire(self, instant: float) -> None:
        self.ledger.drop_before(instant - RETURN_GUARD)
        while self._others and self._others[0].charged_at < instant - RETURN_GUARD:
            self._theirs -= self._others.popleft().amount
        if not self._others:
            self._theirs = 0.0
