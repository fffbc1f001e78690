"""The wait after a hidden bucket was drained, because calls under way may still be charged."""

from __future__ import annotations

AFTERMATH_FADES = 0.7
AFTERMATH_MOST = 1.0
AFTERMATH_FIRST = 0.3
AFTERMATH_SHARE = 0.045
"""After the bucket has been drained, calls under way may still be charged (output tokens). Nothing goes for as long
as that lasted the last time, a second at most; at first for this share of what the bucket holds: half an answer."""


class Aftermath:
    """The state of that wait for one key; instants and durations are in seconds."""

    __slots__ = ("_drained_at", "_lasts")

    def __init__(self) -> None:
        self._drained_at = self._lasts = 0.0

    def refused(self, wait: float, now: float) -> None:
        """A refusal while the rate was held, after which nobody goes for `wait`: it may have been of the aftermath."""
        if 0.0 < now - self._drained_at < AFTERMATH_MOST:
            self._lasts = now - self._drained_at + wait

    def drained(self, now: float) -> None:
        """The bucket was found to be empty."""
        self._drained_at = now

    def seconds(self, burst: float, pace: float) -> float:
        """Return how long to wait this time, at `pace` calls a second, where the bucket holds `burst` calls."""
        lasts = max(self._lasts, min(AFTERMATH_FIRST, AFTERMATH_SHARE * burst / pace))
        self._lasts *= AFTERMATH_FADES
        return lasts
