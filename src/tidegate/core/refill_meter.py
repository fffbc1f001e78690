"""Measures of a quota's refill by answers and refusals alone, where resets say too little or too much.

A call that waited for room and finds the quota full shows that it comes back sooner (`RefillTrial`). A refusal of a
call for which the inferred window has room shows that the quota comes back more slowly (`RefillCheck`).
"""

from __future__ import annotations

from tidegate.core.quota_base import OVERTAKEN_SECONDS
from tidegate.core.values import INFINITY
from tidegate.core.window_bounds import COARSE_ROUNDING_SECONDS

FIRST_STEP = 4.0
"""Times that a trial shortens a window at most. Each refused trial costs the refusals of one way back, each step a
round trip. Measured (fast-refill): with 2, the ratio of a limit of one is 1.5 where it is 1.3 with 4."""

LAST_STEP = 1.03
"""Ratio of the window in force to the longest that a refusal refuted, from which on no other is tried: 3 % are lost."""

BUSY_RATIO = 1.25
"""Times that calls between two full finds may take less than the window gives: with less, the quota filled unused."""

KNOWN_RATIO = 2.0
"""Ratio of the bounds of a window by a reset, within which nothing is tried, and by which a reset misstates it."""

TELLING_UNITS = 2.0
"""Content from which on a full quota differs from one that has just room. Below it, a trial is blind, and one refusal
may come of two calls that arrived closer together than they were sent."""

INFORMED_SHARE = 0.5
"""Share of the limit that must have been left once for a trial, where no reset tells when the quota is full."""

BRIEF_WINDOW_SECONDS = 1.0
"""Longest window, in seconds, that a full find alone may give where the one in force is shorter: resets near zero that
no window explains had made that one."""

FINE_STEP = 1.5
"""Step of a trial below which its first refusal may be chance, where the quota holds one unit."""

FIRST_GROWTH = 1.1
"""Times that the first refusal outside a trial lengthens a window at most; each further one the square of that."""

SHORTEST_TRIED_SECONDS = 1e-3
"""Seconds; the shortest window that `usable_window` takes."""

BUSY_UNITS = 2.0
"""Units that come back at most between two charges for the second to have waited: one, and another by which it is
sent late."""


