"""Limit of several backends: each request meets one of them, drawn at random, with its own part of the limit."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tidegate.testing.limiters import Level, Limiter


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
