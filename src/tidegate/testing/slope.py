"""The limit on how fast a client may become faster: spike arrest, acceleration limits."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tidegate.testing.limiters import Level, Limiter, Reason


class Slope(Limiter):
    """In any `window` at most `growth` times what was let in during the one before it, and `limit` at the least."""

    reason = Reason.SLOPE

    def __init__(self, name: str = "slope", *, limit: float, window: float, growth: float = 1.5) -> None:
        super().__init__(name, "requests", limit=limit, window=window)
        self._growth = growth
        self._admitted: deque[float] = deque()
        """Instants of the last two windows."""

    def _counts(self, now: float) -> tuple[int, int]:
        """Calls let in during the window that ends now, and during the one before."""
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
            # When this one has left the window, the window before it has it; others have left that one meanwhile.
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
        """The state at `now`; its limit is what is allowed then."""
        _, before = self._counts(now)
        left, reset = self.remaining(now), self.reset_after(now)
        return Level(self.name, self.unit, self.reason, self._allowed(before), left, reset, self.window)

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, Slope):
            self._admitted = previous._admitted
