"""Sending carefully, where nobody knows how much is left: a few at first, then more with every step."""

from __future__ import annotations

CAREFUL = (1.0 / 256.0, 1.0 / 8.0)
"""Shares of the limit, one request at least, that the first and the last careful steps send."""


class Steps:
    """Sending carefully from `began` on: a few of `limit` units, then up to twice as many in each step of `seconds`.

    It is `trying` what is known to be empty, or spending what is supposed to be back.
    """

    __slots__ = ("_at", "_left", "_most", "_size", "began", "seconds", "trying")

    def __init__(self, limit: float, seconds: float, began: float, trying: bool) -> None:
        self.trying = trying
        low, high = CAREFUL
        self._size = self._left = max(1.0, low * limit)
        self._most = max(1.0, high * limit)
        self._at = self.began = began
        self.seconds = seconds

    def left(self, now: float) -> float:
        """Units that may go out at `now`."""
        if self._left > 0.0:
            return self._left
        return min(self._most, 2.0 * self._size) if now >= self._at + self.seconds else 0.0

    def ready_at(self, now: float) -> float:
        """When the next may go out."""
        return now if self._left > 0.0 else max(now, self._at + self.seconds)

    def charge(self, amount: float, now: float) -> None:
        """So many go out."""
        if self._left <= 0.0:
            self._size = self._left = min(self._most, 2.0 * self._size)
        self._left -= amount
        self._at = now
