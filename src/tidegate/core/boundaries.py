"""When a quota comes back that comes back all at once: the boundaries of its windows, one period apart.

Theory of operation. A sign says that a boundary lies in an interval of *send* instants (a request sent after it
arrives after it): a hint that was told, a reset, or a jump that was seen. Signs of one boundary are intersected, and
waiting goes to the later end. The distance of two signs is a whole number of periods. A period that was declared is
certain; another is the provider's usual one until two signs deny it, and certain once they agree on it.
"""

from __future__ import annotations

from tidegate.core.derive import NATURAL_WINDOWS, snap, usable_window

SAME = 0.25
"""Two signs less than so many periods (or of the shortest window) apart are of one boundary."""

AGREE = 0.05
"""Two measures of a period agree within this share."""


class Boundaries:
    """The boundaries of one quota: the next one lies between `low` and `high` (None: no sign yet).

    `period` is in seconds; `known` says that it is certain, and `certain` whether waiting for the next boundary is
    right, or a try would tell more.
    """

    __slots__ = ("_measured", "_sign", "_told", "high", "known", "low", "period")

    def __init__(self, period: float, declared: bool) -> None:
        self.period = period
        self.low: float | None = None
        self.high: float | None = None
        self.known = declared
        self._told = False
        self._measured = 0.0
        self._sign: tuple[float, float] | None = None

    @property
    def certain(self) -> bool:
        """Return whether the next boundary was told, or follows from a period that is known."""
        return self._told or self.known

    def declare(self, period: float) -> None:
        """The provider says how long a period is."""
        self.period, self.known = period, True

    def lies(self, low: float, high: float, told: bool) -> None:
        """A boundary lies in this interval: `told` as the next one, else one that was passed."""
        last = self._sign
        if last is not None and low - last[1] < SAME * min(self.period, NATURAL_WINDOWS[0]):
            low, high = (
                (max(low, last[0]), min(high, last[1])) if max(low, last[0]) <= min(high, last[1]) else (low, high)
            )
            self._told = self._told or told
        else:
            if last is not None and not self.known:
                self._measure(low - last[1], high - last[0])
            elif last is not None:
                low, high = self._narrowed(low, high, last)
            self._told = told
        self._sign = low, high
        step = 0.0 if told else self.period
        self.low, self.high = low + step, high + step

    def passed(self, now: float) -> tuple[float, float] | None:
        """The boundary that was passed last, if one was since the last look; then the next one is a period later."""
        if self.low is None or self.high is None or now < self.high:
            return None
        periods = int((now - self.high) // self.period)
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
        fits = self._measured and abs(middle - self._measured) <= AGREE * middle
        self.known = natural is not None or bool(fits)
        self.period, self._measured = usable_window(middle, self.period), middle

    def _narrowed(self, low: float, high: float, last: tuple[float, float]) -> tuple[float, float]:
        # The last sign, so many periods on, says the same of this boundary, unless they contradict: then the newer.
        periods = round((low + high - last[0] - last[1]) / 2 / self.period)
        first, second = last[0] + periods * self.period, last[1] + periods * self.period
        return _both((low, high), (first, second))


def _both(newer: tuple[float, float], older: tuple[float, float]) -> tuple[float, float]:
    """Return what two intervals have in common; the newer where that is nothing."""
    common = max(newer[0], older[0]), min(newer[1], older[1])
    return common if common[0] <= common[1] else newer
