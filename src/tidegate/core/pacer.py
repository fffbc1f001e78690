"""Finds the rate of a limit that no header announces, and holds it.

Theory of operation. The pacer is idle until a refusal that no mirror explains. From then on calls are spaced
(`spacing`) at a pace that follows what the provider lets in between its refusals (`gauge`):

- *seeking*: the rate is not known. Where nothing at all was let in since the last refusal, the next attempt goes
  alone, and each time later; what is let in then gives a first estimate, and the pace grows until it is refused.
- *holding*: just under the measured rate, for `patience` seconds.
- *rising*: the pace is stepped up until a refusal measures the rate anew. What came back unused while holding is spent
  by the rise, so that holding under the rate loses nothing. Each refusal that a rise costs is paid by calls before the
  next, unless the rate is far under the best that was known: then it may be back at any time.
- *climbing*: the provider refuses fast growth (slope); the pace grows steadily, slower after each refusal.

A key that leaves the pace unused proves nothing: its phase begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from tidegate.core.gauge import Gauge, Run
from tidegate.core.spacing import INFINITY, Spacing
from tidegate.core.vocabulary import Cause

MARGIN = 0.97
"""Share of the measured rate that is held; the rest is spent by the next rise (langroid holds 0.9, and spends none)."""

DROP = 0.25
"""Cut at a refusal where the pace had held: capacity went, nobody knows how much. A bucket keeps what this leaves."""

SLOWEST = 1.0 / 60.0
FASTEST = 1e5
BURST_MOST = 3600.0
"""Calls a second that are tried at least (C-17: growing to 60 s); those of an earlier run that are believed at most,
and the seconds of them that a bucket may hold."""

FIRST_WAIT_MOST = 0.75
FIRST_WAIT_SHARE = 0.8
FIRST_WAITS = 4.0
"""The first refusal holds everybody back for this share of the run before it, at most so many seconds: what comes back
meanwhile is kept by any bucket that the run came from. The first pace spreads the run over four times that more."""

SEEK_STEP = 1.5
SEEK_CALLS = 3
SEEK_BACK = 0.5
SEEK_LEAD = 2.0
"""While the rate is not known the pace grows by half when so many calls were let in; a refusal halves it at most. It
runs ahead of what was let in so far by no more than this (as a rise: `RISE_MOST`), or only after `PATIENCE_SECONDS`:
the faster it is when it is refused, the more calls are under way, and are refused or charged later."""

STEP = 1.25
STEP_MOST = 2.0
STEP_SECONDS = 0.15
STEP_CALLS = 2
RISE_MOST = 2.0
"""The first step of a rise; each that holds for so long and so many calls is followed by its square, up to double. Far
under the best rate it begins with that. Beyond twice the best a step has to hold for `PATIENCE_SECONDS`."""

PATIENCE_SECONDS = 1.0
PATIENCE_KNOWN = 2.0
PATIENCE_CALLS = 150.0
PATIENCE_SHALLOW = 110.0
PRECISE = 60
TOP = 0.85
SAME = 0.15
"""Seconds of holding while the rate is under `TOP` of the best, and where it has changed by more than `SAME`. Else so
many calls pay for each refusal since the last measurement (one in 150 is 0.007), less where fewer than `PRECISE` were
measured. A bucket that keeps nothing loses what is held too low: there fewer pay for a rise."""

CERTAIN = 80
KEPT_SHARE = 0.5
"""A first measurement of so many calls is precise enough to be held as long. Nothing is held for longer than it takes
until what is left unused is this share of the bucket: the next rise spends it, beyond that it would run over."""

ANNOUNCED_SHARE = 0.985
ANNOUNCED_NEAR = 0.5
ANNOUNCED_PATIENCE = 30.0
"""Where the rate seems to be near one that headers announce, that is what is held, and for long: it is the same quota,
enforced over shorter periods (60 a minute as 1 a second)."""

SURE = 4
MANY = 30
TRUE_SHARE = 0.9
DOUBTS = 2
"""Calls let in between two refusals from which their rate is taken, and so many from a deep bucket. While holding, less
than `TRUE_SHARE` of the pace was no drop but a measurement too high; a few calls are doubted so many times."""

SMALL = 2.5
SMALL_SECONDS = 0.5
SURPLUS = (0.97, 1.015)
"""A bucket of less than so many calls, or seconds of its rate, keeps next to nothing. Where a rise finds no more than
what was held, none was kept either. Then the pace that it began with is held, on trial."""

AFTERMATH_FADES = 0.7
AFTERMATH_MOST = 1.0
AFTERMATH_FIRST = 0.3
AFTERMATH_SHARE = 0.045
"""After the bucket has been drained, calls under way may still be charged (output tokens). Nothing goes for as long
as that lasted the last time, a second at most; at first for this share of what the bucket holds: half an answer."""

WAIT_GROWTH = 1.6
WAIT_CALLS = 2.0
OUTAGE_SECONDS = 0.5
OUTAGE_GROWTH = 1.1
OUTAGE_WAITS = 4
WAITS_MOST = 60
"""Waits grow while nothing is let in, from two calls' time on. Where a server says that it is overloaded they stay
within half a second at first, so that its recovery is seen; after so many of them it was an outage, and everything is
as it was before. None grows beyond the sixtieth."""

CLIMB_FROM = 1.2
CLIMB = 1.1
CLIMB_SECONDS = 0.15
CLIMB_SOONER = 0.8
CLIMB_SLOWER = 1.2
CLIMB_WAIT = 0.16
CLIMB_WAITS = 8
CLIMB_WAIT_GROWTH = 1.5
"""Under a slope limit: the first pace, times what was let in during a second; its growth at each step; seconds to the
first step, and how they change with a step that holds and one that is refused; the first wait, how many are as long,
and how they grow then."""


class Phase(IntEnum):
    """What the pacer does."""

    SEEKING = 0
    HOLDING = 1
    RISING = 2
    CLIMBING = 3


class Pacer:
    """The pace of one key; idle until `active`. Instants are monotonic seconds."""

    __slots__ = (
        "_aftermath",
        "_base",
        "_climb",
        "_factor",
        "_former",
        "_held",
        "_highest",
        "_kept",
        "_lead_until",
        "_measured_at",
        "_most",
        "_next",
        "_next_count",
        "_patience",
        "_promoted_from",
        "_seeded",
        "active",
        "gauge",
        "phase",
        "spacing",
    )

    def __init__(self) -> None:
        self.active = self._seeded = self._kept = False
        self.phase = Phase.SEEKING
        self.gauge = Gauge()
        self.spacing = Spacing()
        self._most = INFINITY
        self._base = self._held = self._highest = self._promoted_from = 0.0
        self._factor, self._climb = STEP, CLIMB_SECONDS
        self._next, self._next_count = 0.0, 0
        self._patience = PATIENCE_SECONDS
        self._lead_until = 0.0
        self._measured_at = self._aftermath = 0.0
        # The pace before trouble began: 0 where there was none, negative where it is not to come back.
        self._former = 0.0

    @property
    def rate(self) -> float:
        """The pace, in calls a second."""
        return self.spacing.rate

    @property
    def mark(self) -> int:
        """What an attempt that goes out now must bring along to its refusal; -1 while nothing is paced."""
        return self.gauge.sent if self.active else -1

    def sent(self, now: float) -> None:
        """A call goes out; asked only while active."""
        gauge, spacing = self.gauge, self.spacing
        gauge.sent += 1
        if spacing.proven(now) and spacing.waits >= OUTAGE_WAITS and self._former >= 0.0:
            self._recover(now)
            return
        alone, unused = spacing.sent(gauge.burst, now)
        if unused:
            self._rest(now)
        if not alone and now >= self._next and gauge.sent >= self._next_count:
            self._step(now)

    def begin(self, run: Run, sent_at: float, now: float, cause: Cause, grace: float) -> None:
        """The first refusal, of what was sent at `sent_at`, after the `run` of calls that were let in.

        Of what goes alone nothing is heard for `grace` seconds where it was let in.
        """
        self.active, self._seeded = True, False
        self._most = run.most
        self._former = 0.0 if cause is Cause.OVERLOAD else -1.0
        self.gauge.note(run)
        self.gauge.begin(sent_at)
        self.spacing.grace = grace
        self.spacing.went_on()
        wait = min(OUTAGE_SECONDS if cause is Cause.OVERLOAD else FIRST_WAIT_MOST, max(grace, FIRST_WAIT_SHARE * run.seconds))
        if cause is Cause.SLOPE:
            wait = CLIMB_WAIT
            self.phase = Phase.CLIMBING
            self.spacing.rate = max(SLOWEST, CLIMB_FROM * run.calls / max(1.0, run.seconds))
            self._after(self._climb, 0, now)
        else:
            rate = run.calls / (run.seconds + FIRST_WAITS * wait)
            self._seek(ANNOUNCED_SHARE * run.most if rate > ANNOUNCED_NEAR * run.most else rate, now)
        self.spacing.ready(0.0, now)
        self.spacing.wait_alone(wait)
        self.spacing.waits = 0

    def refused(self, mark: int, sent_at: float, now: float, new_wave: bool, cause: Cause, grace: float) -> None:
        """A refusal of the attempt that was sent with `mark`; asked only while active."""
        self.spacing.grace = grace
        self.spacing.emptied(now)
        if mark < 0:
            # It was sent before the first was known. What one wave costs is what the next one may.
            self.gauge.price += 1
            return
        let_in = self.gauge.refused(mark)
        if not new_wave:
            return
        count, seconds = self.gauge.since_zero(let_in, sent_at)
        if cause is Cause.SLOPE:
            self._too_steep(count, now)
        else:
            self._learn(let_in, count, seconds, cause, now)
        if not 0 < count < SURE:
            # Where nothing came back it is still empty.
            self.gauge.zero(let_in, sent_at)
        if count >= SURE:
            self.spacing.went_on()

    def export(self, now: float) -> dict[str, float]:
        """The pace, for a later run; nothing before it was measured."""
        if not self.active or not self.gauge.rate:
            return {}
        return {"rate": self._base or self.rate, "burst": self.gauge.burst}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Begins by holding the rate that an earlier run measured; the first rise or refusal measures it anew."""
        rate = plain.get("rate", 0.0)
        if not SLOWEST <= rate <= FASTEST:
            return
        self.active = self._seeded = True
        self.gauge.rate = rate
        self.gauge.burst = min(BURST_MOST * rate, max(1.0, plain.get("burst", 1.0)))
        self.gauge.begin(now)
        self._former = -1.0
        self.spacing.ready(1.0, now)
        self._hold(rate, now)

    def disproved(self) -> bool:
        """Whether the first refusal comes too soon for the rate of an earlier run; asked at each refusal."""
        seeded, self._seeded = self._seeded, False
        return seeded and self.gauge.sent <= SURE

    def _learn(self, let_in: int, count: int, seconds: float, cause: Cause, now: float) -> None:
        """What `count` calls in `seconds` since the zero say, of `let_in` altogether."""
        holding, rate = self.phase is Phase.HOLDING, self.rate
        nothing, deep = self.gauge.nothing_new(let_in), self.gauge.deep(rate)
        if holding and self._promoted_from:
            # It did not hold: what comes back unused is kept, and was spent.
            self._kept = True
            self._hold(self._promoted_from, now)
        elif count < SURE and (nothing or (holding and (deep or self.spacing.waits < DOUBTS))):
            self._wait(cause, now)
        elif count < SURE:
            self._seek(min(rate, max(rate * SEEK_BACK, (count + 0.5) / seconds)), now)
        elif holding and count / seconds > TRUE_SHARE * rate:
            self._former = rate
            self._patience = PATIENCE_SECONDS
            self._seek(rate * DROP, now)
        elif holding and count < MANY and deep:
            before, took = self.gauge.last
            self._measure(count + before, seconds + took, now)
        else:
            self._measure(count, seconds, now)
        if self.phase is Phase.HOLDING and 0.0 < now - self._measured_at < AFTERMATH_MOST:
            self._aftermath = now - self._measured_at + self.spacing.wait

    def _wait(self, cause: Cause, now: float) -> None:
        """Nothing, or next to nothing, was let in since the last refusal: the next one goes alone, and later."""
        spacing = self.spacing
        waits = spacing.waits + 1
        seconds = max(WAIT_GROWTH * spacing.wait, WAIT_CALLS / spacing.rate)
        if cause is Cause.OVERLOAD:
            seconds = min(seconds, OUTAGE_SECONDS * OUTAGE_GROWTH ** min(WAITS_MOST, max(0, waits - OUTAGE_WAITS)))
        else:
            self._former = -1.0
            if cause is Cause.SLOPE:
                seconds = CLIMB_WAIT * CLIMB_WAIT_GROWTH ** min(WAITS_MOST, max(0, waits - CLIMB_WAITS))
        spacing.wait_alone(min(seconds, 1.0 / SLOWEST))
        self._after(self._patience if self.phase is Phase.HOLDING else 0.0, SEEK_CALLS, now)

    def _recover(self, now: float) -> None:
        """It was an outage: everything is as it was."""
        self.spacing.waits = 0
        if self._former > 0.0:
            self.spacing.ready(0.0, now)
            self._hold(self._former, now)
        else:
            self.active = False

    def _seek(self, rate: float, now: float) -> None:
        self.phase = Phase.SEEKING
        self.spacing.rate = max(SLOWEST, rate)
        self._base = 0.0
        self._lead_until = now + PATIENCE_SECONDS
        self._after(0.0, SEEK_CALLS, now)

    def _measure(self, count: int, seconds: float, now: float) -> None:
        gauge, held = self.gauge, self._held
        rose, sought = self.phase is Phase.RISING, self.phase is Phase.SEEKING
        before, price = gauge.rate, gauge.price
        gauge.measured(count, seconds)
        rate = gauge.rate
        self._patience = self._patience_for(before, count, price)
        # Half a call for what may have been left at either instant.
        sure = min(ANNOUNCED_SHARE * self._most, MARGIN * (count - 0.5) / seconds)
        lost = self._shallow or SURPLUS[0] * held < rate < SURPLUS[1] * held
        if rose and lost and self._base > held and not (self._kept or gauge.deep(self.rate)):
            self._hold(min(self._base, STEP * held), now)
            self._promoted_from = max(sure, held)
        else:
            self._hold(sure, now)
        if rose or sought:
            self.spacing.hold_off(max(self._aftermath, min(AFTERMATH_FIRST, AFTERMATH_SHARE * gauge.burst / self.rate)))
            self._aftermath *= AFTERMATH_FADES
        self._measured_at = now

    @property
    def _shallow(self) -> bool:
        """Whether the bucket keeps next to nothing."""
        return self.gauge.burst < max(SMALL, SMALL_SECONDS * self.gauge.rate)

    def _patience_for(self, before: float, count: int, price: int) -> float:
        """Seconds to hold the rate that was measured from `count` calls at the price of so many refusals."""
        rate, best = self.gauge.rate, self.gauge.best
        if rate < TOP * best:
            patience = PATIENCE_SECONDS
        elif abs(rate - before) > SAME * before and (before or count < CERTAIN):
            patience = PATIENCE_KNOWN
        else:
            if self._shallow:
                paid, kept = PATIENCE_SHALLOW, INFINITY
            else:
                paid, kept = price * PATIENCE_CALLS, KEPT_SHARE * self.gauge.burst / ((1.0 - MARGIN) * rate)
            patience = max(PATIENCE_KNOWN, min(kept, paid * min(1.0, count / PRECISE) / rate))
        return max(patience, ANNOUNCED_PATIENCE) if rate > TOP * self._most else patience

    def _hold(self, rate: float, now: float) -> None:
        self.phase = Phase.HOLDING
        rate = max(SLOWEST, rate)
        self.spacing.rate = self._base = self._held = rate
        self.gauge.best = max(self.gauge.best, rate)
        self._highest = RISE_MOST * self.gauge.best
        self._promoted_from = 0.0
        self._factor = STEP if rate >= TOP * self.gauge.best else STEP_MOST
        self._after(self._patience, 0, now)

    def _step(self, now: float) -> None:
        """What was sent at this pace was let in."""
        if self.phase is Phase.CLIMBING:
            self.spacing.rate *= CLIMB
            self._climb = max(CLIMB_SECONDS, self._climb * CLIMB_SOONER)
            self._after(self._climb, 0, now)
        elif self.phase is Phase.SEEKING:
            self._after(STEP_SECONDS, SEEK_CALLS, now)
            if now < self._lead_until and self.rate * SEEK_STEP > SEEK_LEAD * self.gauge.pace(now):
                return
            self.spacing.rate *= SEEK_STEP
            self._lead_until = now + PATIENCE_SECONDS
            if self.rate >= ANNOUNCED_SHARE * self._most:
                self._patience = ANNOUNCED_PATIENCE
                self._hold(ANNOUNCED_SHARE * self._most, now)
        else:
            self._rise(now)

    def _rise(self, now: float) -> None:
        held, spacing = self.rate, self.spacing
        self.phase = Phase.RISING
        self._base = held
        spacing.rate = held * self._factor
        self._factor = min(STEP_MOST, self._factor * self._factor)
        seconds = STEP_SECONDS
        if spacing.rate > self._highest:
            # Twice the best was never known: it is believed where it holds for a while.
            if held >= self._highest:
                self._highest *= RISE_MOST
            spacing.rate = min(spacing.rate, self._highest)
            seconds = PATIENCE_SECONDS
        self._after(seconds, STEP_CALLS, now)

    def _too_steep(self, count: int, now: float) -> None:
        self.phase = Phase.CLIMBING
        if count:
            self._climb *= CLIMB_SLOWER
        else:
            self._wait(Cause.SLOPE, now)
        self._after(self._climb, 0, now)

    def _rest(self, now: float) -> None:
        """The pace was left unused: what it may be is not known."""
        if self.phase is Phase.RISING:
            self._hold(self._base, now)
        elif self.phase is Phase.HOLDING:
            self._after(self._patience, 0, now)
        else:
            self._after(self._climb, SEEK_CALLS, now)

    def _after(self, seconds: float, calls: int, now: float) -> None:
        self._next, self._next_count = now + seconds, self.gauge.sent + calls
