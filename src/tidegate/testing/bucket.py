"""Token buckets, with schedules of refill and size, and a limit on growth.

`ContinuousBucket` refills continuously, at a rate that may follow a schedule. `ResizedBucket` changes its limit on a
schedule and announces that, like a tier that is lowered and raised again. `Slope` limits how fast a client may become
faster: spike arrest, acceleration limits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from tidegate.testing.limiters import SLACK, Level, Limiter, Reason, Unit


class Refill:
    """Refill between two instants: a rate, times a share of it that changes on a schedule.

    `shares` are pairs (start, share), sorted by start; before the first the share is 1. With `period` the schedule
    repeats every `period` seconds. It models capacity that changes, and another tenant that takes its part.
    """

    __slots__ = ("_period", "_shares", "rate")

    def __init__(self, rate: float, shares: Sequence[tuple[float, float]] = (), period: float = 0.0) -> None:
        self.rate = rate
        self._shares = tuple(shares)
        self._period = period

    def between(self, start: float, end: float) -> float:
        """Return the amount that is refilled from `start` to `end`."""
        if not self._shares:
            return self.rate * (end - start)
        total: float = 0
        for begin, until, share in self.segments(start):
            if end <= until:
                return total + self.rate * share * (end - begin)
            total += self.rate * share * (until - begin)
        return total

    def when(self, amount: float, start: float) -> float:
        """Return the earliest instant at which `amount` has been refilled since `start`."""
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
        """Yield (begin, until, share) from `start` on. The last one has no end; a periodic schedule never stops."""
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
    """Token bucket of `burst` (default `limit`), refilled by `limit / window` a second; starts full, or with `initial`.

    OpenAI, Groq and Anthropic use it. A small burst is the same quota enforced over shorter periods (60 a minute as 1 a
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
        """Return the content at `now`, after its refill."""
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


class Slope(Limiter):
    """Limit on growth: a `window` admits at most max(`limit`, `growth` × the calls of the window before)."""

    reason = Reason.SLOPE

    def __init__(self, name: str = "slope", *, limit: float, window: float, growth: float = 1.5) -> None:
        super().__init__(name, "requests", limit=limit, window=window)
        self._growth = growth
        self._admitted: deque[float] = deque()
        """Admission instants of the last two windows."""

    def _counts(self, now: float) -> tuple[int, int]:
        """Return the calls admitted in the window that ends now, and in the one before."""
        while self._admitted and self._admitted[0] + 2 * self.window <= now:
            self._admitted.popleft()
        before = sum(at + self.window <= now for at in self._admitted)
        return len(self._admitted) - before, before

    def _allowed(self, before: int) -> float:
        return max(self.limit, self._growth * before)

    def remaining(self, now: float) -> float:
        lately, before = self._counts(now)
        return self._allowed(before) - lately

    def ready_at(self, amount: float, now: float) -> float:
        lately, before = self._counts(now)
        if lately + 1 <= self._allowed(before):
            return now
        instants = list(self._admitted)
        gone = 0
        for index, at in enumerate(islice(instants, before, None), before):
            # When this call has left the window, it is in the one before; other calls have left that one by then.
            ready = at + self.window
            while instants[gone] + 2 * self.window <= ready:
                gone += 1
            if len(instants) - index <= self._allowed(index + 1 - gone):
                return ready
        return instants[-1] + self.window

    def charge(self, amount: float, now: float) -> None:
        self._admitted.append(now)

    def reset_after(self, now: float) -> float:
        self._counts(now)
        return max(0.0, self._admitted[-1] + self.window - now) if self._admitted else 0.0

    def level(self, now: float) -> Level:
        """Return the state at `now`; its limit is the number allowed then."""
        _, before = self._counts(now)
        left, reset = self.remaining(now), self.reset_after(now)
        return Level(self.name, self.unit, self.reason, self._allowed(before), left, reset, self.window)

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, Slope):
            self._admitted = previous._admitted


MAX_STEPS = 10_000
"""Changes of size after which a wait counts as endless. Chosen: far above those of any scenario."""


class ResizedBucket(ContinuousBucket):
    """Token bucket whose limit, capacity and refill change together, by the factors in `sizes`.

    `sizes` are pairs (start, factor), like the shares of `Refill`, and repeat with `period`. Content beyond a smaller
    capacity is lost; a larger bucket fills at its own rate.
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
            if step == MAX_STEPS:
                break
            content = min(room, content + self._refill.between(begin, until))
        self._refill.rate = at_size
        return ready

    def level(self, now: float) -> Level:
        self.remaining(now)
        return super().level(now)
