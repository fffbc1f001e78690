"""The limiters of a provider as pure state machines: what the server knows and a client has to find out.

Every limiter answers one question, `ready_at(amount, now)`: the earliest instant at which `amount` fits if nobody else
takes anything; `now` where it fits already, infinity where time alone does not help. Only then may `charge` be called.
Asking charges nothing. Time is an argument, in seconds from any origin, and never runs backward; nothing here reads a
clock, so the same code plays the provider over HTTP, in virtual time and in the oracle.

Arithmetic is generic: with `int` or `Fraction` arguments the laws (no more than L + r·dt in any interval; refilling a,
then b, is refilling a + b) hold exactly. `SLACK` forgives the last bits of floats.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Unit = Literal["requests", "tokens", "input_tokens", "output_tokens"]
UNITS: tuple[Unit, ...] = ("requests", "tokens", "input_tokens", "output_tokens")

SLACK = 1e-9
"""Relative tolerance of every comparison: a float that should be 1 may be 0.9999999999."""

DAY = 86_400.0


class Reason(StrEnum):
    """Why a call is refused, in the order in which a provider checks: the first that refuses is the one reported."""

    OUTAGE = "outage"
    MONEY = "money"
    TOO_LARGE = "too_large"
    DAY = "day"
    RATE = "rate"
    SLOPE = "slope"
    SLOTS = "slots"


@dataclass(frozen=True, slots=True)
class Level:
    """The state of a limiter at one instant.

    `remaining` may be negative (in debt after settling); `reset_after` is in seconds until full (bucket) or until the
    boundary (windows); `window` is in seconds, 0 where there is none.
    """

    name: str
    unit: Unit
    reason: Reason
    limit: float
    remaining: float
    reset_after: float
    window: float


class Limiter:
    """Base of the limiters; itself it admits everything. `capacity` is the largest amount that can ever fit."""

    reason = Reason.RATE

    def __init__(self, name: str, unit: Unit = "requests", *, limit: float = math.inf, window: float = 0.0) -> None:
        self.name = name
        self.unit = unit
        self.limit = limit
        self.window = window
        self.capacity = limit

    def ready_at(self, amount: float, now: float) -> float:
        """The earliest instant at which `amount` fits, `now` if it fits already, infinity if time does not help."""
        return now

    def charge(self, amount: float, now: float) -> None:
        """Take `amount`; beyond what is there it goes into debt, and a negative amount is given back."""

    def finish(self, now: float) -> None:
        """A call that was charged here has ended."""

    def adopt(self, previous: Limiter, now: float) -> None:
        """Go on from the state of a limiter that this one replaces in mid-run."""

    def remaining(self, now: float) -> float:
        """Return what is left, negative in debt."""
        return math.inf

    def reset_after(self, now: float) -> float:
        """Seconds until everything is back."""
        return 0.0

    def level(self, now: float) -> Level:
        """The state at `now` as a value."""
        return Level(
            self.name, self.unit, self.reason, self.limit, self.remaining(now), self.reset_after(now), self.window
        )


class FixedWindow(Limiter):
    """At most `limit` between boundaries, which lie at `offset` + k·`window`; at a boundary everything is back.

    Azure, Mistral, Gemini. A debt is forgotten at the boundary too.
    """

    def __init__(self, name: str, unit: Unit = "requests", *, limit: float, window: float, offset: float = 0.0) -> None:
        super().__init__(name, unit, limit=limit, window=window)
        self._offset = offset
        self._used: float = 0
        self._index: int | None = None

    def _boundary(self, now: float) -> float:
        """The next boundary; passing one forgets what was used."""
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
    """A fixed window of a day whose refusals say "per day"."""

    reason = Reason.DAY

    def __init__(
        self, name: str, unit: Unit = "requests", *, limit: float, window: float = DAY, offset: float = 0.0
    ) -> None:
        super().__init__(name, unit, limit=limit, window=window, offset=offset)


class RollingWindow(Limiter):
    """At most `limit` in the last `window` seconds, at every instant: what was taken at t is back at t + `window`."""

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
    """At most `limit` calls in flight; beyond, it refuses with `status` (429, 503 or 529) and cannot say until when."""

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
    """Money for `limit` calls, and none after that: refused for ever."""

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
    """Nothing is admitted from `start` (inclusive) to `end` (exclusive).

    The answer is `status`, or a dropped connection where that is None.
    """

    reason = Reason.OUTAGE

    def __init__(self, name: str = "outage", *, start: float, end: float, status: int | None = 503) -> None:
        super().__init__(name)
        self.start = start
        self.end = end
        self.status = status

    def ready_at(self, amount: float, now: float) -> float:
        return self.end if self.start <= now < self.end else now
