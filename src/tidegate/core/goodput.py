"""The search for the concurrency beyond which answers only slow down, for a provider that never refuses.

Theory of operation. By Little's law, the number in flight is the answers a second times their latency. Answers are
sorted into levels by the number in flight when they were asked for; each level is twice the one below. While the
provider keeps up, a higher level takes no longer. Beyond its knee twice the number in flight takes twice as long, which
gains nothing. A level may bring less than `WORTH` of its due gain above a lower one, beyond what chance explains. Then
the limit becomes the answers a second times the latency below the knee, and a little more.

Latencies also change by themselves, so the cut has to prove itself. Where calls under the new limit take as long as
before, the old limit is restored and everything is forgotten. From time to time a little more is tried.
"""

from __future__ import annotations

from math import sqrt

WORTH = 0.3
"""Share of the gain that a higher level has to bring (CONTROL 3)."""

ENOUGH = 8
"""Answers from which the mean of a level is taken."""

MEMORY = 64
"""Answers of one level after which older ones count half."""

DOUBT = 1.5
"""Standard errors by which two levels must differ beyond what is asked."""

HEADROOM = 1.0
"""Share of the measured knee that is given: what is measured between two levels is rather above it than under."""

RELIEF = 0.5
"""Share of the expected relief that a cut has to bring: back to what an answer takes below the knee."""

HOLD_FIRST = 10.0
HOLD_MOST = 160.0
AGAIN = 1.5
AGAIN_AFTER = 2.0
"""Seconds before more is tried, doubling with each cut; how much more, and how often while it is worth it."""

INFINITY = float("inf")


class Level:
    """The answers of one level: how many, their latencies (seconds) with squares, and what was in flight."""

    __slots__ = ("count", "flying", "seconds", "squares")

    def __init__(self) -> None:
        self.count = self.seconds = self.squares = self.flying = 0.0

    def add(self, flying: int, seconds: float) -> None:
        """Takes in one answer."""
        if self.count >= MEMORY:
            self.count *= 0.5
            self.seconds *= 0.5
            self.squares *= 0.5
            self.flying *= 0.5
        self.count += 1.0
        self.seconds += seconds
        self.squares += seconds * seconds
        self.flying += flying

    @property
    def mean(self) -> float:
        """Mean latency."""
        return self.seconds / self.count

    @property
    def doubt(self) -> float:
        """The standard error of the mean, as a share of it."""
        mean = self.mean
        variance = max(0.0, self.squares / self.count - mean * mean)
        return sqrt(variance / self.count) / mean if mean > 0.0 else 0.0


class Goodput:
    """The answers per second of one key at each level of concurrency.

    `useful` is the limit that is worth having, infinity where none is known. Instants are monotonic seconds.
    """

    __slots__ = ("_again_at", "_cut_at", "_hold", "_levels", "_proving", "useful")

    def __init__(self) -> None:
        self.useful = INFINITY
        self._levels: dict[int, Level] = {}
        self._cut_at = -INFINITY
        self._proving = 0.0
        self._again_at = INFINITY
        self._hold = HOLD_FIRST

    def answered(self, flying: int, sent_at: float, now: float) -> bool:
        """An answer to what was sent at `sent_at` as the `flying`-th in flight; returns whether `useful` changed."""
        if sent_at < self._cut_at:
            return False
        place = flying.bit_length()
        level = self._levels.get(place)
        if level is None:
            level = self._levels[place] = Level()
        level.add(flying, now - sent_at)
        if level.count % ENOUGH:
            return False
        if self._proving:
            return self._prove(level)
        if now >= self._again_at and flying >= self.useful - 1.0:
            self.useful *= AGAIN
            self._again_at = now + AGAIN_AFTER
            return True
        return self._judge(place, level, now)

    def _judge(self, place: int, high: Level, now: float) -> bool:
        """Cuts where a level brings too little above any lower one."""
        quickest = high.mean
        futile = False
        for lower, low in self._levels.items():
            if lower >= place or low.count < ENOUGH:
                continue
            quickest = min(quickest, low.mean)
            more = high.flying / high.count * low.count / low.flying
            allowed = more / (1.0 + WORTH * (more - 1.0))
            sure = 1.0 - DOUBT * sqrt(high.doubt**2 + low.doubt**2)
            futile = futile or high.mean * sure > allowed * low.mean
        if not futile:
            return False
        self.useful = max(1.0, HEADROOM * quickest * high.flying / high.seconds)
        self._levels.clear()
        self._cut_at = now
        self._proving = high.mean - RELIEF * (high.mean - HEADROOM * quickest)
        self._again_at = now + self._hold
        self._hold = min(HOLD_MOST, 2.0 * self._hold)
        return True

    def _prove(self, level: Level) -> bool:
        """Takes a cut back that brought no relief: latencies had changed by themselves."""
        relieved = level.mean <= self._proving
        self._proving = 0.0
        if relieved:
            return False
        self._levels.clear()
        self.useful = INFINITY
        return True
