"""Pacer: finds the rate of a limit that no header announces, and holds it.

Theory of operation. The pacer is idle until a refusal that no quota mirror explains. From then on `PacingBucket` spaces
the calls. Their pace follows the rate that the provider admits between its refusals (`RateMeter`). `PacerPhase` has
five phases:

- *Seeking* (`StartupPhase`): the rate is unknown. Where nothing was admitted since the last refusal, the next attempt
  goes alone, and later each time (`next_wait`). The first admitted attempts give an estimate. The pace grows from it
  until it is refused.
- *Holding* (`cruise_seconds`): the pace stays just below the measured rate for a while.
- *Rising* (`ProbeUpPhase`): the pace is stepped up until a refusal measures the rate again. The rise uses the units
  that came back unused during holding, so holding below the rate loses nothing. For each refusal that a rise costs, a
  number of calls must pass before the next rise. A rate far below the best known one may recover at any time, so its
  rise waits for no calls.
- *Climbing* (`RampPhase`): the provider refuses fast growth (slope), and a model of its limit says when calls go.
- *Windowed* (`WindowedPhase`): the provider admits a number of calls, then none until a boundary. The calls of a window
  go at once, and single attempts look for the next boundary. A hint that is known to count down states the boundary.

A key that leaves the pace unused proves nothing: a hold lasts as much longer, any other phase begins again.

Refusals may have other causes than the rate. So a pace slower than that of one lone caller is used only where that pace
was tried first (`PaceFloor`). After two refused holds in a row the rate is raised without a wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from tidegate.core.backoff import PROGRESS_CALLS, REFUSED_CUT_FACTOR
from tidegate.core.chance_odds import BELIEVED_LOG_ODDS
from tidegate.core.pacer_phases import (
    FIRST_RISE_STEP,
    HELD_RATE_SHARE,
    HOLD_SECONDS,
    LEAST_CALLS_PER_SECOND,
    MAX_RISE_STEP,
    OUTAGE_WAITS,
    RISE_STEP_CALLS,
    RISE_STEP_SECONDS,
    RISES_PER_SLOW_RISE,
    SAME_RATE_SHARE,
    SEEK_CALLS,
    SHALLOW_BUCKET_CALLS,
    SHALLOW_BUCKET_SECONDS,
    SMALL_BUCKET_CALLS,
    DrainDelay,
    PaceFloor,
    PacerPhase,
    ProbeUpPhase,
    StartupPhase,
    cruise_seconds,
    first_wait,
    natural_wait,
    next_wait,
)
from tidegate.core.ramp_phase import RampPhase
from tidegate.core.rate_meter import Burst, PacingBucket, RateMeter
from tidegate.core.values import INFINITY, Cause
from tidegate.core.windowed_phase import WINDOW_SIGN_WAITS, WindowedPhase

MAX_SAVED_CALLS_PER_SECOND = 1e5
MAX_SAVED_BURST_SECONDS = 3600.0
"""Most calls a second that are taken from an earlier run, and most seconds of them that a bucket may hold."""

DEEP_BUCKET_CALLS = 30
TRUE_PACE_SHARE = 0.9
DOUBTED_MEASUREMENTS = 2
"""The rate is measured from `PROGRESS_CALLS` calls between two refusals, from `DEEP_BUCKET_CALLS` of a deep bucket. A
hold that ends below `TRUE_PACE_SHARE` of its pace was measured too high; else capacity went. Few calls are doubted
`DOUBTED_MEASUREMENTS` times unless they show a rate below that share."""

LEAST_RISE_STEP = 1.02
"""Least first step of a rise, where a bucket of one or two calls is known well."""

WIDE_RATE_RATIO = 2.5
"""Ratio of the highest to the least possible rate from which on the calls between two refusals measure none."""

KEPT_PACE_CALLS = 2 * PROGRESS_CALLS
"""Calls after which a refusal ends a hold; after fewer it shows a drop, or a measurement too high."""

CHANCE_CALLS = 2
"""Calls that go at once after a refusal that chance may have caused: an empty bucket refuses them. Measured: 3 cost the
family `flips` 0.002 refusals a call."""


class Pacer:
    """The pace of one key; idle until `active`. Instants are monotonic seconds."""

    __slots__ = (
        "_again",
        "_base",
        "_broken",
        "_changed",
        "_drain_delay",
        "_floor",
        "_former",
        "_highest",
        "_instead",
        "_least",
        "_next",
        "_next_count",
        "_patience",
        "_probe_up",
        "_ramp",
        "_seeded",
        "_startup",
        "_stated_before",
        "_windows",
        "active",
        "chance_odds",
        "gauge",
        "hint",
        "named",
        "phase",
        "spacing",
        "stated",
        "stray_odds",
        "timed",
    )

    def __init__(self) -> None:
        self.active = self._seeded = False
        self.phase = PacerPhase.STARTUP
        self._instead = (self.phase, 0.0, 0.0, 0)
        self.gauge = RateMeter()
        self.spacing = PacingBucket()
        self._startup, self._probe_up, self._ramp = StartupPhase(), ProbeUpPhase(), RampPhase()
        self._drain_delay, self._floor = DrainDelay(), PaceFloor()
        self._base = self.hint = 0.0
        # The newest refusal named a time, true or not.
        self.named, self._changed = False, True
        # The hints of refusals count down, so refusals have a cause that time ends.
        self.timed = False
        # Instants between which the next call is admitted, by the hints of the newest refusal and the one before.
        self.stated: tuple[float, float] | None = None
        self._stated_before: tuple[float, float] | None = None
        # Logarithm of the odds that refusals come at random, and not from a hidden rate.
        self.stray_odds = -INFINITY
        # The same where the rate may change: a refusal counts as random by these odds alone.
        self.chance_odds = -INFINITY
        self._windows = WindowedPhase()
        self._next, self._next_count = 0.0, 0
        self._broken = self._again = 0
        self._least = 0.0
        self._highest = INFINITY
        self._patience = HOLD_SECONDS
        # The pace before trouble began: 0 where there was none, negative where it is not to come back.
        self._former = 0.0

    @property
    def rate(self) -> float:
        """Pace in calls a second."""
        return self.spacing.rate

    @property
    def sustained_rate(self) -> float:
        """Return the pace, in calls a second, that a long queue can expect: the held one, also during a short rise."""
        return self._base or self.rate

    @property
    def mark(self) -> int:
        """Return the attempts sent so far, which an attempt hands back with its refusal; -1 without a pace."""
        return self.gauge.sent if self.active else -1

    def expects(self, cause: Cause) -> bool:
        """Return whether the model of a limit on growth explains refusals of this cause."""
        return self.phase is PacerPhase.RAMP and self._ramp.expects(cause)

    def sent(self, now: float, waited: float = 0.0) -> None:
        """Count a call that goes out after waiting `waited` seconds; asked only while active."""
        gauge, spacing = self.gauge, self.spacing
        gauge.went(now)
        proven = spacing.proven(now)
        if proven and spacing.waits >= OUTAGE_WAITS and self._former >= 0.0:
            self._recover(now)
            return
        if self.phase is PacerPhase.WINDOWED:
            if not self._windows.send(gauge, spacing, proven, now):
                self._leave_window(now)
            return
        ramping = self.phase is PacerPhase.RAMP
        if ramping:
            if self._ramp.sent(spacing, gauge.sent - 1, gauge.burst, proven, now):
                return
            self._start_up(self.rate, now)
        suspicious = self.phase is PacerPhase.STARTUP or self._windows.expected or spacing.waits >= OUTAGE_WAITS
        if proven and spacing.waits >= WINDOW_SIGN_WAITS and suspicious and not ramping:
            if self._windows.suspect(gauge, spacing, now):
                self.phase, self._floor.trying = PacerPhase.WINDOWED, False
            return
        alone, unused = spacing.sent(gauge.burst, now, waited)
        if alone:
            self._windows.lone_at = now
        if unused:
            self._rest(unused, now)
        if not alone and now >= self._next and gauge.sent >= self._next_count:
            self._step(now)
        self._try_floor(now)

    def withdrawn(self, sent_at: float, now: float) -> None:
        """Undo the count of a call that was admitted at `sent_at` and never sent."""
        if self._ramp.growth is not None:
            self._ramp.growth.withdrawn(sent_at)
        self.gauge.withdrawn()
        self.spacing.withdrawn(sent_at, now)

    def begin(
        self,
        run: Burst,
        sent_at: float,
        now: float,
        cause: Cause,
        grace: float,
        latency: float = INFINITY,
        known: float = 0.0,
        lone: bool = False,
    ) -> None:
        """Take in the first refusal, of the attempt sent at `sent_at` after the `run` of admitted calls.

        A lone attempt that is not refused within `grace` seconds was admitted. Answers take `latency` seconds. The
        refused attempt was `lone`: it went by itself after a hold, and shows as much as `WINDOW_SIGN_WAITS` of them.
        """
        self._floor.know(latency)
        self._floor.trying = False
        self._seeded = False
        self._former = 0.0 if cause is Cause.OVERLOAD else -1.0
        self.gauge.note(run, sent_at)
        self._windows.begin(run, sent_at, grace)
        self.gauge.stated = self.stated
        self.gauge.begin(sent_at)
        self.spacing.grace = grace
        self.spacing.reset_backoff()
        wait = first_wait(run, cause, grace)
        if cause is Cause.SLOPE:
            self.phase = PacerPhase.RAMP
            self.spacing.set_rate(self._ramp.first(run, sent_at), now)
        else:
            rate = self._startup.first(run, wait)
            if known > 0.0:
                rate, wait = known, max(grace, min(1.0 / known, 1.0 / LEAST_CALLS_PER_SECOND))
            self._start_up(rate, now)
        self.spacing.ready(0.0, now)
        self.spacing.wait_alone(wait)
        self.spacing.waits = WINDOW_SIGN_WAITS if lone else 0
        self.active = True  # Last: an interrupt leaves no active pacer without a rate.

    def refused(
        self,
        mark: int,
        sent_at: float,
        now: float,
        new_wave: bool,
        cause: Cause,
        grace: float,
        latency: float = INFINITY,
    ) -> None:
        """Take in a refusal of the attempt that was sent with `mark`; asked only while active."""
        self.spacing.grace = grace
        self.gauge.stated = self.stated
        self._floor.know(latency)
        alone = self.spacing.alone(now)
        self.spacing.emptied(now)
        if mark < 0:
            # It was sent before the first was known. What one wave costs is what the next one may.
            self.gauge.price += 1
            self._windows.run_calls -= 1
            if self._ramp.growth is not None:
                self._ramp.growth.late()
            return
        let_in = self.gauge.refused(mark)
        if self.expects(cause):
            self.gauge.zero(let_in, sent_at)
            if cause is not Cause.SLOPE and self._ramp.growth is not None and self._ramp.growth.refuted:
                self._start_up(self._ramp.growth.rate, now)
            elif not self._ramp.too_steep(self.spacing, mark, sent_at, now):
                self._wait(cause, sent_at, now)
            return
        windowed = self.phase is PacerPhase.WINDOWED
        late = windowed and self._windows.is_late(sent_at)
        if late or not new_wave:
            if late or (windowed and not alone):
                self._windows.late()
            return
        if windowed and self._refuse_windowed(let_in, mark, sent_at, now):
            self.gauge.zero(let_in, sent_at)
            return
        count, seconds = self.gauge.since_zero(let_in, sent_at)
        windows, stated = self._windows, self.stated
        if cause is Cause.RATE and stated and windows.is_stated(self.gauge, stated, count, seconds, sent_at):
            self.phase, self._floor.trying = PacerPhase.WINDOWED, False
            windows.begin_stated(self.gauge, self.spacing, stated, self._stated_before, count, let_in, sent_at, now)
            return
        self._stated_before = self.stated
        if self.chance_odds > -0.5 * BELIEVED_LOG_ODDS and count >= KEPT_PACE_CALLS and cause is Cause.RATE:
            self.spacing.burst(CHANCE_CALLS, now)
            return
        self._least, self._highest = self.gauge.bounds(mark, sent_at)
        # Where nothing was admitted, an outage may have refused as well as a rate.
        told = self.named and count > 0 and self.gauge.informed
        self._changed = not (told and self.gauge.believe(self._least, self._highest))
        tried = self._judge_floor(let_in, alone, sent_at, now) and sent_at > self._floor.since
        if tried and (not self.gauge.informed or self._highest > WIDE_RATE_RATIO * self._least):
            return
        held = self.phase is PacerPhase.CRUISE and not tried
        self._learn(let_in, count, seconds, cause, held, sent_at, now)
        if not 0 < count < PROGRESS_CALLS:
            # Where nothing came back it is still empty.
            self.gauge.zero(let_in, sent_at)
        if count >= PROGRESS_CALLS:
            self.spacing.reset_backoff()
        if self.hint > 0.0 and self.phase is not PacerPhase.RAMP:
            # What comes back during the pause is known by measurement only: a pace on trial saves one call.
            self.spacing.paused(self.hint, min(self.rate, self.gauge.rate) if self.gauge.rate else 0.0)

    def _judge_floor(self, let_in: int, alone: bool, sent_at: float, now: float) -> bool:
        """Judge a trial of the floor by a refusal; return whether it failed, so that the former pace returned."""
        floor = self._floor
        slow = floor.trying or self.rate < floor.pace
        self.gauge.doubted = slow and self.stray_odds > 0.0
        floor.weigh(self.stray_odds, self.named, slow)
        failed = floor.judge(let_in, alone, sent_at)
        if failed:
            self.phase, rate, self._next, self._next_count = self._instead
            self.spacing.set_rate(rate, now)
        return failed

    def ignore(self, mark: int, now: float) -> None:
        """Take in a refusal at random: no slower pace would have been admitted instead, so a faster one is tried."""
        if mark >= 0:
            self.gauge.refused(mark)
        self.chance_odds = 2.0 * BELIEVED_LOG_ODDS
        self._floor.trying = False
        if self.phase is not PacerPhase.WINDOWED and self.phase is not PacerPhase.RAMP:
            self._start_up(min(MAX_SAVED_CALLS_PER_SECOND, MAX_RISE_STEP * self.rate), now)

    def _refuse_windowed(self, let_in: int, mark: int, sent_at: float, now: float) -> bool:
        """Return whether a window explains the calls before a refusal: its model continues, or the next is known."""
        windows = self._windows
        explained = windows.refuse(self.spacing, self.stated, let_in, sent_at, now)
        growth = windows.growth(self.gauge, mark, sent_at, explained)
        if growth is not None:
            self.phase = PacerPhase.RAMP
            self._ramp.continue_by(growth, self.spacing, mark, sent_at, now)
            return True
        if explained:
            return True
        self._leave_window(now)
        return windows.expect(let_in)

    def _leave_window(self, now: float) -> None:
        self._start_up(self._windows.leave(self.gauge, self.spacing, self.named, now), now)

    def export(self, now: float) -> dict[str, float]:
        if not self.active or not self.gauge.rate:
            return {}
        return {"rate": self.sustained_rate, "burst": self.gauge.burst}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Hold the rate that an earlier run measured; the first rise or refusal measures it again."""
        rate = plain.get("rate", 0.0)
        if not LEAST_CALLS_PER_SECOND <= rate <= MAX_SAVED_CALLS_PER_SECOND:
            return
        self.active = self._seeded = True
        self.gauge.rate = rate
        self.gauge.burst = min(MAX_SAVED_BURST_SECONDS * rate, max(1.0, plain.get("burst", 1.0)))
        self.gauge.begin(now)
        self._former = -1.0
        self.spacing.ready(1.0, now)
        self._cruise(rate, now)

    def disproved(self) -> bool:
        """Return whether the first refusal comes too soon for the rate of an earlier run; asked at each refusal."""
        seeded, self._seeded = self._seeded, False
        return seeded and self.gauge.sent <= PROGRESS_CALLS

    def _learn(
        self, let_in: int, count: int, seconds: float, cause: Cause, cruising: bool, sent_at: float, now: float
    ) -> None:
        """Take in that `count` calls were admitted within `seconds` since the zero, of `let_in` altogether."""
        rate = self.rate
        if cruising and count >= KEPT_PACE_CALLS and self._is_edge(rate):
            # A call that came a moment early: as much is given up as its refusal cost.
            self.gauge.low = rate * (1.0 - 1.0 / count)
            self._cruise(self.gauge.low, now)
            return
        if cruising and count >= KEPT_PACE_CALLS:
            self._broken += 1
        elif cruising and 0 < count < PROGRESS_CALLS and rate <= self.gauge.low:
            # A refusal at the rate that the bounds call proven contradicts them: messages were late, or it fell.
            self.gauge.low, self.gauge.high = self._least, self._highest
        nothing, deep = self.gauge.nothing_new(let_in), self.gauge.deep(rate)
        # No rate near the held one admits as few calls as these.
        fell = cruising and not (nothing or deep) and self.gauge.informed and self._highest < TRUE_PACE_SHARE * rate
        if (
            count < PROGRESS_CALLS
            and not fell
            and (nothing or (cruising and (deep or self.spacing.waits < DOUBTED_MEASUREMENTS)))
        ):
            self._wait(cause, sent_at, now)
        elif count < PROGRESS_CALLS and not fell:
            middle = sqrt(self._least * self._highest) if self.gauge.informed else 0.0
            if self.hint > 0.0 and self.gauge.informed:
                # The calls were as far apart as the provider asked for: what is faster than their bound is refused.
                rate = min(rate, self.gauge.high)
                middle = sqrt(self.gauge.low * self.gauge.high) or middle
            self._start_up(
                min(rate, max(middle, REFUSED_CUT_FACTOR * rate))
                if middle
                else self._startup.back(rate, count, seconds),
                now,
            )
        elif seconds <= 0.0:
            # Members that hear each other late may settle a call that was sent before the zero: it measures no rate.
            pass
        elif (
            cruising
            and (count / seconds > TRUE_PACE_SHARE * rate or (self.gauge.informed and self._highest < rate))
            and self._broken < DOUBTED_MEASUREMENTS
        ):
            self._former = rate
            self._patience = HOLD_SECONDS
            if rate < self._floor.pace:
                self._floor.doubt()
            # Capacity went by an unknown amount: two cuts at once. A bucket keeps what they leave.
            self._start_up(rate * REFUSED_CUT_FACTOR**2, now)
        elif cruising and count < DEEP_BUCKET_CALLS and deep:
            before, took = self.gauge.last
            self._measure(count + before, seconds + took, now)
        elif self.gauge.informed and self._highest > WIDE_RATE_RATIO * self._least:
            self._start_up(sqrt(max(LEAST_CALLS_PER_SECOND, self._least) * self._highest), now)
        else:
            self._measure(count, seconds, now)
        if self.phase is PacerPhase.CRUISE:
            self._drain_delay.refused(self.spacing.wait, now)

    def _is_edge(self, rate: float) -> bool:
        """Return whether the bounds of a bucket of one call still exclude that the rate fell."""
        gauge = self.gauge
        return gauge.informed and gauge.content <= 1.0 and self._highest >= TRUE_PACE_SHARE * rate

    def _wait(self, cause: Cause, sent_at: float, now: float) -> None:
        """Let the next attempt go alone, and later: hardly anything was admitted since the last refusal."""
        if cause is not Cause.OVERLOAD:
            self._former = -1.0
        grown = seconds = next_wait(self.spacing, cause)
        if cause is Cause.RATE:
            seconds = natural_wait(grown, now - self._windows.run_begun_at, self.spacing.grace, self._windows.run_grace)
            # Where refused calls count against a window that moves with the calls, they come back a period later, too.
            seconds = natural_wait(seconds, now - self._windows.run_ended_at, self.spacing.grace)
            # A wait that ends early makes no later one shorter.
            grown = max(seconds, self.spacing.wait)
        self._windows.refused_at = sent_at
        if self.rate < self._floor.pace and self.phase is not PacerPhase.RAMP:
            self._floor.doubt()
            self._start_up(self.rate, now)
        self.spacing.wait_alone(seconds)
        self.spacing.wait = grown
        self._after(self._patience if self.phase is PacerPhase.CRUISE else 0.0, SEEK_CALLS, now)

    def _recover(self, now: float) -> None:
        """Restore the state before an outage."""
        self.spacing.waits = 0
        if self._former > 0.0:
            self.spacing.ready(0.0, now)
            self._cruise(self._former, now)
        else:
            self.active = False

    def _try_floor(self, now: float) -> None:
        """Continue at the floor where it is due; a failed trial undoes what is done now."""
        gauge, floor = self.gauge, self._floor
        if self.phase is PacerPhase.RAMP or self.timed or not floor.due(self.rate, gauge.let_in):
            return
        self._instead = (self.phase, self.rate, self._next, self._next_count)
        self.phase = PacerPhase.STARTUP
        self.spacing.set_rate(floor.begin(self.rate, gauge.let_in, now, gauge.content < SMALL_BUCKET_CALLS), now)
        self._startup.begin(now)
        self._after(self.spacing.grace, 1, now)

    def _start_up(self, rate: float, now: float) -> None:
        self.phase = PacerPhase.STARTUP
        self.spacing.set_rate(max(LEAST_CALLS_PER_SECOND, rate), now)
        self._base = 0.0
        self._startup.begin(now)
        self._after(0.0, SEEK_CALLS, now)
        self._try_floor(now)

    def _measure(self, count: int, seconds: float, now: float) -> None:
        gauge = self.gauge
        probed_up, started_up = self.phase is PacerPhase.PROBE_UP, self.phase is PacerPhase.STARTUP
        before, price = gauge.rate, gauge.price
        overflown = gauge.informed and count < self._least * seconds
        if overflown:
            seconds = count / sqrt(self._least * self._highest)
        gauge.measured(count, seconds)
        rate = gauge.rate
        if probed_up and abs(rate - before) <= SAME_RATE_SHARE * before:
            self._broken = 0
        if before and gauge.content >= SMALL_BUCKET_CALLS and not self._changed:
            # Few calls measure a rate roughly: it is the same while one rate explains all of them. A bucket of one or
            # two calls may have run over, which hides a faster rate.
            before = rate
        self._again = self._again + 1 if not gauge.informed or abs(rate - before) <= SAME_RATE_SHARE * before else 0
        precise = HELD_RATE_SHARE * self._highest <= self._least
        self._patience = (
            cruise_seconds(gauge, before, count, price, self._again, precise)
            if self._broken < DOUBTED_MEASUREMENTS
            else 0.0
        )
        # Half a call for what may have been left at either instant.
        sure = HELD_RATE_SHARE * (rate if overflown else (count - 0.5) / seconds)
        gauge.believe(self._least, self._highest)
        if gauge.content < SMALL_BUCKET_CALLS or overflown:
            # Half a call is much of such a bucket: what it is known to admit is held.
            sure = gauge.low
        elif gauge.informed and (precise or self._again):
            # The admitted calls prove this much, and the rate has not just changed.
            sure = max(sure, gauge.low)
        self._cruise(sure, now)
        if self._again % RISES_PER_SLOW_RISE == RISES_PER_SLOW_RISE - 1:
            self._probe_up.narrow(self.rate, gauge.best, FIRST_RISE_STEP, HOLD_SECONDS)
        if probed_up or started_up:
            self.spacing.hold_off(self._drain_delay.seconds(gauge.burst, self.rate))
        lost = max(0.0, rate * self.hint - gauge.content)
        if lost and gauge.high > self.rate:
            # What is left unused until the next rise may be as much as its refusal costs.
            self._patience = max(self._patience, 2.0 * lost / (gauge.high - self.rate))
            self._after(self._patience, 0, now)
        self._drain_delay.drained(now)

    def _cruise(self, rate: float, now: float) -> None:
        rate = max(LEAST_CALLS_PER_SECOND, rate)
        self.phase = PacerPhase.CRUISE
        self._base = rate
        self.spacing.set_rate(rate, now)
        self.gauge.best = max(self.gauge.best, rate)
        gauge = self.gauge
        best = gauge.best if self._broken < DOUBTED_MEASUREMENTS else INFINITY
        if gauge.content < SMALL_BUCKET_CALLS and 0.0 < gauge.low <= rate * LEAST_RISE_STEP:
            # Such a bucket refuses the first pace above its rate: the middle of what is possible is tried.
            self._probe_up.narrow(rate, best, min(FIRST_RISE_STEP, max(LEAST_RISE_STEP, sqrt(gauge.high / rate))))
        else:
            self._probe_up.prepare(rate, best)
        self._after(self._patience, 0, now)
        self._try_floor(now)

    def _step(self, now: float) -> None:
        """Take in that the calls sent at this pace were admitted."""
        if self.phase is PacerPhase.STARTUP:
            self._after(RISE_STEP_SECONDS, SEEK_CALLS, now)
            gauge = self.gauge
            if self._floor.trying and (not gauge.informed or self._floor.holds(gauge.let_in, gauge.content, now)):
                # Nothing was refused at the floor, so the rate that refusals suggested was none: nothing is known.
                self.spacing.set_rate(MAX_RISE_STEP * self.rate, now)
                self._after(self.spacing.grace, 1, now)
            else:
                small = (
                    gauge.content < max(SHALLOW_BUCKET_CALLS, SHALLOW_BUCKET_SECONDS * self.rate)
                    or self.chance_odds > BELIEVED_LOG_ODDS
                )
                self.spacing.set_rate(self._startup.step(self.rate, gauge.pace(now), now, small), now)
        else:
            if self.phase is PacerPhase.CRUISE and self._broken < DOUBTED_MEASUREMENTS:
                self._broken = 0
            self._base, self.phase = self.rate, PacerPhase.PROBE_UP
            rate, seconds = self._probe_up.step(self.rate)
            self.spacing.set_rate(rate, now)
            self._after(seconds, RISE_STEP_CALLS, now)

    def _rest(self, unused: float, now: float) -> None:
        """Take in that the pace was left unused for these seconds, which prove nothing."""
        if self.phase is PacerPhase.PROBE_UP:
            self._cruise(self._base, now)
        elif self.phase is PacerPhase.CRUISE:
            # The hold lasts as long in use: short bursts would never end it otherwise.
            self._next += unused
        else:
            self._after(RISE_STEP_SECONDS, SEEK_CALLS, now)

    def _after(self, seconds: float, calls: int, now: float) -> None:
        self._next, self._next_count = now + seconds, self.gauge.sent + calls
