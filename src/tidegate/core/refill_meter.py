"""Measures of a quota's refill by answers and refusals alone, where resets say too little or too much.

What comes back between answers bounds the window from above (`RefillMeter`). A refusal of a call for which the inferred
window has room shows that the quota comes back more slowly (`RefillCheck`).
"""

from __future__ import annotations

from tidegate.core.quota_base import OVERTAKEN_SECONDS
from tidegate.core.values import INFINITY

METERED_LIMITS = 2.0
METERED_UNITS = 32.0
"""Limits, and units, that come back in one span of `RefillMeter`: levels are whole units, so one too few is 3 %.
Measured (brief-refill): 4 limits and 32 units, and 8 limits and 64 units, give the same."""


class RefillMeter:
    """Units of one quota that came back since the answer to the request of `_since`.

    A bucket gives back no more than its rate allows. A fixed window gives back its limit at each boundary, so between
    the first and the last boundary no more, either: the greatest single return is left out. So what came back bounds
    the window, also where the resets in the answers are too coarse to show it.

    A charge that the provider did not count looks like a return. So only answers that find half of the limit left
    count: they show that the inferred window is too slow for what is sent, and not only another charge.
    """

    __slots__ = ("_charged", "_greatest", "_latest", "_level", "_since")

    def __init__(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Begin again with the next answer: what was charged until then is not certain."""
        self._since = -INFINITY

    def observe(self, level: float, charged: float, limit: float, sent_at: float) -> float:
        """Return the longest window (seconds) by an answer that found `level` left and `charged` units ever charged.

        Infinity before enough came back.
        """
        if self._since == -INFINITY:
            self._since, self._level, self._charged = sent_at, level, charged
            self._latest = self._greatest = 0.0
            return INFINITY
        returned = level - self._level + charged - self._charged
        self._greatest = max(self._greatest, returned - self._latest)
        self._latest = returned
        returned -= self._greatest
        if returned <= limit or sent_at <= self._since or level < limit / 2.0:
            return INFINITY
        longest = limit * (sent_at - self._since) / returned
        if returned >= max(METERED_UNITS, METERED_LIMITS * limit):
            self.stop()
        return longest


LEVEL_NOISE_UNITS = 1.0
"""Units by which a level may be off, added to those of `OVERTAKEN_SECONDS`: both refusals may have missed a unit by
little."""


class RefillCheck:
    """The level of one quota since its newest refusal, by the inferred window; no refusal came before `since`.

    A refusal says that nothing is left. From then on the level rises at the rate of the inferred window, and falls by
    each charge. Where a later refusal meets a level that has room for the call, the quota refills more slowly: the
    stated reset was the time until a smaller bucket is full, and not the length of a window. `_spent` units were
    charged since that refusal.
    """

    __slots__ = ("_at", "_level", "_spent", "since")

    def __init__(self) -> None:
        self.since = INFINITY
        self._level = self._at = self._spent = 0.0

    def charged(self, amount: float, rate: float, limit: float, now: float) -> None:
        self._level = min(limit, self._level + rate * (now - self._at)) - amount
        self._at = now
        self._spent += amount

    def refunded(self, amount: float, charged_at: float) -> None:
        if charged_at > self.since:
            self._level += amount
            self._spent -= amount

    def refused(self, amount: float, later: float, rate: float, limit: float, sent_at: float) -> float:
        """Return the shortest window (seconds) that a refusal of `amount` units allows; count from this refusal on.

        Return 0 where the rate does not contradict it. `later` units were charged after the call was sent. What was
        charged between both refusals has come back in that time.
        """
        level = min(limit, self._level + rate * (sent_at - self._at) + later)
        # A quota that was full since then lost refill: going back in time takes off too much.
        returned = self._spent - later
        level = max(level, min(limit, rate * (sent_at - self.since)) - returned)
        excess = min(amount + LEVEL_NOISE_UNITS + rate * OVERTAKEN_SECONDS, max(amount, limit / 2.0))
        contradicts = sent_at > self.since and level >= excess
        shortest = limit * (sent_at - self.since) / max(returned, LEVEL_NOISE_UNITS) if contradicts else 0.0
        if self.since == INFINITY or sent_at > self.since:
            self.since = self._at = sent_at
            self._level, self._spent = -later, later
        return shortest
