"""Tries the pace of one lone caller before a slower one is believed.

Theory of operation. A refusal without a hint may come from a hidden rate, or from something that has nothing to do
with how fast calls go. Under a hidden rate, slower calls are refused less; under anything else they are not. So a pace
slower than what one caller alone would send (the *floor*) is believed only where the floor itself was tried and let in
no more than the slow pace does. A failed trial is followed by the next one after twice as many calls. Where calls are
refused although they go as slowly as is believed, slowness did not help, and the next trial is due at once.
"""

from __future__ import annotations

SHORTEST_CALL = 0.001
LONGEST_CALL = 1.0
"""Seconds that count of a shorter and of a longer latency. The first keeps the floor finite where a clock stands still.
Raising the second makes the floor slower for keys with long answers. One second is a tenth of the ten seconds within
which a key that is admitted again is to be in full use."""

BETTER = 2.0
"""A trial succeeds where it lets in this many times what the slow pace would. Raising it refuses more of the trials
that random refusals interrupt; at 1 a trial of a true rate would succeed by rounding."""

TRIALS_APART = 64
"""Calls let in between two failed trials at most: one refusal in 64 calls is within the 0.02 of a silent provider."""

PROOFS = 4
"""Failed trials in a row, one a call, before they come apart. Raising it costs a true rate one more refusal each time
slowness seemed not to help, and frees a key sooner whose trials random refusals interrupt."""


class Floor:
    """The slowest pace of one key that needs no proof; paces are in calls a second, instants in monotonic seconds.

    `pace` is the floor. While `trying`, the floor is used instead of a slower pace.
    """

    __slots__ = ("_count", "_failed", "_next", "pace", "since", "slow", "trying")

    def __init__(self) -> None:
        self.pace = 0.0
        self.trying = False
        self.slow = 0.0
        self._failed, self._next = 0, 0
        self._count, self.since = 0, 0.0

    def know(self, latency: float) -> None:
        """Set the floor by the mean `latency` of answers in seconds; infinity where none came yet."""
        self.pace = 1.0 / max(SHORTEST_CALL, min(latency, LONGEST_CALL))

    def due(self, pace: float, let_in: int) -> bool:
        """Return whether the floor is to be tried instead of `pace`, after `let_in` calls."""
        return pace < self.pace and let_in >= self._next and not self.trying

    def begin(self, pace: float, let_in: int, now: float) -> float:
        """Begin a trial where `pace` was used, after `let_in` calls; return the floor."""
        self.trying = True
        self.slow = pace
        self._count, self.since = let_in, now
        return self.pace

    def judge(self, let_in: int, alone: bool, sent_at: float) -> bool:
        """Judge a trial by the refusal of what was sent at `sent_at`; return whether the pace is what it was before.

        An attempt that went `alone`, after a wait, says nothing of the floor; nor does one that had gone slowly.
        """
        if not self.trying:
            return False
        if sent_at <= self.since:
            self.trying = False
            return True
        count = let_in - self._count
        if alone and not count:
            return False
        self.trying = False
        if count >= 1.0 + BETTER * self.slow * (sent_at - self.since):
            self._failed, self._next = 0, let_in
            return False
        self._failed += 1
        self._next = let_in + max(1, min(TRIALS_APART, 1 << max(0, self._failed - PROOFS)))
        return True

    def doubt(self) -> None:
        """Slowness did not help: the next trial is due at once."""
        self._failed, self._next = 0, 0
