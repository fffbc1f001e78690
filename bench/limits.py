"""Limits that only drawn families have: several backends, refusals that count or block, slots whose number changes.

Each is a subclass of a limiter of the simulator. `VariedLimit` describes them, for providers in this process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import ClassVar

from tidegate.testing import FixedWindow, Level, Limit, Limiter, Refill, RollingWindow, Slots
from tidegate.testing.bucket import MAX_STEPS
from tidegate.testing.limiters import SLACK, Unit
from tidegate.testing.specs import LimitKind


class VariedLimit(Limit):
    """Limit with further fields.

    - `sizes`: also for slots: from then on there is that part of their number
    - `block`: for fixed: seconds for which everything is refused after a window's first refusal, at least until its
      boundary; the next window begins then
    - `counts_refused`: for rolling: whether refused attempts count as well
    - `backends`: backends behind a bucket or window of requests. Each attempt meets one, drawn by the seed, which has
      that part of the limit and announces it.
    """

    _resized: ClassVar[tuple[LimitKind, ...]] = ("bucket", "slots")

    block: float = 0.0
    counts_refused: bool = False
    backends: int = 1

    def build(self, name: str, seed: int = 0) -> Limiter:
        """Return a new limiter; `seed` draws the backends."""
        if self.backends == 1:
            limiter = self._varied(name)
        else:
            part = self.replace(limit=self.limit / self.backends, backends=1)
            limiter = Backends(name, [part.build(name) for _ in range(self.backends)], seed=seed)
        if self.statuses:
            limiter.statuses = cycle(self.statuses)
        return limiter

    def _varied(self, name: str) -> Limiter:
        if self.kind == "slots" and self.sizes:
            return ResizedSlots(name, limit=self.limit, status=self.status, sizes=self.sizes, period=self.period)
        if self.block:
            return BlockingWindow(
                name, self.unit, limit=self.limit, window=self.window, offset=self.offset, block=self.block
            )
        if self.counts_refused:
            return CountingWindow(name, self.unit, limit=self.limit, window=self.window)
        return super().build(name)


class BlockingWindow(FixedWindow):
    """Fixed window whose first refusal blocks everything for `block` seconds, and at least until the boundary.

    The next window begins then, as in rate-limiter-flexible.
    """

    def __init__(self, name: str, unit: Unit, *, limit: float, window: float, offset: float, block: float) -> None:
        super().__init__(name, unit, limit=limit, window=window, offset=offset)
        self._block = block
        self._blocked_until: float | None = None

    def _boundary(self, now: float) -> float:
        """Return the next boundary or the end of a block; one that has passed clears the used amount."""
        if self._blocked_until is not None:
            if now < self._blocked_until:
                return self._blocked_until
            self._offset, self._index, self._blocked_until = self._blocked_until, None, None
        return super()._boundary(now)

    def remaining(self, now: float) -> float:
        left = super().remaining(now)
        return left if self._blocked_until is None else 0.0

    def ready_at(self, amount: float, now: float) -> float:
        ready, boundary = super().ready_at(amount, now), self._boundary(now)
        return ready if self._blocked_until is None or ready == math.inf else boundary

    def refuse(self, amount: float, now: float) -> float:
        boundary = self._boundary(now)
        if self._blocked_until is None and amount <= self.limit * (1 + SLACK):
            self._blocked_until = max(boundary, now + self._block)
        return self.ready_at(amount, now)


class CountingWindow(RollingWindow):
    """Rolling window in which a refused attempt takes its amount as well, as in a log of all attempts."""

    def refuse(self, amount: float, now: float) -> float:
        if amount <= self.limit * (1 + SLACK):
            self.charge(amount, now)
        return self.ready_at(amount, now)


class ResizedSlots(Slots):
    """Slots whose number changes by the factors in `sizes`, pairs (start, factor) that repeat with `period`.

    Calls in flight beyond a smaller number end as usual.
    """

    def __init__(
        self, name: str, *, limit: float, status: int, sizes: Sequence[tuple[float, float]], period: float = 0.0
    ) -> None:
        super().__init__(name, limit=limit, status=status)
        self._full = limit
        self._schedule = Refill(1, sizes, period)

    def _become(self, now: float) -> None:
        _, _, factor = next(self._schedule.segments(now))
        self.limit = self._full * factor

    def remaining(self, now: float) -> float:
        self._become(now)
        return super().remaining(now)

    def ready_at(self, amount: float, now: float) -> float:
        self._become(now)
        for begin, _, factor in islice(self._schedule.segments(now), MAX_STEPS):
            if self._taken < self._full * factor:
                return begin
        return math.inf

    def level(self, now: float) -> Level:
        self._become(now)
        return super().level(now)


class Backends(Limiter):
    """Limiters of equal backends, of which `seed` draws one for each attempt, admitted or refused.

    A load balancer without a common counter does so. The level is that of the backend that the newest attempt met. An
    oracle that foresees the draws takes the fullest backend: who repeats a call at once meets each of them in the end.
    """

    def __init__(self, name: str, parts: Sequence[Limiter], *, seed: int = 0) -> None:
        first = parts[0]
        super().__init__(name, first.unit, limit=first.limit, window=first.window)
        self.capacity = first.capacity
        self._parts = tuple(parts)
        self._random = random.Random(f"{name} {seed}")
        self._foreseen = False
        self._next = self._met = self._random.choice(self._parts)

    def foresee(self) -> None:
        self._foreseen = True

    def ready_at(self, amount: float, now: float) -> float:
        if self._foreseen:
            return min(part.ready_at(amount, now) for part in self._parts)
        return self._next.ready_at(amount, now)

    def charge(self, amount: float, now: float) -> None:
        if self._foreseen:
            self._next = max(self._parts, key=lambda part: part.remaining(now))
        self._next.charge(amount, now)
        self._draw()

    def refuse(self, amount: float, now: float) -> float:
        ready_at = self._next.refuse(amount, now)
        self._draw()
        return ready_at

    def _draw(self) -> None:
        self._met, self._next = self._next, self._random.choice(self._parts)

    def remaining(self, now: float) -> float:
        return self._met.remaining(now)

    def reset_after(self, now: float) -> float:
        return self._met.reset_after(now)

    def level(self, now: float) -> Level:
        """Return the state of the backend that the newest attempt met."""
        return self._met.level(now)

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, Backends):
            for part, before in zip(self._parts, previous._parts, strict=False):
                part.adopt(before, now)
