"""Policies of the pacer's phases, and its waits.

Theory of operation. After a refusal all calls wait, until one attempt goes alone (`first_wait`, `next_wait`). The first
wait lets some of the hidden quota come back. If the lone attempt is refused too, the next one goes later, and later
each time, but no wait passes the end of a natural window that began with the run (`natural_wait`). A server that
reports overload is asked more often, so that its recovery is seen. One that limits the growth of a client's rate
(slope) soon admits calls again.

- `StartupPhase`: while the rate is unknown, the pace grows until it is refused.
- `cruise_seconds`: the seconds for which a measured rate is held before a rise measures it again. A rise costs
  refusals, and gains the units that came back unused during holding. So it may be late where the hidden bucket keeps
  those units, but not where it keeps nothing. It is soon where the rate is far below the best known one, or has just
  changed.
- `ProbeUpPhase`: the steps by which a held pace is raised, until one is refused.
- `DrainDelay`: the wait after a hidden bucket was drained, because calls in flight may still be charged.
- `PaceFloor`: the pace of one lone caller (the *floor*) is tried before a slower one is believed.

A refusal without a hint may come from a hidden rate, or from a cause unrelated to the pace. Under a hidden rate, slower
calls are refused less; under any other cause they are not. So a pace below the floor is believed only after a trial of
the floor that admitted no more than the slow pace does. After a failed trial the next one follows twice as many calls
later. If calls at the believed pace are refused too, slowness did not help, and the next trial is due at once.
"""

from __future__ import annotations

from enum import IntEnum
from math import sqrt

from tidegate.core.backoff import FIRST_PAUSE_SECONDS, MAX_BACKOFF_SECONDS, REFUSED_CUT_FACTOR
from tidegate.core.chance_odds import BELIEVED_LOG_ODDS, PROVEN_LOG_ODDS
from tidegate.core.rate_meter import Burst, PacingBucket, RateMeter
from tidegate.core.values import INFINITY, Cause
from tidegate.core.window_bounds import NATURAL_WINDOWS_SECONDS


class PacerPhase(IntEnum):
    """The states of the pacer."""

    STARTUP = 0
    CRUISE = 1
    PROBE_UP = 2
    RAMP = 3
    WINDOWED = 4


HELD_RATE_SHARE = 0.97
"""Share of the measured rate that is held; the rest is spent by the next rise (langroid holds 0.9, and spends none)."""

HOLD_SECONDS = 1.0
CHANGED_RATE_HOLD_SECONDS = 2.0
HOLD_CALLS_PER_REFUSAL = 150
PRECISE_CALLS = 60
BEST_RATE_SHARE = 0.85
SAME_RATE_SHARE = 1.0 - BEST_RATE_SHARE
"""Seconds of holding: `HOLD_SECONDS` for a rate below `BEST_RATE_SHARE` of the best, `CHANGED_RATE_HOLD_SECONDS` for
one that changed by more than `SAME_RATE_SHARE`. Else `HOLD_CALLS_PER_REFUSAL` pay for each refusal since the last
measurement, fewer if it had less than `PRECISE_CALLS` calls."""

SMALL_BUCKET_CALLS = 2.5
"""Calls of a bucket below which it keeps next to nothing."""

SHALLOW_BUCKET_CALLS = 16.0
SHALLOW_BUCKET_SECONDS = 0.5
"""Calls of a bucket, or seconds of its rate, below which it soon runs over where its rate rises."""

FIRST_HOLD_CALLS = 20.0
FIRST_HOLD_GROWTH = 3.0
"""Calls for which a rate is held that was measured once, because it may change again, and factor for each
repetition."""


def cruise_seconds(
    gauge: RateMeter, before: float, count: int, price: float, again: int = 9, precise: bool = False
) -> float:
    """Return the seconds to hold the rate that was just measured from `count` calls, at the price of `refusals`.

    It was `before` (0: unknown). Rates are in calls a second. A `precise` rate is known within the share that is left
    unused.
    """
    rate, best = gauge.rate, gauge.best
    if rate < BEST_RATE_SHARE * best:
        patience = HOLD_SECONDS
    elif abs(rate - before) > SAME_RATE_SHARE * before and (before or not precise):
        patience = CHANGED_RATE_HOLD_SECONDS
    else:
        paid = price * HOLD_CALLS_PER_REFUSAL
        patience = max(CHANGED_RATE_HOLD_SECONDS, paid * min(1.0, count / PRECISE_CALLS) / rate)
    first = FIRST_HOLD_CALLS * max(1.0, price - 1.0) * FIRST_HOLD_GROWTH ** min(again, 9)
    if gauge.content < max(SHALLOW_BUCKET_CALLS, SHALLOW_BUCKET_SECONDS * rate):
        patience = max(HOLD_SECONDS, min(patience, first / rate))
    return patience


