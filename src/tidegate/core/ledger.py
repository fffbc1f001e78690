"""The charges against one quota that no answer has confirmed yet, oldest first.

Theory of operation. A bucket's anchor says what was left when one request was admitted; what was charged before that
request is in the anchor, what was charged after it is here. So an answer drops the charges up to its request, except
those that it may have overtaken on their way: the provider had not seen them.

An amount that is not finite, or absurd, would make the sum useless for good. A ledger books it as nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tidegate.core.vocabulary import MOST_AMOUNT

INFINITY = float("inf")

UNSEEN = 0.5
UNDERWAY = 5.0
"""Requests by which an answer may show more room than expected before it must have overtaken some, and how long those
may have been on their way, in seconds (openai: DEFAULT_TIMEOUT connect=5.0)."""


class Debit:
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


class Ledger:
    """Charges newer than the anchor, oldest first, with their sum; every operation is amortised O(1)."""

    __slots__ = ("dropped", "entries", "total")

    def __init__(self) -> None:
        self.entries: deque[Debit] = deque()
        self.total = 0.0
        self.dropped = 0.0

    def add(self, debit: Debit) -> None:
        """Books a charge, the newest of all."""
        if not -MOST_AMOUNT <= debit.amount <= MOST_AMOUNT:
            debit.amount = 0.0
        self.entries.append(debit)
        self.total += debit.amount
        debit.mark = self.dropped + self.total

    def since(self, debit: Debit) -> float:
        """The sum of the charges made after `debit`."""
        return self.dropped + self.total - debit.mark

    def amend(self, debit: Debit, amount: float) -> float:
        """Sets a charge to `amount`; returns by how much the sum changed (0 once the anchor has passed it)."""
        if not debit.live or not -MOST_AMOUNT <= amount <= MOST_AMOUNT:
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
        due: list[Debit] = []
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

    def _forget(self, debit: Debit) -> None:
        debit.live = False
        self.total -= debit.amount
        self.dropped += debit.amount


def _overtaken(
    due: list[Debit], pending: list[Debit], sent_at: float, reorder: float, seen: float
) -> Collection[Debit]:
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
