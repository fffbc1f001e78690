"""A local copy of one quota: what all of its kinds have and can do."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidegate.core.ledger import Debit, Ledger
from tidegate.core.vocabulary import Reading, Refill

OVERTAKEN = 0.1
"""Seconds within which requests may overtake each other on their way, so that an answer may have seen them or not."""


class Mirror(ABC):
    """A local copy of one quota: `limit` of `unit`, with what was charged to it since the last answer in `ledger`.

    `reserved` is held for what is charged when its answer ends, and `scale` is what an estimated unit is worth. `room`
    says how many units may be charged before less than half of the limit is left. `used` were charged by this process
    from `since` on (monotonic seconds), when `stood` were left.
    """

    __slots__ = (
        "_anchor_order",
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
    )

    def __init__(self, reading: Reading, now: float) -> None:
        self.name = reading.name
        self.unit = reading.unit
        self.limit = max(reading.limit if reading.limit is not None else reading.remaining or 1.0, 1.0)
        self.scale = 1.0
        self.room = 0.0
        self.used, self.since, self.stood = 0.0, now, reading.remaining or 0.0
        self.ledger = Ledger()
        self.reserved = 0.0
        self._anchor_order = -1

    @property
    @abstractmethod
    def window(self) -> float:
        """Seconds that it counts over."""

    @property
    def declared(self) -> float | None:
        """The window where the provider says it, or where it is known for certain."""
        return self.window

    @property
    def turned(self) -> Refill | None:
        """Return how the quota comes back, where that turned out to be otherwise than this copy takes it to."""
        return None

    @property
    def paces(self) -> bool:
        """Return whether the instant of the next free unit is known."""
        return True

    @abstractmethod
    def level(self, now: float) -> float:
        """Units that may be spent at `now`, in the provider's count; negative where more is promised than is there."""

    def comes_back_at(self, now: float) -> float | None:
        """When the whole limit is there again all at once; None where it comes back bit by bit."""
        return None

    @abstractmethod
    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which `amount` fits, and `reserve` with it; what is above the limit fits alone."""

    @abstractmethod
    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` now and holds `reserve` until `settle`; returns the charge, to be amended or refunded."""

    def settle(self, reserve: float, produced: float, order: int, sent_at: float, now: float) -> None:
        """Turns the reservation of what was sent at `sent_at` into a charge of what was `produced`.

        It is below zero where a part of the charge comes back.
        """
        self.reserved = max(0.0, self.reserved - reserve)
        if produced:
            self._charge(Debit(produced, order, now))

    @abstractmethod
    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back the charge of a request that the provider refused: it was not debited there."""

    @abstractmethod
    def overdrawn(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """The provider refused what was sent at `sent_at`; `retry_after` is in seconds, where it said one."""

    @abstractmethod
    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Re-anchors the copy by the answer to the request numbered `order`, sent at `sent_at`, charged `debit`."""

    def _charge(self, debit: Debit) -> None:
        self.ledger.add(debit)
