"""Trust in the time that a refusal names, scored by what became of attempts before that time.

Theory of operation. A `retry-after` may be true, too late, or a number that is always the same. Only an attempt before
its end can show. Each refusal that no quota explains names a time; the first of a *spell* begins one, which lasts until
an attempt is admitted. While nothing is known of a provider's hints, one attempt goes alone after a part of the time:

- It is admitted: that part is enough. The next spell tries a smaller part, until one is refused.
- It is refused, and its own hint is shorter by the seconds that passed: the hints are true, and are obeyed from then
  on.
- It is refused, and its own hint is shorter by more than that: the hints count down too fast. Two of them, and their
  rounding, give bounds of how fast. Each further pair narrows the bounds. The slowest countdown within them names the
  latest instant at which a call is admitted: that is waited for, because a bucket keeps what comes back until then.
- It is refused, and its own hint has not become shorter, although the seconds that passed exceed its rounding: the
  hints do not count down. A constant may be true (a refusal blocks the key for that time), so what was found to be
  enough is waited for, and nothing shorter is tried.

So a true hint usually costs one refusal for each key. Where refusals take so long that the outcome of a trial is not
known in time, hints are obeyed. All instants are monotonic seconds.
"""

from __future__ import annotations

from tidegate.core.backoff import GRACE_BOUNDS, PROGRESS
from tidegate.core.values import INFINITY

TRIED = 0.25
HALF = 0.5
"""Share of a hint after which one attempt goes: `TRIED`, or the rounding of the hint, up to `HALF`. Chosen: a quarter
precedes the end of a hint that is three times too long. Fewer seconds would hide how fast two rounded hints count
down."""

WHOLE = 1.0
"""Seconds to which a `retry-after` is rounded up (RFC 9110, section 10.2.3: whole seconds)."""

EXACT = 0.001
"""Seconds to which a hint with decimals is rounded (OpenAI's `retry-after-ms` and prose)."""


AGAIN = 2.0
"""Ratio to the longest hint whose trial showed nothing from which on another hint is tried. At 1 each hint of a second
costs a true provider a refusal."""


class HintTrust:
    """Trust in the hints of one key. `share` of a hint is known to be enough.

    The newest refusal named the instant `ends`. `counts_down` says that the hints are about an instant: they become
    shorter while time passes.
    """

    __slots__ = (
        "_begun",
        "_fixed",
        "_least",
        "_let_in",
        "_most",
        "_proved",
        "_told_little",
        "_tried",
        "_until",
        "counts_down",
        "ends",
        "share",
    )

    def __init__(self) -> None:
        self.share = 1.0
        self.counts_down = False
        # The share is not tried lower any more: a smaller one was refused, or the hints were found true.
        self._fixed = False
        self._let_in = 0
        # The attempt before the end of the newest hint was answered.
        self._proved = False
        self._begun = (0.0, 0.0)
        self._tried = 1.0
        self._until = self.ends = -INFINITY
        # The longest hint whose trial was refused and showed nothing, because of its rounding.
        self._told_little = 0.0
        # Bounds of the seconds by which a hint becomes shorter in one second, where that is more than one.
        self._least, self._most = 1.0, INFINITY

    def in_trial(self, sent_at: float) -> bool:
        return sent_at < self.ends

    def span(self, hint: float) -> tuple[float, float] | None:
        """Return the least and the most seconds after which a call is admitted again; None where no hint tells."""
        if not self.counts_down:
            return None
        low = max(0.0, hint - rounding_of(hint))
        if self.share >= 1.0:
            return low, hint
        return low / self._most, self.share * hint

    def answered(self, sent_at: float) -> None:
        self._proved = self._proved or sent_at >= self._until

    def seconds(self, hint: float, sent_at: float, now: float, let_in: int, grace: float, new_wave: bool) -> float:
        """Return the seconds until the next attempt goes; less than `hint` where it goes alone.

        The attempt sent at `sent_at` was refused when `let_in` attempts were admitted or in flight in all. What is not
        refused within `grace` seconds was admitted.
        """
        admitted, self._let_in = let_in > self._let_in, let_in
        if not new_wave:
            if self.share >= 1.0 and self._tried >= 1.0:
                return hint
            return min(hint, max(0.0, self._until - now))
        if admitted or sent_at >= self.ends:
            wait = self._begin(hint, grace, admitted)
            self._begun = sent_at, hint
        else:
            wait = self._compare(hint, sent_at)
            latest = self.ends - now
            if self.counts_down and wait == hint and hint - rounding_of(hint) < latest < hint:
                # Both hints are rounded up. They agree on an instant that the earlier one bounds more closely.
                wait = hint = latest
        self._until, self.ends = now + wait, now + hint
        return wait

    def _begin(self, hint: float, grace: float, admitted: bool) -> float:
        """Return the wait after the first refusal of a spell; `admitted` says that it comes after an admission."""
        if not admitted or self._let_in < PROGRESS:
            # The time that was named was too short, or the key was hardly used and loses little by waiting.
            self._tried = 1.0
            return hint
        if self._proved and self._tried < self.share:
            # The attempt of the last spell was admitted.
            self.share = self._tried
        self._proved = False
        part = self.share
        if not self._fixed and grace < GRACE_BOUNDS[1] and hint > AGAIN * self._told_little:
            part *= max(TRIED, min(HALF, rounding_of(hint) / hint))
            if part * hint < grace:
                # The outcome is unknown of an attempt before that.
                part = self.share if self.share >= 1.0 else 0.0
        self._tried = part
        return part * hint

    def _compare(self, hint: float, sent_at: float) -> float:
        """Return the wait after a further refusal of a spell, whose hint is compared with the first one."""
        began, first = self._begun
        passed = sent_at - began
        tried, self._tried = self._tried, self.share
        if passed <= 0.0:
            return self.share * hint
        rounding = max(rounding_of(hint), rounding_of(first))
        least, most = (first - hint - rounding) / passed, (first - hint + rounding) / passed
        if least > 1.0:
            if least > self._most or most < self._least:
                self._least, self._most = least, most
            else:
                self._least, self._most = max(self._least, least), min(self._most, most)
            self.share = self._tried = min(self.share, 1.0 / self._least)
            self._fixed = self.counts_down = True
            return hint / self._least
        # Rounding makes no constant shorter. A hint that has become longer is about no instant.
        self.counts_down = hint < first or (self.counts_down and hint == first)
        if most < 0.5:
            self._fixed = True
            return self.share * hint
        if tried < self.share:
            self._fixed = self._fixed or self.share < 1.0 or most < 2.0
            self._told_little = max(self._told_little, first)
        # What was enough in another spell is waited for since the first refusal of this one.
        return hint if self.share >= 1.0 else max(0.0, began + self.share * first - sent_at)


def rounding_of(hint: float) -> float:
    """Return the seconds to which a hint seems to be rounded."""
    return WHOLE if hint == round(hint) else EXACT
