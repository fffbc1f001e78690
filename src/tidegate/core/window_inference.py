"""Inference of a quota's window and its kind of refill from the reset times in answers.

Theory of operation. Each answer bounds the window (`core.window_bounds`), and the bounds of all answers are
intersected, apart for each convention of rounding. Conventions whose intersection becomes empty are refuted, and the
first one left holds; of those that differ in the rounding, one with a natural window.

If all are refuted, the answer contradicts the others, and is set aside. If the next one does so too, one of three cases
applies:

- All answers name the same instant: it is the boundary of a fixed window.
- All answers name the same duration: units come back that long after they were taken, in a rolling window.
- Else the bucket holds less than its limit (a minute's quota enforced over seconds) and is full soon. It holds what
  remains, plus what comes back until then in the usual window. That sum is the same for all answers (`_content`), or
  the bucket is none. Where it explains all answers, one contradiction is enough, or one refusal of a call for which the
  inferred window has room (`refuse`): the length of a window is not stated by a reset alone.

Some resets tell no window, as the time until one more request fits. Refusals refute the window inferred from them.
"""

from __future__ import annotations

from tidegate.core.quota_base import OVERTAKEN_SECONDS
from tidegate.core.values import INFINITY, QuotaReading, Refill
from tidegate.core.window_bounds import (
    COARSE_ROUNDING_SECONDS,
    CONVENTIONS,
    DEFAULT_WINDOW_SECONDS,
    EQUAL_WINDOWS_SHARE,
    FROM_ANSWER,
    NATURAL_WINDOWS_SECONDS,
    overdraws,
    snap,
    stated_window,
    usable_window,
)

DENIED_WINDOW_RATIO = 2.0
DENIABLE_LIMIT_SHARE = 1.0 / 3.0
"""Share of the limit that must be used for a reset to deny a declared window by half or double of it. With less used,
resets say nothing of windows (capture anthropic-200-2024-haiku: 19 s for one of 1,000 requests of a minute). Measured:
1/2 costs `announced-rolling` 0.014 refusals a call."""

EXACT_FRACTION_UNITS = 0.05
"""Part of one request to which a level must be exact for its fraction to be used."""

EXACT_WINDOW_SHARE = 0.002
"""Share by which a window may be off that follows from two times of a refusal, each cut to a millisecond."""

JITTER_SHARE = 0.1
"""Share of a time by which equal instants may differ (new connections, a busy loop), up to `OVERTAKEN_SECONDS`."""

VARIED_LIMIT_SHARE = 0.1
"""Share of the limit by which the use must have varied before an equal time or instant means anything."""

MAX_KEPT_ANSWERS = 1024
"""Answers that are kept with the use that they found, while the quota may be one of a rolling window."""

AGREEING_ANSWERS = 2
"""Agreeing answers from which on a single contradiction is set aside; two odd answers in a row always count."""

MAX_RESET_DECIMALS = 3
"""Most decimals of a second of a reset. A provider whose resets so far need fewer rounds to fewer."""


SHORTEST_WINDOW_SECONDS = 1.0
"""Seconds. A shorter window needs proof that no smaller bucket explains the answers, because no provider documents one
(provider-facts.md rule 2)."""

IMPOSSIBLE_BOUNDS = (0.0, -1.0)
"""Bounds that no window satisfies."""


