"""Charges that wait to be booked while every quota is ample: one entry stands for a call, and is cheap to make."""

from __future__ import annotations

from typing import Protocol

from tidegate.core.ledger import Debit
from tidegate.core.mirror import Mirror
from tidegate.core.vocabulary import PLACES, Cost

LONGEST_TAB = 128
"""Charges that wait to be booked at the most, however long no reading comes: a reading books most of them in one."""

Charge = tuple[Mirror, Debit, float]
"""A mirror, what was charged to it at send, and what is reserved in it until the answer ends."""


class Charged(Protocol):
    """The owner of a charge; `answered` says that the provider has taken it in."""

    @property
    def answered(self) -> bool: ...


class Anybody:
    """Whoever it is: unless it was `answered`, the charge stays in doubt until an answer confirms it."""

    __slots__ = ("answered",)

    def __init__(self, answered: bool) -> None:
        self.answered = answered


UNANSWERED, ANSWERED = Anybody(False), Anybody(True)

Tabbed = tuple[list[Charge], Cost, int, float, Charged]
"""Charges to be booked: where they go, their cost, the order and the instant of their sending, and whose they are."""


def drawn_together(tab: list[Tabbed], confirmed: int) -> list[Tabbed]:
    """Return what is to be booked of a tab, where a reading of the call numbered `confirmed` is about to be taken in.

    The reading drops the charges that it confirms as soon as they are made: for that, one stands for them all.
    """
    if not confirmed:
        return tab
    sums, latest, rest = [0.0] * len(PLACES), None, []
    for entry in tab:
        _, cost, order, _, call = entry
        if call.answered and order < confirmed and not cost.produced:
            sums = [total + amount for total, amount in zip(sums, cost, strict=False)]
            latest = entry
        else:
            rest.append(entry)
    if latest is None:
        return rest
    return [([], Cost(*sums), latest[2], latest[3], ANSWERED), *rest]
