"""Model of a window that no header announces: a number of calls, a period, and the intervals of its boundaries.

Theory of operation. A fixed window admits so many calls until its boundary, a rolling one so many in any period. Both
refuse everything for a while after the last call of a window, and then admit as many again at once. A bucket of a
constant rate does not: after a silence it admits one call, and the next one after as long again.

`HiddenWindow` admits the calls of a window as fast as the first ones went, and stops after the last one, before the
provider refuses. Then single attempts look for the boundary. Each boundary lies between the last attempt that was
refused and the first one that was admitted. So the period lies in an interval too, which every boundary narrows. The
next boundary is looked for inside the interval that they predict: in its middle while that is worth a refusal, else at
its end. A boundary later than predicted is that of a fixed window, of which the first calls saw only the rest. Where
two periods agree already, an outage put the boundary off. Then the attempts go ever later, each after twice the wait,
but never so late that a whole window could pass between two of them.
Where the hint of a refusal states the boundary, its rounding gives the interval, and nothing is looked for.

A limiter may block a key for its refusals, so that boundaries after refusals come later than others. So once, after a
window of which nothing was refused, an attempt goes after a part of the period. If it and a whole window are admitted,
the period is that short, and attempts go at the end of an interval only. If the calls after it are refused, they were
left over from the old window, which is larger than it seemed, and the former model returns.

All instants and durations are in seconds.
"""

from __future__ import annotations

from collections import deque

from tidegate.core.pacer_phases import HOLD_CALLS_PER_REFUSAL, SAME_RATE_SHARE, natural_wait
from tidegate.core.values import INFINITY

REMEMBERED_BOUNDARIES = 12
"""Boundaries that are kept: more of them narrow the period of a fixed window further. After as many periods without one
the model is given up: the first calls of a fixed window may have seen a small part of it."""

WORTHWHILE_REFUSALS = 2.0
"""Refusals that an attempt in the middle of an interval may cost on average, for the time of one call of a window. Such
an attempt is refused half the time; else the window begins earlier by a quarter of the interval. As many windows are
expected as were seen. Measured: 1 costs 0.004 refusals a call for 0.5 % of the time."""

MAX_EARLY_REFUSALS = 4
"""Refusals amid a window after which the model is given up. Measured: with 1, refusals that count against a moving
window cost `counted-refusals` 1.35 of the ideal instead of 1.31."""

TRIAL_PERIOD_SHARE = 0.5
"""Share of the period after which the attempt goes that looks for a shorter one. Chosen: halving gains most where it is
admitted, and a limiter blocks a key for its period at least (rate-limiter-flexible, Cloudflare)."""

CHECK_INTERVALS = 3.0
"""Mean intervals of a window's calls after which a lone attempt goes: a bucket has one call then. It goes after
`TRIAL_PERIOD_SHARE` at most, because it shows nothing where a new window may have begun."""


