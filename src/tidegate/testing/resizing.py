"""The bucket whose limit itself changes on a schedule, and says so: a tier that is lowered and raised again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.testing.bucket import ContinuousBucket, Refill
from tidegate.testing.limiters import SLACK, Level, Unit

MOST_STEPS = 10_000
"""Changes of size after which waiting is taken to be in vain."""


class ResizedBucket(ContinuousBucket):
    """A bucket of which `sizes` says from when on it is what part of itself: limit, content at most, and refill alike.

    `sizes` are pairs (start, factor) as `Refill` has its shares, and repeat with `period`. What a smaller bucket does
    not hold is lost; a larger one fills at its own rate.
    """

    def __init__(
        self,
        name: str,
        unit: Unit = "requests",
        *,
        limit: float,
        window: float,
        sizes: Sequence[tuple[float, float]],
        burst: float | None = None,
        initial: float | None = None,
        shares: Sequence[tuple[float, float]] = (),
        period: float = 0.0,
    ) -> None:
        super().__init__(
            name, unit, limit=limit, window=window, burst=burst, initial=initial, shares=shares, period=period
        )
        self._full = (limit, self.capacity, self._refill.rate)
        self._schedule = Refill(1, sizes, period)
        self._largest = max(1, *(factor for _, factor in sizes))

    def _become(self, size: float) -> None:
        limit, capacity, rate = self._full
        self.limit, self.capacity, self._refill.rate = limit * size, capacity * size, rate * size
        self._content = min(self.capacity, self._content)

    def remaining(self, now: float) -> float:
        start = now if self._at is None else self._at
        for begin, until, size in self._schedule.segments(start):
            self._become(size)
            if now < until:
                return super().remaining(now)
            self._content = min(self.capacity, self._content + self._refill.between(begin, until))
            self._at = until
        raise AssertionError("the last segment has no end")

    def ready_at(self, amount: float, now: float) -> float:
        content = self.remaining(now)
        _, capacity, rate = self._full
        if amount > capacity * self._largest * (1 + SLACK):
            return math.inf
        ready, at_size = math.inf, self._refill.rate
        for step, (begin, until, size) in enumerate(self._schedule.segments(now)):
            room, self._refill.rate = capacity * size, rate * size
            content = min(content, room)
            missing = amount - content
            if missing <= SLACK * room:
                ready = begin
            elif amount <= room * (1 + SLACK):
                ready = self._refill.when(missing, begin)
            if ready < until:
                break
            ready = math.inf
            if step == MOST_STEPS:
                break
            content = min(room, content + self._refill.between(begin, until))
        self._refill.rate = at_size
        return ready

    def level(self, now: float) -> Level:
        self.remaining(now)
        return super().level(now)
