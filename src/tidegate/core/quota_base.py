"""Base class of quota mirrors (local copies of a quota), and the log of charges that no answer has confirmed.

Theory of operation. A mirror's anchor says how many units were left when one request was admitted. Charges before that
request are in the anchor, and later ones are in the `ChargeLog`, oldest first. So an answer drops the charges up to its
request. It keeps those that it may have overtaken on their way, because the provider had not seen them.

An amount that is not finite, or absurd, would make the sum useless for good. The log books it as zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection

from tidegate.core.values import INFINITY, MAX_AMOUNT, QuotaReading, Refill

UNSEEN = 0.5
UNDERWAY = 5.0
"""Requests by which an answer may show more room than expected before it must have overtaken some, and how long those
may have been on their way, in seconds (openai: DEFAULT_TIMEOUT connect=5.0)."""


class LoggedCharge:
    """One charge against one quota.

    `estimate` is the amount before it was scaled, `mark` the sum of all charges up to this one; `answered` says that
    its call has been.
    """

    __slots__ = ("amount", "answered", "charged_at", "estimate", "live", "mark", "order")

    def __init__(self, amount: float, order: int, charged_at: float, estimate: float = 0.0) -> None:
        self.amount = amount
        self.order = order
        self.charged_at = charged_at
        self.estimate = estimate
        self.mark = 0.0
        self.answered = False
        self.live = True


class ChargeLog:
    """Charges newer than the anchor, oldest first, with their sum; every operation is amortised O(1)."""

    __slots__ = ("dropped", "entries", "total")

    def __init__(self) -> None:
        self.entries: deque[LoggedCharge] = deque()
        self.total = 0.0
        self.dropped = 0.0

    def add(self, debit: LoggedCharge) -> None:
        """Books a charge, the newest of all."""
        if not -MAX_AMOUNT <= debit.amount <= MAX_AMOUNT:
            debit.amount = 0.0
        self.entries.append(debit)
        self.total += debit.amount
        debit.mark = self.dropped + self.total

    def since(self, debit: LoggedCharge) -> float:
        """The sum of the charges made after `debit`."""
        return self.dropped + self.total - debit.mark

    def amend(self, debit: LoggedCharge, amount: float) -> float:
        """Sets a charge to `amount`; returns by how much the sum changed (0 once the anchor has passed it)."""
        if not debit.live or not -MAX_AMOUNT <= amount <= MAX_AMOUNT:
            return 0.0
        change = amount - debit.amount
        debit.amount = amount
        self.total += change
        return change

    def drop_through(
        self, order: int, sent_at: float = INFINITY, reorder: float = -INFINITY, seen: float = INFINITY
    ) -> float:
        """Forgets the charges numbered up to `order`; returns the sum of their estimates.

        What is unanswered stays where the request sent at `sent_at` may have overtaken it: if it was made less than
        `reorder` seconds before, and the latest of it if not more than `seen` units had been charged by then.
        """
        entries = self.entries
        due: list[LoggedCharge] = []
        while entries and entries[0].order <= order:
            due.append(entries.popleft())
        pending = [debit for debit in due if not debit.answered]
        stays = _overtaken(due, pending, sent_at, reorder, seen) if pending else ()
        estimates = 0.0
        for debit in due:
            if debit not in stays:
                self._forget(debit)
                estimates += debit.estimate
        entries.extendleft(debit for debit in reversed(due) if debit in stays)
        if not entries:
            self.total = 0.0
        return estimates

    def drop_before(self, instant: float) -> None:
        """Forgets the charges made before `instant` (monotonic seconds)."""
        while self.entries and self.entries[0].charged_at < instant:
            self._forget(self.entries.popleft())
        if not self.entries:
            self.total = 0.0

    def _forget(self, debit: LoggedCharge) -> None:
        debit.live = False
        self.total -= debit.amount
        self.dropped += debit.amount


def _overtaken(
    due: list[LoggedCharge], pending: list[LoggedCharge], sent_at: float, reorder: float, seen: float
) -> Collection[LoggedCharge]:
    """Those of `pending`, the unanswered of `due`, that the provider may not have charged yet: see `drop_through`."""
    stays = {debit for debit in pending if debit.charged_at >= sent_at - reorder}
    unseen = sum(debit.amount for debit in due if debit not in stays) - seen
    for debit in reversed(pending):
        if unseen <= UNSEEN or debit.charged_at < sent_at - UNDERWAY:
            break
        if debit not in stays:
            stays.add(debit)
            unseen -= debit.amount
    return stays


OVERTAKEN = 0.1
"""Seconds within which requests may overtake each other on their way, so that an answer may have seen them or not."""


class QuotaMirror(ABC):
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

    def __init__(self, reading: QuotaReading, now: float) -> None:
        self.name = reading.name
        self.unit = reading.unit
        self.limit = max(reading.limit if reading.limit is not None else reading.remaining or 1.0, 1.0)
        self.scale = 1.0
        self.room = 0.0
        self.used, self.since, self.stood = 0.0, now, reading.remaining or 0.0
        self.ledger = ChargeLog()
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
    def is_predictable(self) -> bool:
        """Return whether the instant of the next free unit is known."""
        return True

    @abstractmethod
    def level(self, now: float) -> float:
        """Units that may be spent at `now`, in the provider's count; negative where more is promised than is there."""

    def resets_at(self, now: float) -> float | None:
        """When the whole limit is there again all at once; None where it comes back bit by bit."""
        return None

    @abstractmethod
    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """Return the earliest instant at which `amount` and `reserve` fit; more than the limit fits alone."""

    @abstractmethod
    def debit(self, amount: float, reserve: float, order: int, now: float) -> LoggedCharge:
        """Charges `amount` now and holds `reserve` until `settle`; returns the charge, to be amended or refunded."""

    def settle(self, reserve: float, produced: float, order: int, sent_at: float, now: float) -> None:
        """Turns the reservation of what was sent at `sent_at` into a charge of what was `produced`.

        It is below zero where a part of the charge comes back.
        """
        self.reserved = max(0.0, self.reserved - reserve)
        if produced:
            self._charge(LoggedCharge(produced, order, now))

    @abstractmethod
    def refund(self, debit: LoggedCharge, reserve: float) -> None:
        """Takes back the charge of a request that the provider refused: it was not debited there."""

    @abstractmethod
    def on_refused(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """The provider refused what was sent at `sent_at`; `retry_after` is in seconds, where it said one."""

    @abstractmethod
    def observe(
        self, reading: QuotaReading, order: int, sent_at: float, now: float, debit: LoggedCharge | None
    ) -> None:
        """Re-anchors the copy by the answer to the request numbered `order`, sent at `sent_at`, charged `debit`."""

    def _charge(self, debit: LoggedCharge) -> None:
        self.ledger.add(debit)
