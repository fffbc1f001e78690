"""Rate of results of late, from looks at their number, and the time that the rest takes at this rate."""

from __future__ import annotations

from collections import deque

SPAN_SECONDS = 60.0
"""Seconds over which the rate is measured. Chosen: a quota per minute shows its true rate."""


class RecentRate:
    """Rate of results in the last minute, and at the beginning in the later half of the time so far.

    An opening burst is much faster than the rate that follows, so the earlier half is left out.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._began = 0.0

    def note(self, done: int, now: float) -> None:
        if not self._looks:
            self._began = now
        self._looks.append((now, done))
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPAN_SECONDS:
            self._looks.popleft()

    def clear(self) -> None:
        """Forget all looks: the results so far are no work of this run."""
        self._looks.clear()

    def seconds(self, left: int) -> float | None:
        """Return the seconds in which `left` more results come; None without a rate."""
        if not self._looks:
            return None
        first, (now, after) = self._looks[0], self._looks[-1]
        middle = (self._began + now) / 2
        later = max((look for look in self._looks if look[0] <= middle), default=first)
        then, before = later if after > later[1] else first
        return left * (now - then) / (after - before) if after > before else None
