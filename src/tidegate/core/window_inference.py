"""Inference of a quota's window and its kind of refill from the reset times in answers.

Theory of operation. A continuously refilled bucket of `limit` gets back `limit / window` a second. After `used` units
were taken, it is full again in `used * window / limit` seconds. A response states `limit`, `remaining` and that time,
each rounded up or down. So `reset * limit / used` bounds the window, and the bounds of all answers are intersected.
Source: PROVIDERS.md rules 2 and 3 (of 2,750 captured OpenAI answers 2,586 fit 60 s, 109 fit a day).

Each hypothesis in `CONVENTIONS` says how a provider rounds, and what its time counts from: the admission of the
request, or the answer (what lies in between is at most the latency). Each has its own intersection. Those that become
empty are refuted, and the first one left holds; of those that differ in the rounding, one with a natural window.

If all are refuted, the answer contradicts the others, and is set aside. If the next one does so too, one of three cases
applies:

- All answers name the same instant: it is the boundary of a fixed window.
- All answers name the same duration: units come back that long after they were taken, in a rolling window.
- Else the bucket holds less than its limit (a minute's quota enforced over seconds) and is full soon. It holds what
  remains, plus what comes back until then.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.values import INFINITY, QuotaReading, Refill

NATURAL_WINDOWS = (1.0, 10.0, 60.0, 3600.0, 86400.0, 2592000.0)
"""Windows, in seconds, that providers really use (PROVIDERS.md rule 2), shortest first."""

DEFAULT_WINDOW = 60.0
"""Seconds; most published limits are per minute (OpenAI, Anthropic, Azure rate-limit pages, read 2026-10-04)."""

MONTH = 31 * 86_400.0
"""The longest window any provider is known to count over (PROVIDERS.md rule 2), in seconds."""

_SLACK = 1e-6
"""Relative slack at both ends: `172.799999ms` of 500,000 a day says 86,399.9995 s."""


def window_interval(
    limit: float, remaining: float, reset_after: float, resolution: float, quantum: float
) -> tuple[float, float] | None:
    """The shortest and longest window (seconds, inclusive) that one reading allows, or None where it says nothing.

    `reset_after` is the time until full, cut to `resolution` seconds, so the true one is in [v, v + resolution).
    `remaining` is the level cut to `quantum`, so the true use is above `limit - remaining - quantum`. A quantum above 1
    is a rounding to the nearest, which may err both ways (PROVIDERS.md section 5). The upper end may be infinite.
    """
    if limit <= 0 or reset_after < 0 or remaining < 0:
        return None
    used = limit - remaining
    if used <= 0:
        return None
    most = used + (quantum if quantum > 1 else 0.0)
    least = used - quantum
    low = reset_after * limit / most
    high = (reset_after + resolution) * limit / least if least > 0 else INFINITY
    return low, high


def snap(low: float, high: float, prefer: float | None = None) -> float | None:
    """The natural window inside [low, high]: `prefer` if it is inside, else the shortest, else None.

    The shortest, because `remaining` is a floor: the interval of a bucket with one unit used reaches to infinity, and
    its lower end is the truth or at least 0.6 of it (PROVIDERS.md rule 2).
    """
    low -= low * _SLACK
    high += high * _SLACK
    if prefer is not None and low <= prefer <= high:
        return prefer
    for window in NATURAL_WINDOWS:
        if low <= window <= high:
            return window
    return None


def usable_window(seconds: float | None, otherwise: float) -> float:
    """`seconds` where a quota can count over it (a millisecond to a month), else `otherwise`."""
    return seconds if seconds is not None and 1e-3 <= seconds <= MONTH else otherwise


DENIED = 2.0
DENIABLE = 1.0 / 3.0
"""A declared window is denied by a reset that says half or double of it while a third of the limit is used. With less
used, resets say nothing of windows (capture anthropic-200-2024-haiku: 19 s for one of 1,000 requests of a minute)."""

FRACTION = 0.05
"""Of one request: the window must be known so well that the fraction of a level is."""

NEARLY = 1e-6
"""Relative slack of a comparison of two windows that ought to be equal."""

EXACT = 0.002
"""Share by which a window may be off that a refusal's two times tell, each cut to a millisecond."""

COARSE = 0.5
"""Seconds; what is rounded so coarsely is the difference of two rounded instants (an RFC 3339 reset and a `date`), and
may err by as much to either side."""

JITTER = 0.1
JITTER_SHARE = 0.1
"""Seconds by which instants and times that are the same may differ (new connections, a busy loop), and share of the
time that they may."""

VARIED = 0.1
"""Share of the limit by which the use must have varied before an unvaried time or instant means anything."""

MOST_TAKEN = 1024
"""Steps that are kept of what was taken when, for as long as the quota may be one of a rolling window."""

ENOUGH = 2
"""Answers that agree with each other, from which on a single contradiction is set aside. A lower number lets one odd
answer replace a learned window; two odd answers in a row always do."""

FINEST = 3
"""Decimals of a second to which a reset is known at best. A provider whose resets so far need fewer rounds to fewer."""