class HiddenWindow:
    """Window of a number of calls; `admitted` counts those of the present one.

    `size` is the number of calls, of which the first was sent at `begun_at`. A new window began after `refused_at`, and
    not after `admitted_at`. The model is on trial until it is `confirmed`. Where no `size` is known, the first refusal
    shows it (`settle`). The calls of the first window were sent within `run` seconds. `outgrown` is the size of the
    first two windows where the second one admitted more calls, else 0.
    """

    __slots__ = (
        "_before",
        "_begun",
        "_calls",
        "_check_after",
        "_checked",
        "_checking",
        "_fixed",
        "_former",
        "_full",
        "_full_at",
        "_high",
        "_late",
        "_later",
        "_least",
        "_low",
        "_most",
        "_refusals_block",
        "_run",
        "_seen",
        "_spread",
        "_told",
        "_trial",
        "_tries",
        "_used",
        "admitted",
        "outgrown",
        "settled",
        "size",
        "waiting",
    )

    def __init__(self, size: int, begun_at: float, refused_at: float, admitted_at: float, run: float = 0.0) -> None:
        self.size = size
        self.admitted = 1
        self.settled = size > 0
        self.waiting = self._checking = self._fixed = self._spread = False
        self._calls: list[float] = [admitted_at]
        self._before: list[float] = []
        self._run = run
        # Each boundary is after the first instant and not after the second one. Window 0 may have begun earlier.
        self._begun: deque[tuple[int, float, float]] = deque([(1, refused_at, admitted_at)], REMEMBERED_BOUNDARIES)
        # Bounds of the period: a rolling window was full for one period, a fixed one for less.
        self._least, self._most = refused_at - begun_at, admitted_at - begun_at
        self._low = self._high = self._seen = self._later = self._full_at = 0.0
        self._late = self._told = False
        # Whether the trial of a shorter period is under way (None: not made yet).
        self._trial: bool | None = None
        self._refusals_block = False
        # The model before a trial that was admitted, until a whole window was admitted after it.
        self._former: tuple[deque[tuple[int, float, float]], float, float, bool] | None = None
        self.outgrown = self._tries = self._used = self._full = self._check_after = self._checked = 0

    @property
    def begun_at(self) -> float:
        """Return an instant at which the present window had begun."""
        return self._begun[-1][2]

    @property
    def first_at(self) -> float:
        """Return when the first call of the oldest window that is kept went."""
        return self._begun[0][2]

    @property
    def confirmed(self) -> bool:
        """Return whether a call beyond the last one of a window was refused, soon after it."""
        return self._checked > 0

    @property
    def rate(self) -> float:
        """Return the mean rate of the windows in calls a second."""
        return self.size / max(self._least, self._most)

    def sent(self, now: float) -> bool:
        """Count a call; return whether it was the last one of its window."""
        self.admitted += 1
        self._calls.append(now)
        return self.settled and self.admitted >= self.size

    def next_at(self, now: float) -> float:
        """Return when the next call of this window may go: in a rolling window, a period after its predecessor."""
        place = len(self._calls)
        if not self._spread or place >= len(self._before):
            return now
        return max(now, self._before[place] + self._most)

    def second_at(self, now: float) -> float:
        """Return when the second call of the next window may go, if an attempt that goes alone now begins it."""
        if not self._spread or len(self._calls) < 2:
            return now
        return max(now, self._calls[1] + self._most)

    def rest(self, now: float) -> bool:
        """Return whether the client left a window unused for so long that a new one has begun; count from there."""
        if self.waiting or now < self._predicted()[1]:
            return False
        number, low, high = self._begun[-1]
        self._begun.append((number + 1, low + self._least, max(now, high + self._most)))
        self._next_window()
        return True

    def alike(self, admitted: int) -> bool:
        """Return whether a window of so many calls has the rate of the one before."""
        return self.size > 0 and abs(admitted - self.size) <= max(1.0, SAME_RATE_SHARE * self.size)

    def settle(self, admitted: int) -> bool:
        """Return whether a window was refused after as many calls as the one before; then the model holds."""
        if not self.alike(admitted):
            return False
        self.size, self.settled = max(1, admitted), True
        return True

    def late(self) -> None:
        """Take in a further refusal of a call that was sent amid the window: it admits fewer calls."""
        self.admitted -= 1
        if not self.waiting:
            return
        if 2 * self.admitted >= self._full:
            self.size = max(1, min(self.size, self.admitted))
        else:
            # Most were refused, so this was no whole window: the next refusal shows the size.
            self.size, self.settled = self._full, False

    def early(self, now: float) -> tuple[float, bool]:
        """Take in a refusal amid a window; return when the next call goes, infinity for never, and if it has ended."""
        self.admitted -= 1
        if self._calls:
            self._calls.pop()
        if self.admitted >= (1.0 - SAME_RATE_SHARE) * self.size - 1.0:
            self.size = max(1, self.admitted)
            return self.wait(now, refused=True), True
        if self._former is not None:
            # Calls of the old window were left over, so it admits more than it seemed.
            if self._used == 2 * self.size:
                self.outgrown = self.size
            self.size += self.admitted
            self._check_after = 0
            self._begun, self._least, self._most, self._fixed = self._former
            self._refusals_block = False
            return self.wait(now, refused=True), True
        # A rolling window gives calls back as they were sent.
        self._spread = True
        self._tries += 1
        if self._tries > (MAX_EARLY_REFUSALS if self.confirmed else 1):
            return INFINITY, False
        pause = self._least / self.size * 2.0 ** (self._tries - 1) if self._before else self._run
        return max(self.next_at(now), now + pause), False

    def wait(self, now: float, refused: bool = False) -> float:
        """Begin to wait for the boundary; return when the first attempt goes. Was a call of this window `refused`?"""
        self.waiting, self._late, self._told, self._former = True, False, False, None
        self._tries, self._full, self._full_at = 0, self.size, now
        self._low, self._high = self._predicted()
        self._low = max(self._low, now)
        self._high = max(self._low, self._high)
        # A predicted instant may be wrong. The boundary is after the last call, and after what was refused.
        self._seen, self._later = now, max(self._high - self._low, self._least / self.size)
        count = self._used + self.admitted
        self._checking = count >= self._check_after
        if self._checking:
            self._check_after = count + HOLD_CALLS_PER_REFUSAL
            return min(now + min(CHECK_INTERVALS / self.size, TRIAL_PERIOD_SHARE) * self._least, self._next())
        early = self.begun_at + TRIAL_PERIOD_SHARE * (self._low - self.begun_at)
        if self._trial is None and self.confirmed and early > now and not refused:
            # All boundaries so far came after refusals.
            self._trial = True
            return early
        return self._next()

    def was_full_after(self, sent_at: float) -> bool:
        """Return whether an attempt is a call of the window that is used up, and none that looks for the boundary."""
        return self.waiting and sent_at <= self._full_at

    def refused(self, sent_at: float) -> float:
        """Take in that an attempt met the old window still; return when the next one goes, infinity for never."""
        self._seen = max(self._seen, sent_at)
        if self._trial:
            self._trial = False
            if sent_at < self._low:
                return self._next()
        if self._checking:
            self._checking = False
            self._checked += 1
            if sent_at < self._low:
                return self._next()
        self._low = max(self._low, sent_at)
        self._tries += 1
        if self._low < self._high - 1e-9:
            return self._next()
        if self._refusals_block:
            # The trial showed a period that has now passed without a new window.
            return INFINITY
        # Later than predicted: the boundaries are those of a fixed window, or the period is longer than it seemed.
        if not self._fixed:
            self._fixed = True
            self._high = self._predicted()[1]
            if self._low < self._high - 1e-9 < INFINITY:
                return self._next()
        since = self._low - self._begun[-1][2]
        self._high = self._low + natural_wait(min(self._later, max(self._least, since)), since, 0.0)
        self._later *= 2.0
        self._late = True
        if self._low > self._begun[-1][2] + REMEMBERED_BOUNDARIES * max(self._least, self._most):
            return INFINITY
        return self._next()

    def told(self, low: float, high: float) -> float:
        """Narrow the boundary to an interval that the provider stated; return when the next attempt goes."""
        if self._checking:
            # The refusal that states it was of a call beyond the last one.
            self._checking = False
            self._checked += 1
        self._low = max(self._low, low)
        self._high = max(self._low, high)
        self._seen = max(self._seen, low)
        self._told = self._fixed = True
        self._trial = False
        return self._next()

    def found(self, sent_at: float) -> bool:
        """Take in that the attempt sent at `sent_at` was admitted: a window has begun. Return False if it is none."""
        tried = self._trial
        if tried:
            self._trial = False
        if self._checking and sent_at < self._low:
            # It admits more calls than it seemed, or is none.
            if not self.confirmed:
                # Its size is not known: the next refusal shows it.
                self.admitted += 1
                self.waiting = self.settled = self._checking = False
                self._check_after = 0
                return True
            self.size += 1
            self._checked = 0
            return False
        if tried and sent_at < self._low:
            self._former = (self._begun, self._least, self._most, self._fixed)
            self._fixed, self._refusals_block = False, True
            self._least, self._most = self._seen - self.begun_at, sent_at - self.begun_at
            self._begun = deque([(1, self._seen, sent_at)], REMEMBERED_BOUNDARIES)
            self._next_window()
            self.admitted = 1
            self._calls.append(sent_at)
            return True
        if sent_at < self._low - 1e-9:
            return False
        number, low, high = self._begun[-1]
        by = max(self._low, min(sent_at, self._high)) if self._told else sent_at
        if len(self._begun) > 2 and self._low - high > (1.0 + SAME_RATE_SHARE) * self._most:
            # Two periods agree, so something else put this boundary off.
            self._begun.clear()
        else:
            self._least = max(self._least, self._low - high)
            self._most = by - low if self._late or self._told else min(self._most, sent_at - high)
            self._most = max(self._most, self._least)
        self._begun.append((number + 1, self._seen, by))
        self._next_window()
        self.admitted = 1
        self._calls.append(sent_at)
        self._tries = 0
        return True

    def _next_window(self) -> None:
        self._used += self.admitted
        self.admitted = 0
        self._before, self._calls = self._calls, []
        self.waiting = self._checking = False

    def _predicted(self) -> tuple[float, float]:
        """Return the bounds of the next boundary."""
        number, _low, high = self._begun[-1]
        if not self._fixed:
            return high + self._least, high + self._most
        least, most = self._least, INFINITY
        begun = list(self._begun)
        for place, (first, after, until) in enumerate(begun):
            for last, later, by in begun[place + 1 :]:
                least = max(least, (later - until) / (last - first))
                most = min(most, (by - after) / (last - first))
        if most < least:
            most = max(least, self._most)
        lows = (after + (number + 1 - first) * least for first, after, _ in begun)
        highs = (until + (number + 1 - first) * most for first, _, until in begun)
        return max(lows), min(highs)

    def _next(self) -> float:
        low = self._low
        if self._refusals_block:
            return max(low, self._high)
        # A later attempt could miss a whole window: a fixed one has lasted for at least this long.
        high = min(self._high, low + max(self._least, low - self._begun[-1][2]))
        windows = 1 if self._fixed else len(self._begun)
        sought = self._late or self._told or (self._fixed and self._tries)
        if sought or high - low <= WORTHWHILE_REFUSALS * self._least / (self.size * windows):
            return high
        return low + 0.5 * (high - low)
