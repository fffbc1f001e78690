"""A local copy of one quota: what all of its kinds can do."""

from __future__ import annotations

from typing import Protocol

from tidegate.core.ledger import Debit, Ledger
from tidegate.core.vocabulary import Reading, Refill


class Mirror(Protocol):
    """A local copy of one quota."""

    name: str
    unit: str
    limit: float
    scale: float
    room: float
    """Units that may be charged before less than half of the limit is left."""
    used: float
    """Units charged by this process from `since` on (monotonic seconds), when `stood` units were left."""
    since: float
    stood: float
    ledger: Ledger
    reserved: float

    @property
    def window(self) -> float:
        """Seconds that it counts over."""
        ...

    @property
    def declared(self) -> float | None:
        """The window where the provider says it, or where it is known for certain."""
        ...

    @property
    def turned(self) -> Refill | None:
        """How the quota comes back, where that turned out to be otherwise than this copy takes it to."""
        ...

    @property
    def paces(self) -> bool:
        """Whether the instant of the next free unit is known."""
        ...

    def level(self, now: float) -> float:
        """Units that may be spent at `now`."""
        ...

    def comes_back_at(self, now: float) -> float | None:
        """When the whole limit is there again all at once; None where it refills continuously."""
        ...

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which `amount` fits, and `reserve` with it."""
        ...

    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` and holds `reserve`."""
        ...

    def settle(self, reserve: float, produced: float, order: int, sent_at: float, now: float) -> None:
        """Turns a reservation into a charge."""
        ...

    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back what a refused request was not charged."""
        ...

    def overdrawn(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """The provider refused what was sent at `sent_at`; `retry_after` is in seconds, where it said one."""
        ...

    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Re-anchors the copy by one response."""
        ...
