"""Clock of a provider, from the instants in its answers.

Theory of operation. A `date` header is cut to whole seconds, and was written between the sending of the request and the
receipt of the answer. So each answer bounds the distance of the two clocks, within a second and the latency. The bounds
of all answers are intersected. Over some answers, one was written just before a full second and another just after it.
The remaining interval is about as wide as the shortest latency.

With it, a reset that is an instant (RFC 3339) becomes a time in seconds that the rounding of `date` does not touch.
"""

from __future__ import annotations

from collections.abc import Collection

from tidegate.core.values import INFINITY, QuotaReading

DATE_ROUNDING_SECONDS = 1.0
"""Seconds to which a `date` header is cut (RFC 9110, section 5.6.7)."""

CLOCK_DRIFT_SHARE = 1e-4
"""Seconds a second by which two clocks may run apart. Source: crystal oscillators are within 100 parts in a million; no
answer tells the drift of the next one."""


class ServerClock:
    """Distance of a provider's clock (seconds since 1970) from the local monotonic one, between two bounds."""

    __slots__ = ("_at", "_high", "_low")

    def __init__(self) -> None:
        self._low, self._high = -INFINITY, INFINITY
        self._at = 0.0

    def saw(self, dated: float, sent_at: float, now: float) -> None:
        """Take note of an answer that is `dated` so (seconds since 1970), to a request sent at `sent_at`."""
        drift = CLOCK_DRIFT_SHARE * max(0.0, now - self._at)
        seen = dated - now, dated + DATE_ROUNDING_SECONDS - sent_at
        low, high = max(seen[0], self._low - drift), min(seen[1], self._high + drift)
        if low > high:
            low, high = seen  # one of the clocks was set
        self._low, self._high, self._at = low, high, now

    def timed(self, readings: Collection[QuotaReading], sent_at: float, now: float) -> Collection[QuotaReading]:
        """Return the readings of one answer; resets that are instants become seconds from the receipt `now` on."""
        dated = next((reading.instant.dated for reading in readings if reading.instant is not None), None)
        if dated is None:
            return readings
        self.saw(dated, sent_at, now)
        return [self._timed(reading, now) for reading in readings]

    def _timed(self, reading: QuotaReading, now: float) -> QuotaReading:
        name, unit, refill, limit, remaining, _, window, _, quantum, from_receipt, instant = reading
        if instant is None:
            return reading
        after = max(0.0, instant.reset - self._high - now)
        resolution = instant.rounding + self._high - self._low
        # A new tuple, because `_replace` takes three times as long, and every answer has some.
        return QuotaReading(
            name, unit, refill, limit, remaining, after, window, resolution, quantum, from_receipt, instant
        )
