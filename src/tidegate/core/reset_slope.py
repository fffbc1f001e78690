"""Window of a continuously refilled quota by the slope of its resets, where these are instants.

Theory of operation. The instant at which a quota is full again is its admission's, and the used share of the window
later. The request was sent a little before its admission, by some unknown but similar time for all requests. So
`instant - sent` grows in a line with the used share, and its slope is the window. What delays a request on its way, and
a rounding, moves points up or down by up to a second. The lowest point of each part of the quota has the least delay
and the most that was cut, and so the difference between two such points shows neither.
"""

from __future__ import annotations

PARTS = 8
"""Parts of the limit, with one lowest point in each. Raising it leaves fewer answers to each; lowering it mixes points
far apart, whose order needs the window itself."""

APART = 0.5
"""Share of the limit by which two points must be apart. Raising it waits for a fuller use; lowering it lets the delay
of one request count for more of the window."""


class ResetSlope:
    """Lowest points (used share, seconds) of the parts of one quota."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}

    def add(self, share: float, seconds: float, window: float) -> None:
        """Add an answer that found this share used, `seconds` from its sending to its reset; `window` as known."""
        part = min(PARTS - 1, int(share * PARTS))
        lowest = self._points.get(part)
        if lowest is None or seconds - share * window < lowest[1] - lowest[0] * window:
            self._points[part] = share, seconds

    def window(self) -> float | None:
        """Return the window in seconds, or None where too little of the limit was seen."""
        if not self._points:
            return None
        first, last = self._points[min(self._points)], self._points[max(self._points)]
        apart = last[0] - first[0]
        return (last[1] - first[1]) / apart if apart >= APART else None
