"""Provenance of learned values: origin, number of confirmations and age, which together give the confidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.core.values import INFINITY, QuotaReading, Refill, Source

OLD_OBSERVATION_SECONDS = 60.0
"""Seconds after which an observation of anything but a quota is old. Chosen: most windows are of a minute."""


STATED = frozenset({Source.HEADERS, Source.RETRY_AFTER})
"""Origins in which the provider stated the value itself; others are inferred from its behaviour."""


class Confidence(StrEnum):
    """Confidence in a value."""

    STATED = "stated"
    INFERRED = "inferred"
    OLD = "old"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """Value that a key has learned: its name `of` (`quota requests`, `concurrency`, `pause`, …) and its origin.

    `count` is the number of observations in a row from that origin. `age` is the seconds since the last one, infinity
    where there was none. An observation is new for `holds_for` seconds.
    """

    of: str
    origin: Source
    count: int
    age: float
    holds_for: float

    @property
    def confidence(self) -> Confidence:
        """Return `assumed` without observations, `old` after `holds_for` seconds, else `stated` or `inferred`."""
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
    """Last observations behind one learned value; `at` is in monotonic seconds."""

    __slots__ = ("at", "count", "origin")

    def __init__(self) -> None:
        self.origin = Source.DEFAULT
        self.count = 0
        self.at = -INFINITY

    def record(self, origin: Source, now: float) -> None:
        self.count = self.count + 1 if origin is self.origin else 1
        self.origin = origin
        self.at = now

    def seeded(self) -> None:
        self.origin, self.count = Source.EARLIER_RUN, 0

    def learnt(self, of: str, now: float, holds_for: float = OLD_OBSERVATION_SECONDS) -> LearnedValue:
        return LearnedValue(of, self.origin, self.count, now - self.at, holds_for)


SAME_WINDOW_SHARE = 0.01
"""Relative difference below which two inferred windows are the same. Chosen: texts show windows in three digits."""


CONFIRMING_ROUNDS = 2
"""Rounds of requests, each sent after the answers to the one before, that confirm an inferred window. Measured: with
one, a burst of 6 that takes 2 s confirms itself."""


class QuotaProvenance(Provenance):
    """Provenance of the local copy of a quota;

    `window` says where the length of its window was learned. `said` is the kind of refill that the headers state, which
    may be wrong. `reported_window` is the window in seconds for users: an inferred one is reported once later requests
    have confirmed it. `retold` says that it has changed since the last event.
    """

    __slots__ = ("_inferred", "_inferred_at", "_rounds", "reported_window", "retold", "said", "window")

    def __init__(self, window: float) -> None:
        super().__init__()
        self.window = Source.DEFAULT
        self.said: Refill = "continuous"
        self.reported_window = self._inferred = window
        self._inferred_at = -INFINITY
        self._rounds = 0
        self.retold = False

    def record_reading(self, reading: QuotaReading, now: float) -> None:
        self.count = self.count + 1 if self.origin is Source.HEADERS else 1
        self.origin, self.at = Source.HEADERS, now
        self.said = reading.refill
        if reading.window is not None:
            self.window = Source.HEADERS
        elif reading.reset_after is not None and self.window is not Source.HEADERS:
            self.window = Source.ANSWERS

    def note_window(self, window: float, sent_at: float, now: float) -> None:
        if window == self.reported_window:
            return
        if self.window is not Source.HEADERS:
            if abs(window - self._inferred) > SAME_WINDOW_SHARE * window:
                self._inferred, self._inferred_at, self._rounds = window, now, 0
                return
            if sent_at < self._inferred_at:
                return
            self._inferred_at, self._rounds = now, self._rounds + 1
            if self._rounds < CONFIRMING_ROUNDS:
                return
        self.retold = self.retold or abs(window - self.reported_window) > SAME_WINDOW_SHARE * window
        self.reported_window = window

    def learnt_window(self, of: str, now: float, holds_for: float) -> LearnedValue:
        count = 0 if self.window is Source.DEFAULT else self.count
        return LearnedValue(of, self.window if self.count else self.origin, count, now - self.at, holds_for)


class LimiterProvenance:
    """Provenance of the gates (limiters) of one key that keep no copy of a quota."""

    __slots__ = ("breaker", "limit", "pace", "pause")

    def __init__(self) -> None:
        self.limit = Provenance()
        self.pace = Provenance()
        self.pause = Provenance()
        self.breaker = Provenance()
