"""The continuously refilled bucket, and the schedule on which its refill may vary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tidegate.testing.limiters import SLACK, Limiter, Unit


class Refill:
    """The refill between two instants: a rate, times a share of it that changes on a schedule.

    `shares` are pairs (start, share), sorted by start; before the first the share is 1. With `period` the schedule
    repeats every so many seconds. This is how capacity flips and how another tenant takes its part.
    """

    __slots__ = ("_period", "_shares", "rate")

    def __init__(self, rate: float, shares: Sequence[tuple[float, float]] = (), period: float = 0.0) -> None:
        self.rate = rate
        self._shares = tuple(shares)
        self._period = period

    def between(self, start: float, end: float) -> float:
        """The amount that comes back from `start` to `end`."""
        if not self._shares:
            return self.rate * (end - start)
        total: float = 0
        for begin, until, share in self.segments(start):
            if end <= until:
                return total + self.rate * share * (end - begin)
            total += self.rate * share * (until - begin)
        return total

    def when(self, amount: float, start: float) -> float:
        """The earliest instant at which `amount` has come back since `start`."""
        if not self._shares:
            return start + amount / self.rate
        left = amount
        for begin, until, share in self.segments(start):
            supply = self.rate * share
            if not supply:
                continue
            if left <= supply * (until - begin):
                return begin + left / supply
            left -= supply * (until - begin)
        return math.inf

    def segments(self, start: float) -> Iterator[tuple[float, float, float]]:
        """(begin, until, share) from `start` on; the last one has no end, and a periodic schedule never stops."""
        period = self._period
        base: float = math.floor(start / period) * period if period else 0
        while True:
            begins: list[tuple[float, float]] = [(base, 1), *((base + at, share) for at, share in self._shares)]
            ends = [at for at, _ in begins[1:]] + [base + period if period else math.inf]
            for (begin, share), until in zip(begins, ends, strict=True):
                if until > start and until > begin:
                    yield max(begin, start), until, share
            if not period:
                return
            base += period


class ContinuousBucket(Limiter):
    """A bucket of `burst` (default `limit`), refilled by `limit / window` a second; it starts full, or with `initial`.

    OpenAI, Groq and Anthropic. A small burst is the same quota enforced over shorter periods (60 a minute as 1 a
    second); headers still announce `limit`.
    """

    def __init__(
        self,
        name: str,
        unit: Unit = "requests",
        *,
        limit: float,
        window: float,
        burst: float | None = None,
        initial: float | None = None,
        shares: Sequence[tuple[float, float]] = (),
        period: float = 0.0,
    ) -> None:
        super().__init__(name, unit, limit=limit, window=window)
        self.capacity = limit if burst is None else burst
        self._refill = Refill(limit / window, shares, period)
        self._content = self.capacity if initial is None else min(self.capacity, initial)
        self._at: float | None = None

    def remaining(self, now: float) -> float:
        """The content at `now`; the law of refilling is here and nowhere else."""
        if self._at is not None and now > self._at:
            self._content = min(self.capacity, self._content + self._refill.between(self._at, now))
        if self._at is None or now > self._at:
            self._at = now
        return self._content

    def ready_at(self, amount: float, now: float) -> float:
        missing = amount - self.remaining(now)
        if missing <= SLACK * self.capacity:
            return now
        if amount > self.capacity * (1 + SLACK):
            return math.inf
        return self._refill.when(missing, now)

    def charge(self, amount: float, now: float) -> None:
        self._content = min(self.capacity, self.remaining(now) - amount)

    def reset_after(self, now: float) -> float:
        return max(0.0, (self.capacity - self.remaining(now)) / self._refill.rate)

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, ContinuousBucket):
            self._content = min(self.capacity, previous.remaining(now))
            self._at = now
