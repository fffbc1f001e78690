"""Jittered backoff delays, the pause of a key after a refusal, and the trust in the time that a refusal names.

Theory of operation. A pause is one gate of a key: a limiter that may hold its calls back. A refusal closes it for all
calls, instead of one sleep per refused call. While the gate is closed its end only ever moves later. When it opens and
nothing else paces the key, a single attempt goes first. Refusals return much sooner than answers. So an attempt that is
not refused within a few refusal round trips was admitted, and all calls may go.

The delay functions take a count and a uniform draw as arguments.

`HintTrust` scores the time that a refusal names by what became of attempts before that time. A `retry-after` may be
true, too late, or a number that is always the same. Only an attempt before its end can show. Each refusal that no quota
explains names a time; the first of a *spell* begins one, which lasts until an attempt is admitted. While nothing is
known of a provider's hints, one attempt goes alone after a part of the time:

- It is admitted: that part is enough. The next spell tries a smaller part, until one is refused.
- It is refused, and its own hint is shorter by the seconds that passed: the hints are true, and are obeyed from then
  on.
- It is refused, and its own hint is shorter by more than that: the hints count down too fast. Two of them, and their
  rounding, give bounds of how fast. Each further pair narrows the bounds. The slowest countdown within them names the
  latest instant at which a call is admitted: that is waited for, because a bucket keeps what comes back until then.
- It is refused, and its own hint has not become shorter, although the seconds that passed exceed its rounding: the
  hints do not count down. A later trial follows. If it is refused, too, the constant may be true (a refusal blocks the
  key for that time). So what was found to be enough is waited for, and nothing shorter is tried.

So a true hint usually costs one refusal for each key. Where refusals take so long that the outcome of a trial is not
known in time, hints are obeyed.
"""

from __future__ import annotations

from tidegate.core.values import INFINITY, PAST_WEIGHT_SHARE

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

ABSURD_HINT_SECONDS = 86_400.0
"""Seconds of a wait that no capacity refusal is believed to ask for (TinyLLM#17: 86400 s for a minute's limit)."""

REFUSED_CUT_FACTOR = 0.5
"""Factor on the slots, or on a pace, at a refusal that no other bound explains. Raising it meets more refusals;
lowering it leaves capacity idle. Precedents: TCP Reno and promptfoo, 0.5."""


def full_jitter(failures: int, draw: float) -> float:
    """Return the seconds before the attempt after `failures` (1 or more): uniform in [0, longest delay).

    `draw` is uniform in [0, 1). Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 (full jitter).
    """
    return draw * ceiling(failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)


def half_jitter(failures: int, draw: float) -> float:
    """Return the seconds of a shared cooldown: the upper half of the same range, so that it never ends at once."""
    return half_jitter_of(failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, draw)


def half_jitter_of(failures: int, base: float, cap: float, draw: float) -> float:
    return (0.5 + 0.5 * draw) * ceiling(failures, base, cap)


def ceiling(failures: int, base: float, cap: float) -> float:
    """Return the longest delay after `failures` failures, in seconds."""
    return float(min(cap, base * 2.0 ** min(max(0, failures - 1), 60)))


GRACE_ROUND_TRIPS = 3.0
"""Refusal round trips after which a single attempt counts as admitted: single refusals exceed the mean."""

FIRST_GRACE_SECONDS = 0.25
"""Seconds of that time before the first refusal was measured. Chosen: within `GRACE_BOUNDS_SECONDS`."""

GRACE_BOUNDS_SECONDS = (0.02, 2.0)
"""Bounds of that time in seconds. Chosen: a single measurement near zero, or of a stalled loop, must not decide."""


PROGRESS_CALLS = 4
"""Calls admitted between two waves of refusals from which on the second wave is a new one. Chosen: a provider that
admits a few calls after each named time makes progress."""


REPEATED_WAVES = 2
WAVE_REFUSALS = 8
"""Repeated waves, and refusals of one wave, from which on a quota's mirror is not trusted to hold calls back."""