LEAST_CALLS_PER_SECOND = 1.0 / MAX_BACKOFF_SECONDS
"""Least pace in calls a second: waits for one call grow as far as any other delay (C-17)."""

MAX_FIRST_WAIT_SECONDS = 0.75
FIRST_WAIT_RUN_SHARE = 0.8
"""Wait of all calls after the first refusal: this share of the run before it, `MAX_FIRST_WAIT_SECONDS` seconds at most.
Any bucket that the run came from keeps what comes back in that time."""

WAIT_GROWTH = 1.6
WAIT_CALLS = 2.0
OUTAGE_WAIT_GROWTH = 1.1
OUTAGE_WAITS = 4
MAX_WAITS = 60
"""While nothing is admitted, waits grow by `WAIT_GROWTH`, from the time of `WAIT_CALLS` on. Under overload the first
`OUTAGE_WAITS` stay at `FIRST_PAUSE_SECONDS`, so that a recovery is seen; more of them were an outage, after which the
former state returns. No wait grows beyond the sixtieth."""

CLIMB_WAIT_SECONDS = 0.16
CLIMB_WAITS = 8
"""Under a slope limit: the first wait in seconds, and the number of equal waits. Later ones grow by `WAIT_GROWTH`."""


def first_wait(run: Burst, cause: Cause, grace: float) -> float:
    """Return the seconds that all calls wait after the first refusal, which ended `run`; at least `grace`."""
    if cause is Cause.SLOPE:
        return CLIMB_WAIT_SECONDS
    most = FIRST_PAUSE_SECONDS if cause is Cause.OVERLOAD else MAX_FIRST_WAIT_SECONDS
    return min(most, max(grace, FIRST_WAIT_RUN_SHARE * run.seconds))


def next_wait(spacing: PacingBucket, cause: Cause) -> float:
    """Return the seconds until the next attempt goes alone, after a refused one."""
    waits = spacing.waits + 1
    seconds = max(WAIT_GROWTH * spacing.wait, WAIT_CALLS / spacing.rate)
    if cause is Cause.OVERLOAD:
        seconds = min(seconds, FIRST_PAUSE_SECONDS * OUTAGE_WAIT_GROWTH ** min(MAX_WAITS, max(0, waits - OUTAGE_WAITS)))
    elif cause is Cause.SLOPE:
        seconds = CLIMB_WAIT_SECONDS * WAIT_GROWTH ** min(MAX_WAITS, max(0, waits - CLIMB_WAITS))
    return min(seconds, 1.0 / LEAST_CALLS_PER_SECOND)


def natural_wait(seconds: float, elapsed: float, grace: float, late: float = 0.0) -> float:
    """Return the wait that ends with the first natural window before the planned one does.

    Many limiters begin a window at the first call of a run, `elapsed` seconds ago, and their periods are natural ones.
    An attempt at such an instant meets the new window at once. It goes `grace` seconds later, as messages may be late,
    and no attempt follows a refusal sooner than that. Messages of the run may have taken longer, up to `late` seconds.
    So each further attempt goes after twice the delay of the one before, up to `late`.
    """
    delays = [grace]
    while 0.0 < delays[-1] < late:
        delays.append(min(late, 2.0 * delays[-1]))
    ends = (window + delay - elapsed for window in NATURAL_WINDOWS_SECONDS for delay in delays)
    return next((end for end in ends if grace < end < seconds), seconds)


FIRST_WAITS = 4.0
"""First waits that are added to the seconds of the run, over which the first pace spreads its calls."""

SEEK_STEP = 1.5
SEEK_CALLS = 3
"""While the rate is unknown the pace grows by `SEEK_STEP` after `SEEK_CALLS` admitted calls; a refusal cuts it by
`REFUSED_CUT_FACTOR` at most. It exceeds `MAX_RISE_STEP` times the admitted rate only after `HOLD_SECONDS`: a faster
pace has more calls in flight when it is refused, and they are refused or charged later."""