class WindowInference:
    """Inference of the window of one quota from its resets.

    `capacity` is what the quota holds where that is less than its limit. `turned` is its kind of refill where that is
    another than announced.
    """

    __slots__ = (
        "_agreed",
        "_bounds",
        "_content",
        "_decimals",
        "_default",
        "_denied",
        "_disputed",
        "_doubted",
        "_falls",
        "_first",
        "_held",
        "_instant",
        "_lasts",
        "_least",
        "_little",
        "_longest",
        "_most",
        "_natural",
        "_only_reset",
        "_passes",
        "_quickest",
        "_reset",
        "_returns",
        "_risen",
        "_same_instant",
        "_same_time",
        "_soonest",
        "_stood",
        "_taken",
        "_unread",
        "_varied",
        "_was_ample",
        "capacity",
        "turned",
    )

    def __init__(self, default: float) -> None:
        self._default = default
        self._denied = self._disputed = False
        self._longest = INFINITY
        self._unread = False
        self.turned: Refill | None = None
        self._decimals = 0
        self._only_reset: float | None = None
        self._varied = False
        self._natural: float | None = None
        self._reset: float | None = None
        self._first: tuple[float, float] | None = None
        self.capacity: float | None = None
        self.forget()

    def bounds(self, reading: QuotaReading, took: float) -> tuple[float, float]:
        """Return the shortest and the longest window that the answers allow; a natural one that is alone is known.

        A declared window holds unless a reading, whose answer took `took` seconds, contradicts it.
        """
        declared, limit, remaining, reset = reading.window, reading.limit, reading.remaining, reading.reset_after
        if declared is not None and not self._denied:
            if limit is None or remaining is None or reset is None:
                return (SHORTEST_WINDOW_SECONDS, INFINITY) if self._disputed else (declared, declared)
            seen = stated_window(CONVENTIONS[-1], reading, limit, remaining, reset, reading.resolution, took)
            self._disputed = self._disputed or (seen is not None and not seen[0] <= declared <= seen[1])
            return (SHORTEST_WINDOW_SECONDS, INFINITY) if self._disputed else (declared, declared)
        low, high = self._bounds[self._held]
        if self._natural is not None and sum([low <= each <= high for each in NATURAL_WINDOWS_SECONDS]) <= 1:
            return self._natural, self._natural
        return max(SHORTEST_WINDOW_SECONDS, low), max(SHORTEST_WINDOW_SECONDS, high)

    @property
    def returns_after(self) -> float:
        """Return the seconds after which a unit comes back in a rolling window."""
        if self._returns < INFINITY:
            low, high = self._lasts
            return snap(low, high) or min(high, max(low, self._returns))
        return self._first[1] if self._first is not None else self._default

    def whole_level(self, reading: QuotaReading, level: float) -> float:
        """Return `level` of a quota of few requests, with the fraction that `remaining` leaves out."""
        low, high = self.levels(reading, level, level + 1.0, 0.0, 0.0)
        return level if high - low > EXACT_FRACTION_UNITS else (low + high) / 2.0

    def levels(self, reading: QuotaReading, low: float, high: float, sent_at: float, now: float) -> tuple[float, float]:
        """Return the lowest and highest level at `sent_at` by `remaining`, and by the reset of a known window."""
        limit, reset = reading.limit, reading.reset_after
        if limit is None or reset is None or reading.window is not None or self.capacity is not None:
            return low, high
        held = CONVENTIONS[self._held]
        shortest, longest = self._bounds[self._held]
        if self._natural is not None:
            shortest = longest = self._natural
        if shortest <= 0.0 or self._agreed < AGREEING_ANSWERS:
            return low, high
        if reading.instant is not None:
            # All is back at that instant, whenever the request was admitted.
            rounding, unsure = reading.instant.rounding, reading.resolution - reading.instant.rounding
            since = now - sent_at
        elif reading.from_receipt or held.transit:
            return low, high
        else:
            rounding, unsure, since = reading.resolution, 0.0, 0.0
        soonest = since + reset - held.above * rounding
        latest = since + reset + held.below * rounding + unsure
        least, most = limit - latest * limit / shortest, limit - max(0.0, soonest) * limit / longest
        if least > high or most < low:
            return low, high
        return max(low, least), min(high, most)

    def waits(self, limit: float, wait: float, so_far: float) -> float:
        """Return the window by a refusal of one request that asks to `wait` for it, where the reset says when full.

        In between, all but one of `limit` come back.
        """
        if limit <= 1.0 or self._reset is None or not 0.0 < wait < self._reset or self.capacity is not None:
            return so_far
        window = (self._reset - wait) * limit / (limit - 1.0)
        low, high = self._bounds[self._held]
        if not low * (1.0 - EXACT_WINDOW_SHARE) <= window <= high * (1.0 + EXACT_WINDOW_SHARE):
            return so_far
        low, high = self._bounds[self._held] = window * (1.0 - EXACT_WINDOW_SHARE), window * (1.0 + EXACT_WINDOW_SHARE)
        self._natural = snap(low, high)
        return self._natural or window

    def taken_before(self, sent_at: float) -> list[tuple[float, float]]:
        """Return the charges (instant, units) so old before `sent_at` that every answer has seen them."""
        charges: list[tuple[float, float]] = []
        latest, before = -INFINITY, 0.0
        found = list(self._taken)
        if found:
            # The first one counts from its answer: its request was sent no later than those after it.
            used, _, received = found[0]
            found[0] = used, min(at for _, at, _ in found), received
        for used, at, _ in sorted(found):
            latest = max(latest, at)
            if used > before and latest < sent_at - OVERTAKEN_SECONDS:
                charges.append((latest, used - before))
                before = used
        return charges

    def date(self, before: float, used: float, now: float) -> list[tuple[float, float]]:
        """Return the latest instants at which the use may have risen from `before` to `used` (instant, units)."""
        quickest = self._quickest if self._quickest < INFINITY else 0.0
        charges: list[tuple[float, float]] = []
        latest = now
        for level, _, received in sorted(self._taken, reverse=True):
            if before < level < used:
                charges.append((latest - quickest, used - level))
                used = level
            if level >= used:
                latest = min(latest, received)
        charges.append((latest - quickest, used - before))
        return charges[::-1]

    def forget(self) -> None:
        self._bounds: list[tuple[float, float]] = [(0.0, INFINITY)] * len(CONVENTIONS)
        self._held = 0
        self._agreed, self._doubted = 0, False
        self._content: tuple[float, float] | None = (0.0, INFINITY)
        # More than half of the limit was left once, so the bucket is no much smaller one.
        self._was_ample = False
        self._natural = self._reset = self.capacity = None
        self._first = None
        self._same_instant = self._same_time = True
        self._stood, self._risen = (INFINITY, 0.0), 0.0
        self._lasts = -INFINITY, INFINITY
        self._soonest = self._returns = INFINITY
        self._instant, self._passes = (-INFINITY, INFINITY), -INFINITY
        self._little, self._falls = (INFINITY, 0.0), False
        self._least, self._most = INFINITY, 0.0
        self._taken: list[tuple[float, float, float]] = []
        self._quickest = INFINITY

    def window(self, reading: QuotaReading, sent_at: float, so_far: float, took: float, charged: bool = True) -> float:
        """Return the window in seconds after one more answer, which took `took` seconds, to the request of `sent_at`.

        If the request was not `charged`, its reset in a rolling window is an earlier one's.
        """
        return min(self._longest, self._stated(reading, sent_at, so_far, took, charged))

    def _stated(self, reading: QuotaReading, sent_at: float, so_far: float, took: float, charged: bool) -> float:
        declared, limit, remaining, reset = reading.window, reading.limit, reading.remaining, reading.reset_after
        if limit is None or remaining is None or reset is None or self._unread:
            return usable_window(declared, so_far)
        if declared is not None and not self._denied and limit - remaining < DENIABLE_LIMIT_SHARE * limit:
            return usable_window(declared, so_far)
        rounding = self._rounding(reading, reset)
        known = self._known(so_far, reading)
        agrees = known is not None and self._agrees(*known, limit, limit - remaining, reset, rounding, took, reading)
        if not agrees or so_far < self._default:
            self._bound_content(limit, remaining, reset, rounding, took, reading, charged)
        if agrees:
            return so_far
        first = FROM_ANSWER if reading.from_receipt else 0
        widest = stated_window(CONVENTIONS[-1], reading, limit, remaining, reset, rounding, took)
        if widest is None or (widest[0] <= 0.0 and not overdraws(reading, remaining)):
            return so_far
        if declared is not None and not self._denied:
            if widest[0] <= DENIED_WINDOW_RATIO * declared and widest[1] * DENIED_WINDOW_RATIO >= declared:
                return usable_window(declared, so_far)
            self._deny()
            self._bound_content(limit, remaining, reset, rounding, took, reading, charged)
        seen = [
            stated_window(each, reading, limit, remaining, reset, rounding, took)
            if number >= first
            else IMPOSSIBLE_BOUNDS
            for number, each in enumerate(CONVENTIONS)
        ]
        transit = took if reading.from_receipt else 0.0
        coarse = rounding >= COARSE_ROUNDING_SECONDS
        self._reset = reset if not coarse and not transit else None
        # A single value, however often it comes, shows no rounding.
        exact = rounding if self._varied else reading.resolution
        of_values = rounding if reading.from_receipt else exact
        self._compare_instants(reading, sent_at, took, limit - remaining, reset, of_values, charged)
        if charged:
            self._compare(sent_at, took, limit - remaining, reset + transit, exact + transit)
        bounds = [each or IMPOSSIBLE_BOUNDS for each in seen]
        return usable_window(self._infer(bounds, first, limit, remaining, reset, coarse, so_far), so_far)

    def _rounding(self, reading: QuotaReading, reset: float) -> float:
        """Return the seconds to which this provider rounds its resets: by its header's form, and by all of them."""
        if reading.from_receipt:
            return reading.resolution
        while self._decimals < MAX_RESET_DECIMALS and abs(reset - round(reset, self._decimals)) > EQUAL_WINDOWS_SHARE:
            self._decimals += 1
        if self._only_reset is None:
            self._only_reset = reset
        self._varied = self._varied or reset != self._only_reset
        return max(reading.resolution, 10.0**-self._decimals)

    def _known(self, so_far: float, reading: QuotaReading) -> tuple[float, float] | None:
        """Return the bounds of a window that is known: a natural one, or one that a further answer hardly narrows."""
        if self._natural == so_far:
            return so_far, so_far
        low, high = self._bounds[self._held]
        exact = self._natural is None and reading.instant is None and not reading.from_receipt
        return (
            (low, high)
            if exact and self._agreed >= AGREEING_ANSWERS and 0.0 < high - low <= EXACT_WINDOW_SHARE * low
            else None
        )

    def _agrees(
        self,
        low: float,
        high: float,
        limit: float,
        used: float,
        reset: float,
        rounding: float,
        took: float,
        reading: QuotaReading,
    ) -> bool:
        # The bounds of `window_interval`, for the many answers that allow all from `low` to `high`: they tell nothing.
        if self.capacity is not None or self.turned is not None or used <= 0.0:
            return False
        quantum, held = reading.quantum, CONVENTIONS[self._held]
        most = used + quantum if quantum > 1 else used
        self._reset = reset if self._held < FROM_ANSWER and rounding < COARSE_ROUNDING_SECONDS else None
        earliest = max(0.0, reset - held.above * rounding) * limit
        latest = (reset + held.below * rounding + held.transit * took) * limit
        agrees = (used - quantum) * high <= latest * (1.0 + EQUAL_WINDOWS_SHARE) and (
            earliest <= low * most * (1.0 + EQUAL_WINDOWS_SHARE) or overdraws(reading, limit - used)
        )
        if agrees:
            self._agreed += 1
            self._doubted = False
        return agrees

    def refuse(self, so_far: float, shortest: float) -> float:
        """Return the window after a refusal of a call that fits a quota of the window `so_far`.

        The quota is a smaller bucket if that explains all answers. Else the resets tell no window where it is one that
        no provider counts over: the refusal allows none below `shortest`, and resets are read no more. Else others took
        the room.
        """
        if so_far >= self._default or self.capacity is not None:
            return so_far
        if self._content is not None:
            self.capacity = max(1.0, self._content[0])
            return self._default
        if so_far >= SHORTEST_WINDOW_SECONDS and not self._unread:
            return so_far
        self._unread = True
        return min(self._default, max(so_far, shortest))

    def ignore_resets(self) -> None:
        """Read no resets from now on: what they tell was refuted."""
        self._unread = True

    @property
    def is_bounded(self) -> bool:
        """Return whether what comes back bounds the window."""
        return self._longest < INFINITY

    def bound(self, longest: float, proven: float) -> float:
        """Return the window, which is no longer than `longest` (seconds) by what calls found.

        A declared one is denied where calls have `proven` a shorter one.
        """
        if proven < self._default and not self._denied:
            self._deny()
        self._longest = longest
        return longest

    def stated_by_one(self, reading: QuotaReading, amount: float, took: float) -> tuple[float, float]:
        """Return the shortest and the longest window by a reset, if the quota was full before `amount` was taken.

        So only what the call itself took comes back until then, whatever the quota holds.
        """
        limit, reset = reading.limit, reading.reset_after
        rounding = max(reading.resolution, 10.0**-self._decimals)
        if limit is None or reset is None or amount <= 0.0 or not (reset > 0.0 or rounding >= COARSE_ROUNDING_SECONDS):
            return 0.0, INFINITY
        transit = took if reading.from_receipt else 0.0
        shortest = max(0.0, reset - rounding) * limit / amount
        if self._agreed >= AGREEING_ANSWERS and not self._unread and self.capacity is None:
            shortest = self._bounds[self._held][0]
        return shortest, (reset + rounding + transit) * limit / amount

    def _deny(self) -> None:
        # A smaller bucket refills over the usual window, as one without a declaration does.
        self._denied, self._default, self._content = True, DEFAULT_WINDOW_SECONDS, (0.0, INFINITY)

    def _bound_content(
        self,
        limit: float,
        remaining: float,
        reset: float,
        rounding: float,
        took: float,
        reading: QuotaReading,
        charged: bool,
    ) -> None:
        """Narrow the content of a bucket of the usual window that is full after `reset`; None where none fits."""
        if overdraws(reading, remaining):
            return
        self._was_ample = self._was_ample or remaining > limit / 2.0
        if self._content is None:
            if self.capacity is not None:
                self._outgrow(limit, remaining, reset)
            return
        rate, quantum = limit / self._default, reading.quantum
        low = remaining + rate * max(0.0, reset - rounding) - (quantum if quantum > 1.0 else 0.0)
        high = remaining + quantum + rate * (reset + rounding + took)
        low, high = max(low, self._content[0]), min(high, self._content[1])
        ample = reading.unit == "requests" and remaining + 1.0 > limit / 2.0
        if charged and ample and rate * (reset + rounding + took) < 1.0:
            low = INFINITY  # the request itself is not back by then
        self._content = (low, high) if low <= high else None
        if self.capacity is not None:
            if low <= high:
                self.capacity = min(limit, max(1.0, low))
            else:
                self._outgrow(limit, remaining, reset)

    def _outgrow(self, limit: float, remaining: float, reset: float) -> None:
        """Let a smaller bucket hold what an answer shows; None where half of the limit was left once."""
        content = max(self.capacity or 1.0, remaining + reset * limit / self._default)
        self.capacity = None if self._was_ample else min(limit, content)

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
        varied = self._most - self._least >= VARIED_LIMIT_SHARE * limit
        if stretched and self._same_instant != self._same_time:
            stood = self._falls or self._risen >= VARIED_LIMIT_SHARE * limit
            if stood if self._same_instant else varied:
                self.turned = "fixed" if self._same_instant else "rolling"
                return so_far
        small = denied and self._content is not None and self.capacity is None
        if denied and not small and self._same_instant and (varied or self._falls):
            return so_far
        if denied and not small and self._agreed >= AGREEING_ANSWERS and not self._doubted:
            self._doubted = True
            return so_far
        if denied:
            bounds, left, self._agreed = seen, [first], 0
        self._agreed += 1
        self._doubted = False
        self._bounds = bounds
        # Without a lower bound every natural window fits, and shows nothing.
        naturals = {number: snap(*bounds[number], so_far) if bounds[number][0] > 0.0 else None for number in left}
        alike = [number for number in left if CONVENTIONS[number].transit == CONVENTIONS[left[0]].transit]
        self._held = next((number for number in alike if naturals[number] in NATURAL_WINDOWS_SECONDS), left[0])
        (low, high), natural = bounds[self._held], naturals[self._held]
        if small and self._content is not None:
            # No window makes all readings true, but one content of a bucket does.
            self.capacity = min(limit, max(1.0, self._content[0]))
        self._natural = natural if natural in NATURAL_WINDOWS_SECONDS else None
        if self.capacity is None:
            if low <= 0.0:
                return high
            longest = min(high, 2 * low)
            # Where little is known the longest is taken: too slow a refill is made up for by the next answer.
            return natural or (longest if coarse else (low + longest) / 2)
        return self._default

    def _compare(self, sent_at: float, took: float, used: float, reset: float, resolution: float) -> None:
        if self._same_time and len(self._taken) < MAX_KEPT_ANSWERS:
            self._taken.append((used, sent_at, sent_at + took))
            if took > 0.0:  # when the request of the first answer was sent is not known
                self._quickest = min(self._quickest, took)
        self._least, self._most = min(self._least, used), max(self._most, used)
        if self._first is None:
            self._first = sent_at, reset
            return
        first_at, first_reset = self._first
        slack = min(OVERTAKEN_SECONDS, JITTER_SHARE * first_reset) + resolution
        if sent_at > first_at + first_reset:
            self._first = sent_at, reset
            return
        self._same_time = self._same_time and abs(reset - first_reset) <= slack and self._lasts[0] <= self._lasts[1]
        if not self._same_time:
            self._taken.clear()

    def _compare_instants(
        self,
        reading: QuotaReading,
        sent_at: float,
        took: float,
        used: float,
        reset: float,
        rounding: float,
        charged: bool,
    ) -> None:
        """Compare the instants that answers name: more use with an earlier reset speaks for a boundary."""
        if took <= 0.0 and self._first is None:
            return  # the first answer: the instant of its request is not known
        low, high = self._instant
        instant = reading.instant
        if instant is not None and instant.reset + instant.rounding < low:
            return  # of the window before, overtaken by an answer of the next one
        if sent_at + took > self._passes:
            low, high = -INFINITY, INFINITY
            self._little = INFINITY, 0.0
            self._stood, self._risen = (INFINITY, 0.0), 0.0
            self._passes = -INFINITY
        # Units that come back do not move the instant at which all are back: only what is taken does.
        lowest, lowest_at = self._stood
        if used < lowest:
            self._stood = used, sent_at
        elif sent_at > lowest_at:
            self._risen = max(self._risen, used - lowest)
        if instant is not None:
            if charged:
                self._soonest = min(self._soonest, instant.reset + instant.rounding - sent_at)
                # The date and the reset of an answer were read off one clock, at one time.
                self._returns = self._soonest - (instant.reset - reset - sent_at - took)
                self._lasts = max(self._lasts[0], reset), min(self._lasts[1], reset + rounding + took)
            self._passes = max(self._passes, sent_at + took + reset - instant.rounding)
            # Cut or rounded up, one instant is always stated by values less than one rounding apart.
            low, high = max(low, instant.reset), min(high, instant.reset + instant.rounding)
        else:
            self._passes = max(self._passes, sent_at + reset - rounding)
            low, high = max(low, sent_at + reset), min(high, sent_at + took + reset + rounding)
        self._instant = low, high
        self._same_instant = self._same_instant and low <= high
        if reading.from_receipt:
            return  # what is left until an instant falls with the latency too
        least, longest = self._little
        self._falls = self._falls or (used > least + reading.quantum and reset < longest - rounding)
        if used < least:
            self._little = used, reset