OCCASIONAL_REFUSAL_SHARE = 0.2
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
        self._kept = PAST_WEIGHT_SHARE * self._kept + max(0, admitted - self.admitted)
        self._refused = PAST_WEIGHT_SHARE * self._refused + 1.0
        self.admitted = max(admitted, self.admitted)
        return self._refused / (self._refused + self._kept)


class Pause:
    """Pause of one key. Instants are monotonic seconds. While `alone` the next attempt goes by itself.

    The gate has never been closed before `used` is set, so that a call need not ask it. `refusals` counts the waves of
    refusals since the last success; each makes the next delay without a hint longer. An attempt not refused within
    `grace` seconds was admitted. `opened_at` is the end of the pause before this one. The provider asked for a wait of
    `stated` seconds, until `stated_until`.

    After a hold, groups go while `alone`: the present one has `_group` attempts, of which `_left` were not sent yet.
    """

    __slots__ = (
        "_admitted",
        "_again",
        "_grace_until",
        "_group",
        "_known",
        "_left",
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
        self._group = self._left = 0
        self._grace_until = float("-inf")
        self.grace = FIRST_GRACE_SECONDS
        self._known = False
        self.refusals = 0
        self.share = RefusedShare()
        self.stated, self.stated_until = 0.0, float("-inf")
        self._admitted, self._repeats, self._wave = -PROGRESS_CALLS, 0, 0
        # Of the repeats, those in a row of waves that name a time; the newest wave named one.
        self._vain, self._named, self._again = 0, False, False

    def repeated(self, admitted: int, named: bool = True, again: bool = False) -> None:
        """Record a wave of refusals; only one that `named` a time can repeat the wave right before it.

        A call that is refused `again` shows nothing about the key, so its waves make later pauses no longer.
        """
        few = admitted - self._admitted < PROGRESS_CALLS
        self._repeats = self._repeats + 1 if few else 0
        self._again = again and few and named and self._named
        self._vain = self._vain + (not again) if few and named and self._named else 0
        self._admitted, self._wave, self._named = admitted, 0, named

    @property
    def is_repeated(self) -> bool:
        """Return whether the newest wave of refusals came before enough calls were admitted after the last one."""
        return self._repeats > 0

    @property
    def is_unanswerable(self) -> bool:
        """Return whether calls went when they should, and were refused again and again, or many at once."""
        return self._repeats >= REPEATED_WAVES or self._wave >= WAVE_REFUSALS

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
            if self._again and new_wave:
                least = min(2.0 * hint, self.grace * 2.0 ** min(self._repeats, 60))
            self._extend(now + min(max(hint, least), MAX_PAUSE_SECONDS))
            alone = alone or self._vain > 0 or self._again
        elif new_wave:
            self._extend(now + half_jitter_of(self.refusals, FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, draw))
        if alone and new_wave:
            self.alone = True
            self._grace_until = float("-inf")
        return self.until

    def hold(self, now: float) -> None:
        """Close the gate for `FIRST_GRACE_SECONDS` seconds, then let groups of 1, 2, 4, ... attempts go one after
        another.

        The refusals of attempts in flight arrive meanwhile. Each of them would free a slot for a call that is refused.
        """
        self.used = True
        self._extend(now + FIRST_GRACE_SECONDS)
        self.alone, self._group, self._left = True, 1, 1
        self._grace_until = float("-inf")

    @property
    def _waits_for_second(self) -> bool:
        """Return whether the first attempt after a hold was sent, and the second group was not."""
        return self._group == self._left == 2

    def end_hold(self) -> bool:
        """Let all calls go; return whether the newest attempt was the first one after a hold."""
        lone = self._waits_for_second
        if self._group:
            self.alone, self._group, self._grace_until = False, 0, float("-inf")
        return lone

    def answered(self) -> None:
        """Record a success: the next delay without a hint is short again."""
        self.refusals = 0
        self.alone = self._group > 0
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
        low, high = GRACE_BOUNDS_SECONDS
        seen = min(high, max(low, GRACE_ROUND_TRIPS * seconds))
        self.grace = 0.7 * self.grace + 0.3 * seen if self._known else seen
        self._known = True

    def sent(self, now: float, limit: float = INFINITY, begins: bool = True) -> bool:
        """Count an attempt; return whether a run of admitted calls begins with it: as `begins` says, but for a hold.

        The first attempt after a hold continues the run before it. Where that attempt was admitted, the second group
        begins a new one. No group is larger than `limit`, the calls that may be in flight. Groups end where the key was
        idle.
        """
        if self._group and now > max(self.until, self._grace_until) + GRACE_BOUNDS_SECONDS[1]:
            self.alone, self._group = False, 0
        if not self._group:
            if self.alone:
                self.alone, self._grace_until = False, now + self.grace
            return begins
        begins = self._waits_for_second or (begins and self._group > 1)
        self._left -= 1
        if not self._left:
            # The first attempt shows whether a window is spent, so its refusal is waited for.
            self._grace_until = now + (self.grace if self._group == 1 else min(self.grace, FIRST_GRACE_SECONDS))
            self._group *= 2
            self._left = self._group
            if self._group >= limit:
                self.alone, self._group = False, 0
        return begins

    def withdrawn(self, sent_at: float) -> None:
        """Undo the attempt admitted at `sent_at`; the next attempt goes alone in its place."""
        if self._grace_until == sent_at + self.grace:
            self._grace_until = float("-inf")
            self.alone = True
            self._group = self._left = min(self._group, 1)
        elif self._group:
            self._left += 1

    def opens_at(self, now: float) -> float:
        return max(self.until, self._grace_until, now)

    def _extend(self, until: float) -> None:
        self.until = max(self.until, until)


NEXT_TRIAL_FACTOR = 4.0
"""Factor from the share of a refused trial to that of the next one, where hints do not count down. Chosen: a quarter
precedes the end of a hint that is three times too long."""

FIRST_TRIAL_SHARE = NEXT_TRIAL_FACTOR**-2
LAST_TRIAL_SHARE = 0.5
"""Share of a hint after which one attempt goes: `FIRST_TRIAL_SHARE`, or the rounding of the hint, up to
`LAST_TRIAL_SHARE`. Derived: two trials, each a factor apart, precede the end of the hint. Up to a quarter of the hint,
two roundings pass: fewer seconds would hide how fast two rounded hints count down."""

WHOLE_HINT_SECONDS = 1.0
"""Seconds to which a `retry-after` is rounded up (RFC 9110, section 10.2.3: whole seconds)."""

EXACT_HINT_SECONDS = 0.001
"""Seconds to which a hint with decimals is rounded (OpenAI's `retry-after-ms` and prose)."""


NEW_TRIAL_HINT_RATIO = 2.0
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
        if not admitted or self._let_in < PROGRESS_CALLS:
            # The time that was named was too short, or the key was hardly used and loses little by waiting.
            self._tried = 1.0
            return hint
        if self._proved and self._tried < self.share:
            # The attempt of the last spell was admitted.
            self.share = self._tried
        self._proved = False
        part = self.share
        if not self._fixed and grace < GRACE_BOUNDS_SECONDS[1] and hint > NEW_TRIAL_HINT_RATIO * self._told_little:
            rounding = rounding_of(hint) / hint
            told = min(1.0 / NEXT_TRIAL_FACTOR, 2.0 * rounding)
            part *= max(FIRST_TRIAL_SHARE, told, min(LAST_TRIAL_SHARE, rounding))
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
            # The hints say nothing: a later trial follows, up to the share that was enough.
            self._tried = min(self.share, tried * NEXT_TRIAL_FACTOR) if tried else self.share
            self._fixed = self._tried >= self.share
            return self._tried * hint
        if tried < self.share:
            self._fixed = self._fixed or self.share < 1.0 or most < 2.0
            self._told_little = max(self._told_little, first)
        # What was enough in another spell is waited for since the first refusal of this one.
        return hint if self.share >= 1.0 else max(0.0, began + self.share * first - sent_at)


def rounding_of(hint: float) -> float:
    """Return the seconds to which a hint seems to be rounded."""
    return WHOLE_HINT_SECONDS if hint == round(hint) else EXACT_HINT_SECONDS