class StartupPhase:
    """The search of one key; paces are in calls a second."""

    __slots__ = ("_lead_until",)

    def __init__(self) -> None:
        self._lead_until = 0.0

    def first(self, run: Burst, wait: float) -> float:
        """Return the first pace after a refusal ended `run`, and no call went for `wait` seconds."""
        return run.calls / (run.seconds + FIRST_WAITS * wait)

    def begin(self, now: float) -> None:
        self._lead_until = now + HOLD_SECONDS

    def back(self, pace: float, count: int, seconds: float) -> float:
        """Return the pace after one at which only `count` calls were admitted in `seconds`."""
        return min(pace, max(pace * REFUSED_CUT_FACTOR, (count + 0.5) / seconds))

    def step(self, pace: float, let_in: float, now: float, small: bool = False) -> float:
        """Return the pace after one that was not refused; `let_in` calls a second went since the start."""
        if not small and now < self._lead_until and pace * SEEK_STEP > MAX_RISE_STEP * let_in:
            return pace
        self.begin(now)
        return pace * SEEK_STEP


FIRST_RISE_STEP = 1.25
MAX_RISE_STEP = 2.0
RISE_STEP_SECONDS = 0.15
RISE_STEP_CALLS = 2
"""A rise begins with the step `FIRST_RISE_STEP`, or `MAX_RISE_STEP` far below the best rate. A step that holds for
`RISE_STEP_SECONDS` and `RISE_STEP_CALLS` is squared, up to `MAX_RISE_STEP`. Beyond `MAX_RISE_STEP` times the best a
step must hold for `HOLD_SECONDS`."""

RISES_PER_SLOW_RISE = 6
"""Rises that show the same rate, of which the last one takes equal steps of `HOLD_SECONDS`: a provider that limits
growth refuses each quick rise at the same rate. Measured (even seeds): at 2 and at 4, `bucket-and-chance` takes 0.07
and 0.05 longer on average."""


class ProbeUpPhase:
    """The next rise of one key; paces are in calls a second."""

    __slots__ = ("_factor", "_growth", "_highest", "_seconds")

    def __init__(self) -> None:
        self._factor, self._growth, self._highest = FIRST_RISE_STEP, 2.0, 0.0
        self._seconds = RISE_STEP_SECONDS

    def narrow(self, pace: float, best: float, step: float, seconds: float = RISE_STEP_SECONDS) -> None:
        """Prepare a rise from `pace` in equal steps, each of which has to hold for `seconds`."""
        self.prepare(pace, best)
        self._factor, self._growth, self._seconds = step, 1.0, seconds

    def prepare(self, pace: float, best: float) -> None:
        """Prepare a rise from `pace`, where `best` was known."""
        self._growth, self._seconds = 2.0, RISE_STEP_SECONDS
        self._factor = FIRST_RISE_STEP if pace >= BEST_RATE_SHARE * best else MAX_RISE_STEP
        self._highest = MAX_RISE_STEP * best

    def step(self, pace: float) -> tuple[float, float]:
        """Return the pace to try after `pace`, and the seconds for which it has to hold."""
        tried = pace * self._factor
        self._factor = min(MAX_RISE_STEP, self._factor**self._growth)
        if tried <= self._highest:
            return tried, self._seconds
        # Twice the best was never known: it is believed where it holds for a while.
        if pace >= self._highest:
            self._highest *= MAX_RISE_STEP
        return min(tried, self._highest), HOLD_SECONDS


AFTERMATH_KEPT_SHARE = 0.7
MAX_AFTERMATH_SECONDS = 1.0
FIRST_AFTERMATH_SECONDS = 0.3
AFTERMATH_CONTENT_SHARE = 0.045
"""Seconds without calls after a bucket was drained, because calls in flight may still be charged (output tokens). They
are as long as last time, `MAX_AFTERMATH_SECONDS` at most; the first time `AFTERMATH_CONTENT_SHARE` of the content: half
an answer."""


class DrainDelay:
    """The state of that wait for one key; instants and durations are in seconds."""

    __slots__ = ("_drained_at", "_lasts")

    def __init__(self) -> None:
        self._drained_at = self._lasts = 0.0

    def refused(self, wait: float, now: float) -> None:
        """Record a refusal during a hold, followed by a `wait`: charges of calls in flight may have caused it."""
        if 0.0 < now - self._drained_at < MAX_AFTERMATH_SECONDS:
            self._lasts = now - self._drained_at + wait

    def drained(self, now: float) -> None:
        self._drained_at = now

    def seconds(self, burst: float, pace: float) -> float:
        """Return the seconds to wait now, at `pace` calls a second, where the bucket holds `burst` calls."""
        lasts = max(self._lasts, min(FIRST_AFTERMATH_SECONDS, AFTERMATH_CONTENT_SHARE * burst / pace))
        self._lasts *= AFTERMATH_KEPT_SHARE
        return lasts


