"""Boundaries of a fixed window, computed from their signs.

Theory of operation. A sign of a boundary is an interval of *send* instants in which the boundary lies, because a
request sent after the boundary arrives after it. The schedule intersects the signs of one boundary, and calls wait
until the later end (`FixedWindowMirror.ready_at`). The distance of two signs is a whole number of periods. A declared
period is certain. Any other is the provider's usual one until two signs deny it, and certain once they agree on it.

`QuotaMirror.stated_by` bounds the wait for a quota of any kind by its newest stated reset. `QuotaCharges.ready_at`
takes the latest instant of all quotas.
"""

from __future__ import annotations

from math import isfinite

from tidegate.core.values import INFINITY, QuotaReading, ResetInstant
from tidegate.core.window_bounds import COARSE_ROUNDING_SECONDS, NATURAL_WINDOWS_SECONDS, snap, usable_window

SAME_BOUNDARY_SHARE = 0.25
"""Share of a period (or of the shortest window) within which two signs are of one boundary."""

AGREEING_PERIOD_SHARE = 0.05
"""Share within which two measures of a period agree."""


def boundary_of(reading: QuotaReading, sent_at: float, now: float) -> tuple[float, float]:
    """Return the earliest and latest instant of the boundary that an answer states, in monotonic seconds."""
    after = reading.reset_after or 0.0
    if reading.instant is not None:
        return now + after - reading.instant.rounding, now + after + reading.resolution
    if reading.from_receipt:
        return now + after - reading.resolution, now + after + reading.resolution
    rounding = reading.resolution if reading.resolution >= COARSE_ROUNDING_SECONDS else 0.0
    return sent_at + after - rounding, now + after + rounding


class ResetSchedule:
    """The boundaries of one quota: the next one lies between `low` and `high` (None: no sign yet).

    `period` is in seconds; `known` says that it is certain. If the schedule is not `certain`, a try shows more than
    waiting for the next boundary.
    """

    __slots__ = ("_instant", "_measured", "_sign", "_told", "high", "known", "low", "period")

    def __init__(self, period: float, declared: bool) -> None:
        self.period = period
        self.low: float | None = None
        self.high: float | None = None
        self.known = declared
        self._told = False
        self._measured = 0.0
        self._sign: tuple[float, float] | None = None
        self._instant: ResetInstant | None = None

    @property
    def certain(self) -> bool:
        """Return whether the next boundary was stated, or follows from a period that is known."""
        return self._told or self.known

    def declare(self, period: float) -> None:
        self.period, self.known = period, True

    def lies(self, low: float, high: float, told: bool, instant: ResetInstant | None = None) -> None:
        """Take in that a boundary is within this interval: the next one if `told`, else the last one."""
        if not (isfinite(low) and isfinite(high)):
            # An absurd reset: it says nothing.
            return
        last, before = self._sign, self._instant
        if instant is not None:
            self._instant = instant
        if last is not None and low - last[1] < SAME_BOUNDARY_SHARE * min(self.period, NATURAL_WINDOWS_SECONDS[0]):
            low, high = _both((low, high), last)
            self._told = self._told or told
        else:
            if last is not None and not self.known:
                if instant is not None and before is not None:
                    # Two instants of one clock are apart by whole periods, but for their rounding.
                    apart = instant.reset - before.reset
                    self._measure(apart - instant.rounding, apart + instant.rounding)
                else:
                    self._measure(low - last[1], high - last[0])
            if last is not None and self.known:
                low, high = self._narrowed(low, high, last)
            self._told = told
        self._sign = low, high
        step = 0.0 if told else self.period
        self.low, self.high = low + step, high + step

    def passed(self, now: float) -> tuple[float, float] | None:
        """Return the last boundary if one was passed since the last look; the next one is a period later."""
        if self.low is None or self.high is None or now < self.high:
            return None
        gone = (now - self.high) // self.period
        if not -INFINITY < gone < INFINITY:
            # An absurd reset: no boundary is known from it.
            self.low = self.high = None
            return None
        periods = int(gone)
        low, high = self.low + periods * self.period, self.high + periods * self.period
        self.low, self.high = low + self.period, high + self.period
        self._told = False
        return low, high

    def _measure(self, shortest: float, longest: float) -> None:
        # Between two signs lie no others while there is traffic: every boundary shows in it.
        if shortest <= self.period <= longest:
            self.known = True
            return
        natural = snap(max(0.0, shortest), longest)
        middle = natural or (shortest + longest) / 2
        fits = self._measured and abs(middle - self._measured) <= AGREEING_PERIOD_SHARE * middle
        self.known = natural is not None or bool(fits)
        self.period, self._measured = usable_window(middle, self.period), middle

    def _narrowed(self, low: float, high: float, last: tuple[float, float]) -> tuple[float, float]:
        # The last sign, some periods on, says the same of this boundary, unless they contradict: then the newer.
        apart = (low + high - last[0] - last[1]) / 2 / self.period
        if not isfinite(apart):
            return low, high
        periods = round(apart)
        first, second = last[0] + periods * self.period, last[1] + periods * self.period
        return _both((low, high), (first, second))


def _both(newer: tuple[float, float], older: tuple[float, float]) -> tuple[float, float]:
    """Return what two intervals have in common; the newer where that is nothing."""
    common = max(newer[0], older[0]), min(newer[1], older[1])
    return common if common[0] <= common[1] else newer
