"""Clock of one provider, as an interval of its distance from the local monotonic clock.

Theory of operation. A `date` header is cut to whole seconds, and was written between the sending of the request and the
receipt of the answer. So each answer bounds the distance of the two clocks: by a second and the latency. The bounds of
all answers are intersected. Over some answers, one was written just before a full second and another just after it.
What then remains is about the shortest latency.

With it, a reset that is an instant (RFC 3339) becomes a time in seconds that the rounding of `date` does not touch.
"""

from __future__ import annotations

from tidegate.core.values import INFINITY, QuotaReading

DATE_ROUNDING = 1.0
"""Seconds to which a `date` header is cut (RFC 9110, section 5.6.7)."""

DRIFT = 1e-4
"""Seconds a second by which two clocks may run apart. Raising it forgets what is known sooner. Source: crystal
oscillators are within 100 parts in a million; no answer tells the drift of the next one."""


class ServerClock:
    """Distance of a provider's clock (seconds since 1970) from the local monotonic one, between two bounds."""

    __slots__ = ("_at", "_high", "_low")

    def __init__(self) -> None:
        self._low, self._high = -INFINITY, INFINITY
        self._at = 0.0

    def saw(self, dated: float, sent_at: float, now: float) -> None:
        """Take note of an answer that is `dated` so (seconds since 1970), to a request sent at `sent_at`."""
        drift = DRIFT * max(0.0, now - self._at)
        seen = dated - now, dated + DATE_ROUNDING - sent_at
        low, high = max(seen[0], self._low - drift), min(seen[1], self._high + drift)
        if low > high:
            low, high = seen  # one of the clocks was set
        self._low, self._high, self._at = low, high, now

    def timed(self, reading: QuotaReading, sent_at: float, now: float) -> QuotaReading:
        """Return a reading whose reset is an instant with its reset in seconds from `now`, the receipt, on."""
        instant = reading.instant
        if instant is None:
            return reading
        self.saw(instant.dated, sent_at, now)
        return reading._replace(
            reset_after=max(0.0, instant.reset - self._high - now),
            resolution=instant.rounding + self._high - self._low,
        )
