"""Jittered backoff delays, and the pause of a key after a refusal.

Theory of operation. A pause is one gate of a key: a limiter that may hold its calls back. A refusal closes it for all
calls, instead of one sleep per refused call. While the gate is closed its end only ever moves later. When it opens and
nothing else paces the key, a single attempt goes first. Refusals return much sooner than answers. So an attempt that is
not refused within a few refusal round trips was admitted, and all calls may go.

The delay functions take a count and a uniform draw as arguments.
"""

from __future__ import annotations

TRANSIENT_ATTEMPTS = 3
"""Attempts at a call that fails for a reason that may pass, where the call's client repeats nothing. Raising it hides
longer failures, and sends more. Precedent: openai, one attempt and two retries."""

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0
"""Longest delay before the second attempt, doubled for each later one, and the longest of all. Raising them leaves a
caller idle after a short failure. Precedents: Phoenix, 1 s; promptfoo, 60 s."""

FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 120.0
"""Longest first pause after a refusal that states no time, doubled for each later one, and the longest pause before a
single attempt. Raising them leaves a key idle that admits calls again. Precedents: openai, `INITIAL_RETRY_DELAY` and
`MAX_RETRY_AFTER_DELAY`."""


def full_jitter(failures: int, draw: float) -> float:
    """Return the seconds before the attempt after `failures` (1 or more): uniform in [0, longest delay).

    `draw` is uniform in [0, 1). Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 (full jitter).
    """
    return draw * ceiling(failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)


def half_jitter(failures: int, draw: float) -> float:
    """Return the seconds of a shared cooldown: the upper half of the same range, so that it never ends at once."""
    return half_jitter_of(failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, draw)


def half_jitter_of(failures: int, base: float, cap: float, draw: float) -> float:
    """Return the same for delays from `base` to `cap` seconds."""
    return (0.5 + 0.5 * draw) * ceiling(failures, base, cap)


def ceiling(failures: int, base: float, cap: float) -> float:
    """Return the longest delay after `failures` failures, in seconds."""
    return float(min(cap, base * 2.0 ** min(max(0, failures - 1), 60)))


GRACE_ROUND_TRIPS = 3.0
"""Refusal round trips after which a single attempt counts as admitted: single refusals exceed the mean."""

GRACE_FIRST = 0.25
"""Seconds of that time before the first refusal was measured. Chosen: within `GRACE_BOUNDS`."""

GRACE_BOUNDS = (0.02, 2.0)
"""Bounds of that time in seconds. Chosen: a single measurement near zero, or of a stalled loop, must not decide."""


PROGRESS = 4
"""Calls admitted between two waves of refusals from which on the second wave is a new one. Chosen: a provider that
admits a few calls after each named time makes progress."""


IN_VAIN = 2
WAVE = 8
"""Repeated waves, and refusals of one wave, from which on a quota's mirror is not trusted to hold calls back."""


FADES = 0.9
"""Share of each attempt's weight that is left after a refusal. Chosen: ten refusals show a few per cent."""

OCCASIONAL = 0.2
"""Share of refused attempts up to which a refusal does not pause the key: then it costs less than a pause."""


class RefusedShare:
    """Share of the attempts that a provider refuses for a reason that no pace of this key changes.

    `admitted` attempts were known at the newest refusal.
    """

    __slots__ = ("_kept", "_refused", "admitted")

    def __init__(self) -> None:
        self.admitted, self._kept, self._refused = 0, 0.0, 0.0

    def refused(self, admitted: int) -> float:
        """Record a refusal, after `admitted` attempts of the key in all; return the share, by recent refusals."""
        self._kept = FADES * self._kept + max(0, admitted - self.admitted)
        self._refused = FADES * self._refused + 1.0
        self.admitted = max(admitted, self.admitted)
        return self._refused / (self._refused + self._kept)


