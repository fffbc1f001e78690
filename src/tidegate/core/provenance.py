"""The origin of a learned value, the number of its confirmations and its age: a measure of its confidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from tidegate.core.values import QuotaReading, Refill

MINUTE = 60.0
"""Seconds after which what an answer showed of anything but a quota is old news (most windows are of a minute)."""


class Source(StrEnum):
    """The origin of a value."""

    DEFAULT = "default"
    EARLIER_RUN = "earlier run"
    HEADERS = "headers"
    RETRY_AFTER = "retry-after"
    ANSWERS = "answers"
    REFUSALS = "refusals"
    FAILURES = "failures"
    USAGE = "usage"


STATED = frozenset({Source.HEADERS, Source.RETRY_AFTER})
"""Where the provider said it itself; anything else was inferred from what it did."""


class Confidence(StrEnum):
    """The confidence in a value."""

    STATED = "stated"
    INFERRED = "inferred"
    OLD = "old"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """One thing that a key knows: what it is `of` (`quota requests`, `concurrency`, `pause`, …) and where from.

    `count` is how many observations in a row came from there, `age` how many seconds ago the last one came (infinity
    where none did), `holds_for` for how many seconds one is news.
    """

    of: str
    origin: Source
    count: int
    age: float
    holds_for: float

    @property
    def confidence(self) -> Confidence:
        """`assumed` by default or from an earlier run; `old` where the last observation is no news; else its kind."""
        if not self.count:
            return Confidence.ASSUMED
        if self.age > self.holds_for:
            return Confidence.OLD
        return Confidence.STATED if self.origin in STATED else Confidence.INFERRED

    def __str__(self) -> str:
        if not self.count:
            return f"{self.of}: {self.confidence} ({self.origin})"
        return f"{self.of}: {self.confidence} ({self.origin}, {self.count}x, {self.age:.0f} s ago)"


class Provenance:
    """The last observations behind one value, while it is being learnt; `at` is in monotonic seconds."""

    __slots__ = ("at", "count", "origin")

    def __init__(self) -> None:
        self.origin = Source.DEFAULT
        self.count = 0
        self.at = -inf

    def taken(self, origin: Source, now: float) -> None:
        """Notes one more observation."""
        self.count = self.count + 1 if origin is self.origin else 1
        self.origin = origin
        self.at = now

    def seeded(self) -> None:
        """Notes that the value is that of an earlier run, which nothing has confirmed yet."""
        self.origin, self.count = Source.EARLIER_RUN, 0

    def learnt(self, of: str, now: float, holds_for: float = MINUTE) -> LearnedValue:
        """Return what is known now."""
        return LearnedValue(of, self.origin, self.count, now - self.at, holds_for)


class QuotaProvenance(Provenance):
    """Behind a mirror: its limit is always told; `window` is what the time over which it counts was learnt from.

    `said` is how the headers say that it comes back, whatever it turned out to be.
    """

    __slots__ = ("said", "window")

    def __init__(self) -> None:
        super().__init__()
        self.window = Source.DEFAULT
        self.said: Refill = "continuous"

    def heard(self, reading: QuotaReading, now: float) -> None:
        """Notes a reading."""
        self.taken(Source.HEADERS, now)
        self.said = reading.refill
        if reading.window is not None:
            self.window = Source.HEADERS
        elif reading.reset_after is not None and self.window is not Source.HEADERS:
            self.window = Source.ANSWERS

    def learnt_window(self, of: str, now: float, holds_for: float) -> LearnedValue:
        """Return what is known of the window now."""
        count = 0 if self.window is Source.DEFAULT else self.count
        return LearnedValue(of, self.window if self.count else self.origin, count, now - self.at, holds_for)


class LimiterProvenance:
    """Behind the gates of one key that keep no copy of a quota."""

    __slots__ = ("breaker", "limit", "pace", "pause")

    def __init__(self) -> None:
        self.limit = Provenance()
        self.pace = Provenance()
        self.pause = Provenance()
        self.breaker = Provenance()
