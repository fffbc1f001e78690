"""The time for which no answer needs to be read, while every quota is ample."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.mirror import Mirror
from tidegate.core.vocabulary import Cost

READ_CALLS = 64
READ_SHARE = 1 / 16
READ_SECONDS = 1.0
"""While all is ample, an answer is read after so many calls, such a share of the room used, or so long: what comes
first. To read one takes as long as everything else that is done for five calls."""


class Patience:
    """Lasts for `calls` more calls, and until `until` (monotonic seconds)."""

    __slots__ = ("calls", "until")

    def __init__(self) -> None:
        self.calls, self.until = 0, 0.0

    def renew(self, charged: Iterable[tuple[Mirror, int, bool]], cost: Cost, now: float) -> None:
        """Begins anew with a call that is read; those to come cost as much, and are `charged` to these mirrors."""
        calls: float = READ_CALLS
        for mirror, place, reserves in charged:
            amount = cost[place] * mirror.scale + (cost.produced if reserves else 0.0)
            if amount > 0.0:
                calls = min(calls, READ_SHARE * mirror.room / amount)
        self.calls, self.until = int(calls), now + READ_SECONDS