class Convention(NamedTuple):
    """A way to state a reset: what is stated is at most so much above and below the truth.

    `above` and `below` are shares of the rounding. `transit` is the share of the latency that the truth may be above.
    """

    above: float
    below: float
    transit: float


CONVENTIONS = (
    Convention(0.0, 1.0, 0.0),
    Convention(1.0, 0.0, 0.0),
    Convention(0.5, 0.5, 0.0),
    Convention(0.0, 1.0, 1.0),
    Convention(1.0, 0.0, 1.0),
    Convention(1.0, 1.0, 1.0),
)
"""Cut, rounded up, rounded to the nearest; from the admission and from the answer. The last one allows any rounding,
and the difference of two rounded instants. Instants begin with the fourth."""

FROM_ANSWER = 3
"""Index of the first convention that counts from the answer."""

SHORTEST = 1.0
"""Seconds; no provider counts over less (PROVIDERS.md rule 2), so a bucket that is full sooner holds less."""


NOTHING = (0.0, -1.0)
"""Bounds that no window satisfies."""


class WindowInference:
    """Inference of the window of one quota from its resets.

    `capacity` is what the quota holds where that is less than its limit. `turned` is its kind of refill where that is
    another than announced.
    """

    __slots__ = (
        "_agreed",
        "_bounds",
        "_decimals",
        "_default",
        "_denied",
        "_doubted",
        "_first",
        "_held",
        "_least",
        "_most",
        "_natural",
        "_only_reset",
        "_reset",
        "_same_instant",
        "_same_time",
        "_taken",
        "_used",
        "_varied",
        "capacity",
        "turned",
    )

    def __init__(self, default: float) -> None:
        self._default = default
        self._denied = False
        self.turned: Refill | None = None
        self._decimals = 0
        self._only_reset: float | None = None
        self._varied = False
        self._natural: float | None = None
        self._reset: float | None = None
        self._first: tuple[float, float] | None = None
        self.capacity: float | None = None
        self.forget()

    @property
    def returns_after(self) -> float:
        """Seconds after which what was taken comes back, where the window is a rolling one."""
        return self._first[1] if self._first is not None else self._default

    def whole_level(self, reading: QuotaReading, level: float) -> float:
        """The level with the fraction that `remaining` leaves out, where the time until full tells it; else `level`."""
        limit, reset = reading.limit, reading.reset_after
        if limit is None or reset is None or reading.window is not None or self.capacity is not None:
            return level
        if reading.from_receipt or self._held >= FROM_ANSWER:
            return level
        window = self._natural
        if window is None:
            low, high = self._bounds[self._held]
            if low <= 0.0 or (high - low) * limit > FRACTION * low:
                return level
            window = low
        return min(level + 1.0, max(level, limit - reset * limit / window))

    def waits(self, limit: float, wait: float, so_far: float) -> float:
        """The window, by a refusal of one request that asks to `wait` for it, while full is the last reset away.

        In between, all but one of `limit` come back.
        """
        if limit <= 1.0 or self._reset is None or not 0.0 < wait < self._reset or self.capacity is not None:
            return so_far
        window = (self._reset - wait) * limit / (limit - 1.0)
        low, high = self._bounds[self._held]
        if not low * (1.0 - EXACT) <= window <= high * (1.0 + EXACT):
            return so_far
        low, high = self._bounds[self._held] = window * (1.0 - EXACT), window * (1.0 + EXACT)
        self._natural = snap(low, high)
        return self._natural or window

    def taken_before(self, sent_at: float) -> list[tuple[float, float]]:
        """Return the charges (instant, units) old enough before `sent_at` to be no charge that is still unseen."""
        return [(at, amount) for at, amount in self._taken if at < sent_at - JITTER]

    def forget(self) -> None:
        """Begins again: the limit has changed."""
        self._bounds: list[tuple[float, float]] = [(0.0, INFINITY)] * len(CONVENTIONS)
        self._held = 0
        self._agreed, self._doubted = 0, False
        self._natural = self._reset = self.capacity = None
        self._first = None
        self._same_instant = self._same_time = True
        self._least, self._most = INFINITY, 0.0
        self._used = 0.0
        self._taken: list[tuple[float, float]] = []

    def window(self, reading: QuotaReading, sent_at: float, so_far: float, took: float) -> float:
        """Return the window in seconds by one more answer, which took `took` seconds, to the request of `sent_at`."""
        declared, limit, remaining, reset = reading.window, reading.limit, reading.remaining, reading.reset_after
        if limit is None or remaining is None or reset is None:
            return usable_window(declared, so_far)
        if declared is not None and not self._denied and limit - remaining < DENIABLE * limit:
            return usable_window(declared, so_far)
        rounding = self._rounding(reading, reset)
        if self._natural == so_far and self._agrees(so_far, limit, limit - remaining, reset, rounding, took, reading):
            return so_far
        first = FROM_ANSWER if reading.from_receipt else 0
        seen = [
            window_interval(
                limit,
                remaining,
                max(0.0, reset - each.above * rounding),
                min(reset, each.above * rounding) + each.below * rounding + each.transit * took,
                reading.quantum,
            )
            if number >= first
            else NOTHING
            for number, each in enumerate(CONVENTIONS)
        ]
        widest = seen[-1]
        if widest is None or widest[0] <= 0.0:
            return so_far
        if declared is not None and not self._denied:
            if widest[0] <= DENIED * declared and widest[1] * DENIED >= declared:
                return usable_window(declared, so_far)
            self._denied = True
        transit = took if reading.from_receipt else 0.0
        coarse = rounding >= COARSE
        self._reset = reset if not coarse and not transit else None
        # A single value, however often it comes, shows no rounding.
        exact = rounding if self._varied else reading.resolution
        self._compare(sent_at, limit - remaining, reset + transit, exact + transit)
        bounds = [each or NOTHING for each in seen]
        return usable_window(self._infer(bounds, first, limit, remaining, reset, coarse, so_far), so_far)

    def _rounding(self, reading: QuotaReading, reset: float) -> float:
        """Return the seconds to which this provider rounds its resets: by its header's form, and by all of them."""
        if reading.from_receipt:
            return reading.resolution
        while self._decimals < FINEST and abs(reset - round(reset, self._decimals)) > NEARLY:
            self._decimals += 1
        if self._only_reset is None:
            self._only_reset = reset
        self._varied = self._varied or reset != self._only_reset
        return max(reading.resolution, 10.0**-self._decimals)

    def _agrees(
        self,
        window: float,
        limit: float,
        used: float,
        reset: float,
        rounding: float,
        took: float,
        reading: QuotaReading,
    ) -> bool:
        # The bounds of `window_interval`, for the many answers that tell nothing new.
        if self.capacity is not None or self.turned is not None or used <= 0.0:
            return False
        quantum, held = reading.quantum, CONVENTIONS[self._held]
        most = used + quantum if quantum > 1 else used
        self._reset = reset if self._held < FROM_ANSWER and rounding < COARSE else None
        earliest = max(0.0, reset - held.above * rounding) * limit
        latest = (reset + held.below * rounding + held.transit * took) * limit
        agrees = earliest <= window * most * (1.0 + NEARLY) and (used - quantum) * window <= latest * (1.0 + NEARLY)
        if agrees:
            self._agreed += 1
            self._doubted = False
        return agrees

    def _infer(
        self,
        seen: list[tuple[float, float]],
        first: int,
        limit: float,
        remaining: float,
        reset: float,
        coarse: bool,
        so_far: float,
    ) -> float | None:
        bounds = [
            (max(low, lower), min(high, upper)) for (low, high), (lower, upper) in zip(self._bounds, seen, strict=True)
        ]
        left = [number for number, (low, high) in enumerate(bounds) if number >= first and low <= high]
        denied = not left
        # An unvaried time or instant, while the use varied, speaks for another kind of refill sooner than for a reset
        # that counts from the answer.
        stretched = denied or CONVENTIONS[left[0]].transit > CONVENTIONS[first].transit
        if stretched and self._most - self._least >= VARIED * limit:
            if self._same_instant != self._same_time:
                self.turned = "fixed" if self._same_instant else "rolling"
                return so_far
            if denied and self._same_instant:
                return so_far
        if denied and self._agreed >= ENOUGH and not self._doubted:
            self._doubted = True
            return so_far
        if denied:
            bounds, left, self._agreed = seen, [first], 0
        self._agreed += 1
        self._doubted = False
        self._bounds = bounds
        naturals = {number: snap(*bounds[number], so_far) for number in left}
        alike = [number for number in left if CONVENTIONS[number].transit == CONVENTIONS[left[0]].transit]
        self._held = next((number for number in alike if naturals[number] in NATURAL_WINDOWS), left[0])
        (low, high), natural = bounds[self._held], naturals[self._held]
        # No window makes both readings true, and none is natural: it holds less than its limit, so is full soon.
        small = high < SHORTEST or (denied and natural is None and high < self._default)
        if small and self.capacity is None and not coarse:
            self.capacity = 1.0
        self._natural = natural if natural in NATURAL_WINDOWS else None
        if self.capacity is None:
            longest = min(high, 2 * low)
            # Where little is known the longest is taken: too slow a refill is made up for by the next answer.
            return natural or (longest if coarse else (low + longest) / 2)
        window = max(natural or 0.0, self._default)
        self.capacity = min(limit, max(self.capacity, remaining + reset * limit / window))
        return window

    def _compare(self, sent_at: float, used: float, reset: float, resolution: float) -> None:
        if self._same_time and len(self._taken) < MOST_TAKEN and used > self._used:
            self._taken.append((sent_at, used - self._used))
            self._used = used
        self._least, self._most = min(self._least, used), max(self._most, used)
        if self._first is None:
            self._first = sent_at, reset
            return
        first_at, first_reset = self._first
        slack = min(JITTER, JITTER_SHARE * first_reset) + resolution
        if sent_at > first_at + first_reset:
            self._first = sent_at, reset
            return
        self._same_instant = self._same_instant and abs(sent_at + reset - first_at - first_reset) <= slack
        self._same_time = self._same_time and abs(reset - first_reset) <= slack
        if not self._same_time:
            self._taken.clear()