SHORTEST_CALL_SECONDS = 0.001
LONGEST_CALL_SECONDS = 1.0
"""Bounds of the latency in seconds. The lower one keeps the floor finite where a clock stands still. The upper one is a
tenth of the ten seconds within which a key that is admitted again must be in full use."""

BETTER_PACE_RATIO = 2.0
"""Ratio of admitted calls to those of the slow pace at which a trial succeeds: at 1 rounding decides."""

MAX_CALLS_BETWEEN_TRIALS = 64
"""Most calls between two failed trials: one refusal in 64 calls is within the 0.02 of a silent provider."""

PROVING_TRIALS = 4
"""Failed trials in a row, one a call, after which trials come apart: slowness may seem useless by chance."""

NAMED_PROVING_TRIALS = 2 * PROVING_TRIALS
"""Failed trials that count as made where refusals name a time: the next trial is 32 calls later. Measured (laws):
without any trial, keys that are refused at random with a hint stay slow."""


class PaceFloor:
    """The slowest pace of one key that needs no proof; paces are in calls a second, instants in monotonic seconds.

    `pace` is the floor. While `trying`, the floor is used instead of a slower pace. `proofs` failed trials count
    as made: where a hidden rate clearly explains the refusals, trials that fail come apart at once.
    """

    __slots__ = ("_better", "_count", "_failed", "_next", "pace", "proofs", "since", "slow", "trying")

    def __init__(self) -> None:
        self.pace = 0.0
        self.trying = False
        self.proofs = 0
        self.slow, self._better = 0.0, BETTER_PACE_RATIO
        self._failed, self._next = 0, 0
        self._count, self.since = 0, 0.0

    def know(self, latency: float) -> None:
        """Set the floor by the mean `latency` of answers in seconds; infinity where none came yet."""
        self.pace = 1.0 / max(SHORTEST_CALL_SECONDS, min(latency, LONGEST_CALL_SECONDS))

    def due(self, pace: float, let_in: int) -> bool:
        """Return whether the floor is to be tried instead of `pace`, after `let_in` calls."""
        return pace < self.pace and let_in >= self._next and not self.trying

    def begin(self, pace: float, let_in: int, now: float, between: bool = False) -> float:
        """Begin a trial where `pace` was used, after `let_in` calls; return the pace of the trial: the floor.

        With `between`, each second trial is at the mean of both: a full bucket of one call seems slower than it is, and
        refuses the floor too.
        """
        self.trying = True
        self.slow = pace
        self._count, self.since = let_in, now
        between = between and self._failed % 2 == 1
        more = self.pace / pace
        self._better = min(BETTER_PACE_RATIO, sqrt(sqrt(more))) if between else BETTER_PACE_RATIO
        return pace * sqrt(more) if between else self.pace

    def holds(self, let_in: int, content: float, now: float) -> bool:
        """Return whether the trial has admitted more than a bucket of this content would at the slow pace."""
        return let_in - self._count > content + self._better * self.slow * (now - self.since)

    def judge(self, let_in: int, alone: bool, sent_at: float) -> bool:
        """Judge a trial by the refusal of an attempt sent at `sent_at`; return whether the former pace returns.

        An attempt that went `alone` after a wait, or before the trial, shows nothing about the floor.
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
        if count >= 1.0 + self._better * self.slow * (sent_at - self.since):
            self._failed, self._next = 0, let_in
            return False
        self._failed = 1 + max(self._failed, self.proofs)
        self._next = let_in + max(1, min(MAX_CALLS_BETWEEN_TRIALS, 1 << max(0, self._failed - PROVING_TRIALS)))
        return True

    def weigh(self, stray_odds: float, named: bool, slow: bool) -> None:
        """Count trials as made by the logarithm of the odds that refusals are stray; one of a `slow` pace may be."""
        if slow and stray_odds > -BELIEVED_LOG_ODDS:
            self.doubt()
        self.proofs = PROVING_TRIALS if -INFINITY < stray_odds < -PROVEN_LOG_ODDS else 0
        if named and stray_odds < 0.0:
            self.proofs = NAMED_PROVING_TRIALS

    def doubt(self) -> None:
        """Make the next trial due at once: slowness did not help."""
        self._failed, self._next = 0, 0
