"""Check of an inferred window by refusals: what would be left if the window were right.

Theory of operation. A refusal says that nothing is left. From then on the level rises at the rate of the inferred
window, and falls by each charge. Where a later refusal meets a level that has room for the call, the quota refills more
slowly: the stated reset was the time until a smaller bucket is full, and not the length of a window.
"""

from __future__ import annotations

from tidegate.core.quota_base import OVERTAKEN
from tidegate.core.values import INFINITY

NOISE = 1.0
"""Units by which a level may be off, added to those of `OVERTAKEN`: both refusals may have missed a unit by little."""


class RefillCheck:
    """The level of one quota since its newest refusal, by the inferred window; no refusal came before `since`."""

    __slots__ = ("_at", "_level", "since")

    def __init__(self) -> None:
        self.since = INFINITY
        self._level = self._at = 0.0

    def charged(self, amount: float, rate: float, limit: float, now: float) -> None:
        self._level = min(limit, self._level + rate * (now - self._at)) - amount
        self._at = now

    def refunded(self, amount: float, charged_at: float) -> None:
        if charged_at > self.since:
            self._level += amount

    def refused(self, amount: float, later: float, rate: float, limit: float, sent_at: float) -> bool:
        """Return whether a refusal of `amount` units contradicts the rate; count from this refusal on.

        `later` units were charged after the call was sent.
        """
        level = min(limit, self._level + rate * (sent_at - self._at) + later)
        excess = min(amount + NOISE + rate * OVERTAKEN, max(amount, limit / 2.0))
        contradicts = sent_at > self.since and level >= excess
        if self.since == INFINITY or sent_at > self.since:
            self.since = self._at = sent_at
            self._level = -later
        return contradicts