class RefillTrial:
    """Trials of shorter windows, while calls that waited for room find their quota full.

    A call that waited meets just the room it needs, if the window is right. Where it finds as much as the quota ever
    held (`peak`), refill was lost, so the window is too long. Two such calls prove it, and the next ones try a shorter
    window. A refusal returns to the last one that was `proven`, and the next trial is halfway to the one refuted.

    A fixed window is full at its boundary, too, but not for two calls in a row that waited.
    """

    __slots__ = (
        "_full_at",
        "_full_mark",
        "_growth",
        "_met",
        "_misstated",
        "_open",
        "_refuted",
        "_returned_at",
        "_stated",
        "_tried_from",
        "peak",
        "proven",
    )

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again: the quota is another."""
        self.peak = self.proven = self._refuted = 0.0
        self._growth = FIRST_GROWTH
        self._stated = INFINITY
        self._open = self._met = self._misstated = False
        self._tried_from = self._returned_at = -INFINITY
        self.stop()

    def stop(self) -> None:
        """Count full finds from the next one on: what was charged until then is not certain."""
        self._full_at, self._full_mark = -INFINITY, 0.0

    def found(
        self,
        held: float,
        mark: float,
        limit: float,
        stated: tuple[float, float],
        sent_at: float,
        now: float,
        window: float,
    ) -> float:
        """Return the window after an answer to a call that waited, and met a quota that `held` so much.

        `stated` has the shortest and the longest window by its reset, if the quota was full. `mark` units were ever
        charged.
        """
        if sent_at <= max(self._tried_from, self._returned_at, self._full_at):
            return window
        if held < self.peak:
            self.stop()
            return window
        shortest, longest = (0.0, INFINITY) if self._misstated else stated
        self._stated = longest
        blind = self.peak < min(TELLING_UNITS, limit)
        if window * KNOWN_RATIO < shortest <= BRIEF_WINDOW_SECONDS:
            self.stop()
            return longest
        before_at, before_mark = self._full_at, self._full_mark
        self._full_at, self._full_mark = sent_at, mark
        taken, gave = mark - before_mark, limit * (sent_at - before_at)
        returned = gave / taken if before_at > -INFINITY and taken > 0.0 else INFINITY
        exact = longest < COARSE_ROUNDING_SECONDS * limit
        if longest * FIRST_STEP < window and (exact or limit < TELLING_UNITS or before_at > -INFINITY):
            # Where whole seconds say little more, the next calls try less.
            shorter = longest if exact or blind else max(min(longest / FIRST_STEP, returned), shortest)
            return self._try(shorter, longest, now, shorter < longest)
        self._growth = FIRST_GROWTH
        if before_at == -INFINITY or window < self._refuted * LAST_STEP or blind:
            return window
        if stated[1] == INFINITY and self.peak < INFORMED_SHARE * limit:
            return window
        if gave > BUSY_RATIO * window * (taken + 1.0):
            return window
        self._open = False
        shorter = max(window / FIRST_STEP, (window * self._refuted) ** 0.5)
        shorter = max(min(shorter, returned, longest), SHORTEST_TRIED_SECONDS)
        if exact or longest <= KNOWN_RATIO * shortest:
            shorter = max(shorter, longest)
        if shorter < shortest or shorter >= window:
            return window
        return self._try(shorter, window, now)

    def refused(self, sent_at: float, now: float, window: float) -> float:
        """Return the window after a refusal of a call sent at `sent_at`; 0 where no trial explains it."""
        if self._tried_from <= sent_at < self._returned_at:
            return window
        if sent_at < self._tried_from or not self._open:
            return 0.0
        if not self._met and self.peak < TELLING_UNITS and window * FINE_STEP > self.proven:
            self._met = True
            return window
        self._refuted = window
        self._returned_at, self._open = now, False
        self.stop()
        return self.proven

    def within_stated(self, shortest: float, window: float) -> float:
        """Return the shortest window that a refusal allows, or the longest by a reset while that is more than now."""
        return min(shortest, self._stated) if window < self._stated else shortest

    def lengthen(self, shortest: float, window: float, now: float) -> float:
        """Return the window after a refusal that allows none below `shortest`, where trials or a reset made it.

        Two calls may arrive closer together than they were sent, so one refusal lengthens it by little.
        """
        longer = max(window, min(shortest, self._growth * window))
        self._growth *= self._growth
        self._misstated = self._misstated or longer > KNOWN_RATIO * self._stated
        self._returned_at, self._open = now, False
        self.stop()
        return longer

    def _try(self, shorter: float, proven: float, now: float, doubtful: bool = True) -> float:
        self.stop()
        self.proven, self._tried_from, self._open, self._met = proven, now, doubtful, False
        return shorter


LEVEL_NOISE_UNITS = 1.0
"""Units by which a level may be off, added to those of `OVERTAKEN_SECONDS`: both refusals may have missed a unit by
little."""


class RefillCheck:
    """The level of one quota since its newest refusal, by the inferred window; no refusal came before `since`.

    A refusal says that nothing is left. From then on the level rises at the rate of the inferred window, and falls by
    each charge. Where a later refusal meets a level that has room for the call, the quota refills more slowly: the
    stated reset was the time until a smaller bucket is full, and not the length of a window. `_spent` units were
    charged since that refusal.
    """

    __slots__ = ("_at", "_level", "_spent", "since")

    def __init__(self) -> None:
        self.since = INFINITY
        self._level = self._at = self._spent = 0.0

    def charged(self, amount: float, rate: float, limit: float, now: float) -> None:
        self._level = min(limit, self._level + rate * (now - self._at)) - amount
        self._at = now
        self._spent += amount

    def refunded(self, amount: float, charged_at: float) -> None:
        if charged_at > self.since:
            self._level += amount
            self._spent -= amount

    def refused(self, amount: float, later: float, rate: float, limit: float, sent_at: float) -> float:
        """Return the shortest window (seconds) that a refusal of `amount` units allows; count from this refusal on.

        Return 0 where the rate does not contradict it. `later` units were charged after the call was sent. What was
        charged between both refusals has come back in that time.
        """
        level = min(limit, self._level + rate * (sent_at - self._at) + later)
        # A quota that was full since then lost refill: going back in time takes off too much.
        returned = self._spent - later
        level = max(level, min(limit, rate * (sent_at - self.since)) - returned)
        excess = min(amount + LEVEL_NOISE_UNITS + rate * OVERTAKEN_SECONDS, max(amount, limit / 2.0))
        contradicts = sent_at > self.since and level >= excess
        shortest = limit * (sent_at - self.since) / (returned + LEVEL_NOISE_UNITS) if contradicts else 0.0
        if self.since == INFINITY or sent_at > self.since:
            self.since = self._at = sent_at
            self._level, self._spent = -later, later
        return shortest
