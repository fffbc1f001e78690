"""Jitter, and the pause of a key that a refusal sets for all its calls.

One shared gate per key that a refusal closes for everybody, instead of one sleep per refused call.

Theory of operation. While the gate is closed its end only ever moves later. When it lifts and nothing else paces the
key, it reopens with a single attempt: refusals come back much sooner than answers, so an attempt that was not refused
within a few refusal round trips was let in, and the gate is open.

Delays before another attempt, from a count and a uniform draw that is passed in.
"""

from __future__ import annotations


def full_jitter(failures: int, base: float, cap: float, draw: float) -> float:
    """Seconds before the attempt after `failures` failures (1 or more): uniform between 0 and min(cap, base·2^(n−1)).

    `draw` is uniform in [0, 1). Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 (full jitter).
    """
    return draw * ceiling(failures, base, cap)


def half_jitter(failures: int, base: float, cap: float, draw: float) -> float:
    """Seconds for a shared gate: the upper half of the same range, so that it never reopens at once."""
    return (0.5 + 0.5 * draw) * ceiling(failures, base, cap)


def ceiling(failures: int, base: float, cap: float) -> float:
    """The longest delay after `failures` failures, in seconds."""
    return float(min(cap, base * 2.0 ** min(max(0, failures - 1), 60)))


GRACE_ROUND_TRIPS = 3.0
GRACE_FIRST = 0.25
GRACE_BOUNDS = (0.02, 2.0)
"""How long a lone attempt may go unrefused before it counts as let in: three refusal round trips, in seconds."""


class Pause:
    """The pause of one key; all instants are monotonic seconds. While `alone` the next attempt goes by itself.

    `refusals` without a hint make each delay longer, until a call comes through. An attempt that was not refused within
    `grace` seconds was let in.
    """

    __slots__ = ("_grace_until", "_known", "alone", "base", "cap", "grace", "refusals", "until")

    def __init__(self, base: float, cap: float) -> None:
        self.base = base
        self.cap = cap
        self.until = float("-inf")
        self.alone = False
        self._grace_until = float("-inf")
        self.grace = GRACE_FIRST
        self._known = False
        self.refusals = 0

    def close(self, now: float, hint: float | None, alone: bool, draw: float, new_wave: bool) -> float:
        """Closes the gate for `hint` seconds, or for a growing jittered delay without one; returns its end.

        A hint is capped at `cap` seconds. With `alone` it reopens with a single attempt. Without a hint only the first
        refusal of a wave moves it.
        """
        if new_wave:
            self.refusals += 1
        if hint is not None and hint > 0.0:
            self._extend(now + min(hint, self.cap))
        elif new_wave:
            self._extend(now + half_jitter(self.refusals, self.base, self.cap, draw))
        if alone and new_wave:
            self.alone = True
            self._grace_until = float("-inf")
        return self.until

    def answered(self) -> None:
        """A call came through: the next delay without a hint is short again."""
        self.refusals = 0
        self.alone = False

    def refused_within(self, seconds: float) -> None:
        """Learns how fast this provider refuses."""
        low, high = GRACE_BOUNDS
        seen = min(high, max(low, GRACE_ROUND_TRIPS * seconds))
        self.grace = 0.7 * self.grace + 0.3 * seen if self._known else seen
        self._known = True

    def sent(self, now: float) -> None:
        """An attempt goes out; the lone one starts its grace."""
        if self.alone:
            self._grace_until = now + self.grace
            self.alone = False

    def withdrawn(self, sent_at: float) -> None:
        """Undo the attempt admitted at `sent_at`: where it was the lone attempt, the next one is."""
        if self._grace_until == sent_at + self.grace:
            self._grace_until = float("-inf")
            self.alone = True

    def opens_at(self, now: float) -> float:
        """When the next attempt may go out."""
        until = self.until if self.until > self._grace_until else self._grace_until
        return until if until > now else now

    def _extend(self, until: float) -> None:
        self.until = max(self.until, until)
