"""Limiters of a provider as pure state machines: the server's knowledge, which a client must learn.

Theory of operation. Each limiter answers `ready_at(amount, now)`: the earliest instant at which `amount` fits if no
other call takes anything. That is `now` if it fits already, and infinity if time alone does not help. `charge` may be
called only if it fits now. `ready_at` charges nothing. Time is an argument, in seconds from any origin, and never runs
backward. No clock is read here, so the same code serves the provider over HTTP, virtual time and the oracle.

Arithmetic is generic: with `int` or `Fraction` arguments the laws hold exactly. The laws: no more than L + r·dt in any
interval; refilling a, then b, is refilling a + b. `SLACK` tolerates the last bits of floats.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator

Unit = Literal["requests", "tokens", "input_tokens", "output_tokens"]

SLACK = 1e-9
"""Relative tolerance of every comparison. Chosen: a float that should be 1 may be 0.9999999999."""

DAY = 86_400.0

Amount = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
"""Amount that may be infinite, which JSON writes as null."""


class Reason(StrEnum):
    """Reasons for a refusal, in the order in which a provider checks: the first one that refuses is reported."""

    OUTAGE = "outage"
    MONEY = "money"
    TOO_LARGE = "too_large"
    DAY = "day"
    RATE = "rate"
    SLOPE = "slope"
    SLOTS = "slots"


@dataclass(frozen=True, slots=True)
class Level:
    """State of a limiter at one instant.

    `remaining` may be negative (in debt after settling). `reset_after` is in seconds until full (bucket) or until the
    boundary (windows). `window` is in seconds, 0 if there is none.
    """

    name: str
    unit: Unit
    reason: Reason
    limit: Amount
    remaining: Amount
    reset_after: float
    window: float


class Limiter:
    """Base class of the limiters, which admits everything. `capacity` is the largest amount that can ever fit.

    `statuses` has the statuses of its refusals in turn, where the dialect does not decide.
    """

    reason = Reason.RATE

    def __init__(self, name: str, unit: Unit = "requests", *, limit: float = math.inf, window: float = 0.0) -> None:
        self.name = name
        self.unit = unit
        self.limit = limit
        self.window = window
        self.capacity = limit
        self.statuses: Iterator[int] | None = None

    def ready_at(self, amount: float, now: float) -> float:
        """Return the earliest instant at which `amount` fits: `now` if already, infinity if time does not help."""
        return now

    def charge(self, amount: float, now: float) -> None:
        """Take `amount`. An excess becomes debt; a negative amount is given back."""

    def refuse(self, amount: float, now: float) -> float:
        """Note an attempt that this limiter refuses at `now`; return the earliest instant at which its amount fits."""
        return self.ready_at(amount, now)

    def finish(self, now: float) -> None:
        """End a call that was charged here."""

    def foresee(self) -> None:
        """Let the oracle decide what is drawn otherwise."""

    def adopt(self, previous: Limiter, now: float) -> None:
        """Continue from the state of a limiter that this one replaces during a run."""

    def remaining(self, now: float) -> float:
        """Return the amount left, negative in debt."""
        return math.inf

    def reset_after(self, now: float) -> float:
        """Return the seconds until everything is back."""
        return 0.0

    def level(self, now: float) -> Level:
        """Return the state at `now`."""
        return Level(
            self.name, self.unit, self.reason, self.limit, self.remaining(now), self.reset_after(now), self.window
        )


class FixedWindow(Limiter):
    """Fixed window: at most `limit` between boundaries, which are at `offset` + k·`window` and restore everything.

    Azure, Mistral and Gemini use it. A boundary clears a debt too.
    """

    def __init__(self, name: str, unit: Unit = "requests", *, limit: float, window: float, offset: float = 0.0) -> None:
        super().__init__(name, unit, limit=limit, window=window)
        self._offset = offset
        self._used: float = 0
        self._index: int | None = None

    def _boundary(self, now: float) -> float:
        """Return the next boundary; one that has passed clears the used amount."""
        index = math.floor((now - self._offset) / self.window)
        if self._offset + (index + 1) * self.window <= now:
            index += 1
        if self._index is None or index > self._index:
            self._index = index
            self._used = 0
        return self._offset + (index + 1) * self.window

    def remaining(self, now: float) -> float:
        self._boundary(now)
        return self.limit - self._used

    def ready_at(self, amount: float, now: float) -> float:
        boundary = self._boundary(now)
        if self._used + amount <= self.limit * (1 + SLACK):
            return now
        return boundary if amount <= self.limit * (1 + SLACK) else math.inf

    def charge(self, amount: float, now: float) -> None:
        self._boundary(now)
        self._used = max(0, self._used + amount)

    def reset_after(self, now: float) -> float:
        return self._boundary(now) - now

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, FixedWindow) and previous.window == self.window:
            self._boundary(now)
            self._used = previous.limit - previous.remaining(now)


class DayQuota(FixedWindow):
    """Fixed window of a day, whose refusals say "per day"."""

    reason = Reason.DAY

    def __init__(
        self, name: str, unit: Unit = "requests", *, limit: float, window: float = DAY, offset: float = 0.0
    ) -> None:
        super().__init__(name, unit, limit=limit, window=window, offset=offset)


class RollingWindow(Limiter):
    """Rolling window: at most `limit` in the last `window` seconds; an amount taken at t is back at t + `window`."""

    def __init__(self, name: str, unit: Unit = "requests", *, limit: float, window: float) -> None:
        super().__init__(name, unit, limit=limit, window=window)
        self._taken: deque[tuple[float, float]] = deque()
        self._used: float = 0

    def remaining(self, now: float) -> float:
        while self._taken and self._taken[0][0] + self.window <= now:
            self._used -= self._taken.popleft()[1]
        if not self._taken:
            self._used = 0
        return self.limit - self._used

    def ready_at(self, amount: float, now: float) -> float:
        missing = amount - self.remaining(now)
        if missing <= SLACK * self.limit:
            return now
        for at, taken in self._taken:
            missing -= taken
            if missing <= SLACK * self.limit:
                return at + self.window
        return math.inf

    def charge(self, amount: float, now: float) -> None:
        self.remaining(now)
        if amount > 0:
            self._taken.append((now, amount))
            self._used += amount
            return
        back = -amount
        while back > 0 and self._taken:
            at, taken = self._taken.pop()
            kept = max(0, taken - back)
            self._used -= taken - kept
            back -= taken - kept
            if kept:
                self._taken.append((at, kept))

    def reset_after(self, now: float) -> float:
        self.remaining(now)
        return self._taken[-1][0] + self.window - now if self._taken else 0.0

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, RollingWindow):
            previous.remaining(now)
            self._taken, self._used = previous._taken, previous._used


class Slots(Limiter):
    """Concurrency limit: at most `limit` calls in flight. It refuses with `status` (429, 503 or 529) and no time."""

    reason = Reason.SLOTS

    def __init__(self, name: str = "slots", *, limit: float, status: int = 503) -> None:
        super().__init__(name, "requests", limit=limit)
        self.status = status
        self._taken = 0

    def remaining(self, now: float) -> float:
        return self.limit - self._taken

    def ready_at(self, amount: float, now: float) -> float:
        return now if self._taken < self.limit else math.inf

    def charge(self, amount: float, now: float) -> None:
        self._taken += 1

    def finish(self, now: float) -> None:
        self._taken -= 1

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, Slots):
            self._taken = previous._taken


class Credit(Limiter):
    """Money for `limit` calls; it refuses all calls after them for ever."""

    reason = Reason.MONEY

    def __init__(self, name: str = "money", *, limit: float = 0) -> None:
        super().__init__(name, "requests", limit=limit)
        self._used: float = 0

    def remaining(self, now: float) -> float:
        return self.limit - self._used

    def ready_at(self, amount: float, now: float) -> float:
        return now if self._used < self.limit else math.inf

    def charge(self, amount: float, now: float) -> None:
        self._used += 1

    def adopt(self, previous: Limiter, now: float) -> None:
        if isinstance(previous, Credit):
            self._used = previous._used


class Outage(Limiter):
    """Outage from `start` (inclusive) to `end` (exclusive), in which nothing is admitted.

    The answer is `status`, or a dropped connection if that is None.
    """

    reason = Reason.OUTAGE

    def __init__(self, name: str = "outage", *, start: float, end: float, status: int | None = 503) -> None:
        super().__init__(name)
        self.start = start
        self.end = end
        self.status = status

    def ready_at(self, amount: float, now: float) -> float:
        return self.end if self.start <= now < self.end else now
