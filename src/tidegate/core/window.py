"""A local copy of a provider's quota that comes back all at once, at a boundary.

Theory of operation. In a fixed window nothing refills until the boundary, then the whole limit is there. Response k
says what remained when request k was admitted, and perhaps how long until the boundary, rounded. Every such hint
bounds the boundary from both sides; the bounds are intersected, and waiting goes to the later one. Where no header
says it, the boundary is learned from the first refusal's retry-after, or from a remaining that jumped up; until then
an empty window lets one probe through now and then and holds the rest behind it.
"""

from __future__ import annotations

from tidegate.core.bucket import DEFAULT_WINDOW, MONTH, usable_window
from tidegate.core.ledger import Debit, Ledger
from tidegate.core.vocabulary import Reading

PROBE_FIRST = 1.0
PROBE_GROWTH = 1.5
PROBE_LAST = 15.0
"""Seconds between probes of an empty window whose boundary is unknown: a quarter of a minute at most."""

BOUNDARY_GUARD = 0.02
"""Seconds waited past a boundary, so that a request does not arrive just before it."""


class Window:
    """The mirror of one fixed-window quota of one key."""

    __slots__ = (
        "_anchor_at",
        "_anchor_order",
        "_began_at",
        "_boundary_high",
        "_boundary_low",
        "_exhausted",
        "_ledger",
        "_probe_at",
        "_probe_delay",
        "_remaining",
        "_reserved",
        "limit",
        "name",
        "room",
        "scale",
        "since",
        "stood",
        "unit",
        "used",
        "window",
    )

    def __init__(self, reading: Reading, now: float, default_window: float = DEFAULT_WINDOW) -> None:
        self.name = reading.name
        self.unit = reading.unit
        self.limit = max(reading.limit if reading.limit is not None else reading.remaining or 1.0, 1.0)
        self.window = usable_window(reading.window, default_window)
        self.scale = 1.0
        self.room = 0.0
        self.used, self.since, self.stood = 0.0, now, reading.remaining or 0.0
        self._remaining = self.limit
        self._anchor_order = -1
        self._anchor_at = now
        self._began_at = float("-inf")
        self._boundary_low: float | None = None
        self._boundary_high: float | None = None
        self._ledger = Ledger()
        self._reserved = 0.0
        self._exhausted = False
        self._probe_at = 0.0
        self._probe_delay = PROBE_FIRST

    @property
    def paces(self) -> bool:
        """Whether the instant at which the quota comes back is known."""
        return self._boundary_high is not None

    def level(self, now: float) -> float:
        """Units that may be spent at `now`."""
        self._roll(now)
        level = self._remaining - self._ledger.total - self._reserved
        return min(0.0, level) if self._exhausted else level

    def comes_back_at(self, now: float) -> float | None:
        """When the whole limit is there again; at the latest, where no boundary is known."""
        self._roll(now)
        return self._boundary_high + BOUNDARY_GUARD if self._boundary_high is not None else now + self.window

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which both fit: now, after the boundary, or when the next probe is due."""
        if amount + reserve <= 0.0:
            return now
        need = min(amount + reserve, self.limit)
        if self.level(now) >= need - 1e-9:
            return now
        if self._boundary_high is not None:
            return self._boundary_high + BOUNDARY_GUARD
        return max(now, self._probe_at)

    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` now and holds `reserve` until `settle`; returns the charge."""
        if self.level(now) < min(amount, self.limit) - 1e-9:
            self._postpone_probe(now)
        debit = Debit(amount, order, now)
        self._ledger.add(debit)
        self._reserved += reserve
        return debit

    def settle(self, reserve: float, produced: float, order: int, now: float) -> None:
        """Turns a reservation into a charge of what was `produced`."""
        self._reserved = max(0.0, self._reserved - reserve)
        if produced > 0.0:
            self._ledger.add(Debit(produced, order, now))

    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back the charge of a request that the provider refused."""
        self._ledger.amend(debit, 0.0)
        self._reserved = max(0.0, self._reserved - reserve)

    def overdrawn(self, now: float, retry_after: float | None) -> None:
        """The provider refused: the window is empty, whatever was counted; `retry_after` tells its boundary."""
        self._roll(now)
        self._exhausted = True
        self._postpone_probe(now)
        if retry_after:
            # Whole seconds are rounded up by those who send them.
            rounding = 1.0 if retry_after == int(retry_after) else 0.0
            self._bound(now + retry_after - rounding, now + retry_after)

    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Re-anchors the copy by the answer to the request numbered `order`, sent at `sent_at`."""
        if reading.limit is not None:
            self.limit = max(reading.limit, 1.0)
        elif reading.remaining is not None and reading.remaining > self.limit:
            self.limit = reading.remaining
        self.window = usable_window(reading.window, self.window)
        self._roll(now)
        if order <= self._anchor_order or sent_at < self._began_at:
            return
        if reading.reset_after is not None and reading.reset_after <= MONTH:
            rounding = reading.resolution if reading.resolution >= 0.5 else 0.0
            self._bound(sent_at + reading.reset_after - rounding, now + reading.reset_after + rounding)
        if reading.remaining is None:
            return
        before, outstanding = self._remaining, self._ledger.total
        self._ledger.drop_through(order)
        expected = before - (outstanding - self._ledger.total)
        if self._boundary_high is None and reading.remaining > expected + 0.5 and self._anchor_order >= 0:
            # It jumped up between the two sends: one period later it will do so again.
            self._bound(self._anchor_at + self.window, sent_at + self.window)
            self._probe_delay = PROBE_FIRST
        self._remaining = max(0.0, min(reading.remaining, self.limit))
        self._exhausted = self._exhausted and self._remaining <= 0.0
        self._anchor_order, self._anchor_at = order, sent_at

    def _postpone_probe(self, now: float) -> None:
        self._probe_at = now + self._probe_delay
        self._probe_delay = min(self._probe_delay * PROBE_GROWTH, PROBE_LAST, self.window / 4)

    def _bound(self, low: float, high: float) -> None:
        if self._boundary_low is None or self._boundary_high is None:
            self._boundary_low, self._boundary_high = low, high
            return
        new_low, new_high = max(low, self._boundary_low), min(high, self._boundary_high)
        self._boundary_low, self._boundary_high = (new_low, new_high) if new_low <= new_high else (low, high)

    def _roll(self, now: float) -> None:
        if self._boundary_low is None or self._boundary_high is None:
            return
        if now < self._boundary_high:
            return
        boundary_low, boundary_high = self._boundary_low, self._boundary_high
        periods = int((now - boundary_high) // self.window)
        self._ledger.drop_before(boundary_low + periods * self.window)
        self._remaining = self.limit
        self._exhausted = False
        self._began_at = boundary_high + periods * self.window
        step = (periods + 1) * self.window
        self._boundary_low, self._boundary_high = boundary_low + step, boundary_high + step
        self._probe_delay = PROBE_FIRST