class Pause:
    """Pause of one key. Instants are monotonic seconds. While `alone` the next attempt goes by itself.

    The gate has never been closed before `used` is set, so that a call need not ask it.
    `refusals` counts the waves of refusals since the last success; each makes the next delay without a hint longer. An
    attempt not refused within `grace` seconds was admitted. `opened_at` is the end of the pause before this one. The
    provider asked for a wait of `stated` seconds, until `stated_until`.
    """

    __slots__ = (
        "_admitted",
        "_grace_until",
        "_known",
        "_named",
        "_repeats",
        "_vain",
        "_wave",
        "alone",
        "grace",
        "opened_at",
        "refusals",
        "share",
        "stated",
        "stated_until",
        "until",
        "used",
    )

    def __init__(self) -> None:
        self.until = self.opened_at = float("-inf")
        self.used = self.alone = False
        self._grace_until = float("-inf")
        self.grace = GRACE_FIRST
        self._known = False
        self.refusals = 0
        self.share = RefusedShare()
        self.stated, self.stated_until = 0.0, float("-inf")
        self._admitted, self._repeats, self._wave = -PROGRESS, 0, 0
        # Of the repeats, those in a row of waves that name a time; the newest wave named one.
        self._vain, self._named = 0, False

    def repeated(self, admitted: int, named: bool = True) -> None:
        """Record a wave of refusals; only one that `named` a time can repeat the wave right before it."""
        few = admitted - self._admitted < PROGRESS
        self._repeats = self._repeats + 1 if few else 0
        self._vain = self._vain + 1 if few and named and self._named else 0
        self._admitted, self._wave, self._named = admitted, 0, named

    @property
    def is_unanswerable(self) -> bool:
        """Return whether calls went when they should, and were refused again and again, or many at once."""
        return self._repeats >= IN_VAIN or self._wave >= WAVE

    def close(
        self, now: float, hint: float | None, alone: bool, draw: float, new_wave: bool, stated: float = 0.0
    ) -> float:
        """Close the gate for `hint` seconds, or without one for a growing jittered delay; return its end.

        The provider asked for `stated` seconds, where a shorter wait is tried first. With `alone` the gate opens with a
        single attempt. Without a hint only the first refusal of a wave extends the delay. Refusals that repeat right
        after a named time double the wait, and the gate opens with a single attempt.
        """
        self.used = True
        if self.until <= now:
            self.opened_at = self.until
        self._wave += not new_wave
        if new_wave:
            self.refusals += 1
        if hint is not None and hint > 0.0:
            stated = stated or hint
            if new_wave or now + stated > self.stated_until:
                self.stated, self.stated_until = stated, now + stated
            # Calls that were in flight together are refused together: only the first of them shows a repetition.
            least = self.grace * 2.0 ** min(self._vain, 60) if self._vain and new_wave else 0.0
            self._extend(now + min(max(hint, least), MAX_PAUSE_SECONDS))
            alone = alone or self._vain > 0
        elif new_wave:
            self._extend(now + half_jitter_of(self.refusals, FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, draw))
        if alone and new_wave:
            self.alone = True
            self._grace_until = float("-inf")
        return self.until

    def answered(self) -> None:
        """Record a success: the next delay without a hint is short again."""
        self.refusals = 0
        self.alone = False
        self.stated_until = float("-inf")

    def stated_for(self, now: float) -> float:
        """Return the seconds until the time that the provider named, where the gate is closed; else 0."""
        return max(0.0, self.stated_until - now) if self.opens_at(now) > now else 0.0

    def answered_before(self, sent_at: float) -> None:
        """Record a success of an attempt sent before the newest refusals: the pause before them was long enough."""
        if self.refusals > 1 and sent_at >= self.opened_at:
            self.refusals = 1

    def refused_within(self, seconds: float) -> None:
        """Learn how fast this provider refuses."""
        low, high = GRACE_BOUNDS
        seen = min(high, max(low, GRACE_ROUND_TRIPS * seconds))
        self.grace = 0.7 * self.grace + 0.3 * seen if self._known else seen
        self._known = True

    def sent(self, now: float) -> None:
        if self.alone:
            self._grace_until = now + self.grace
            self.alone = False

    def withdrawn(self, sent_at: float) -> None:
        """Undo the attempt admitted at `sent_at`; the next attempt goes alone in its place."""
        if self._grace_until == sent_at + self.grace:
            self._grace_until = float("-inf")
            self.alone = True

    def opens_at(self, now: float) -> float:
        """Return when the next attempt may go."""
        return max(self.until, self._grace_until, now)

    def _extend(self, until: float) -> None:
        self.until = max(self.until, until)
