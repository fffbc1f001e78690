"""The rate of a limit that no header announces, found from what was let in between refusals.

Theory of operation. Refusals come back at once, so what was not refused was let in. A refusal says that the hidden
quota was empty when the refused attempt was sent: between two such instants the provider let in exactly what came
back meanwhile, so `let in / seconds` is its rate, however large its bucket is. The pacer is idle until a refusal that
no mirror explains; then it keeps a model that refills at `rate` and that every refusal empties:

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
from typing import NamedTuple

from tidegate.core.vocabulary import Cause

MARGIN = 0.97
"""Share of the measured rate that is held; the rest is spent by the next rise (langroid holds 0.9, and spends none)."""

DROP = 0.25
"""Cut at a refusal where the pace had held: capacity went, it is not known how much. A bucket keeps what this leaves."""

SEEK_STEP = 1.5
SEEK_CALLS = 3
SEEK_BACK = 0.5
"""While the rate is not known the pace grows by half whenever so many calls were let in."""

STEP = 1.25
STEP_MOST = 2.0
STEP_SECONDS = 0.15
STEP_CALLS = 2
"""The first step of a rise; each that holds for so long and so many calls is followed by its square, up to double."""

RISE_MOST = 2.0
"""How far a rise goes at most, times the pace it began at; further where the rate was higher before."""

FIRST_WAIT_MOST = 0.5

ANNOUNCED_PATIENCE = 30.0
ANNOUNCED_SHARE = 0.985
NEAR = 0.5

CLIMB_FROM = 1.2
CLIMB = 1.1
CLIMB_SECONDS = 0.15
CLIMB_SOONER = 0.8
CLIMB_SLOWER = 1.2
CLIMB_WAIT = 0.16
CLIMB_WAITS = 8
CLIMB_WAIT_GROWTH = 1.5
"""Under a slope limit: the first pace, times what was let in during a second; its growth at each step; how soon the
next one comes, and how that changes with a step that holds and one that is refused; the first wait after a refusal."""

PATIENCE_SECONDS = 1.0
PATIENCE_KNOWN = 2.0
PATIENCE_CALLS = 110.0
"""Seconds of holding while the rate is far under the best, and at least otherwise; calls that pay for one refusal of a
rise (1 in 70 calls: 0.014 of them are refused)."""

TOP = 0.85
BEST_FADES = 0.93
"""What is under this share of the best rate may come back at any time; the best is forgotten over some ten measures."""

SAME = 0.15
"""A measurement this close to the last one says that nothing has changed."""

SURE = 4
TRUE_SHARE = 0.9
MANY = 30
PRECISE = 60
DEEP = 3.0
DOUBTS = 2
SURPLUS = (0.97, 1.015)
SMALL_BURST = 2.5
AFTERMATH_FADES = 0.7
AFTERMATH_MOST = 1.0
AFTERMATH_FIRST = 0.2
AFTERMATH_SHARE = 0.03
"""Calls let in between two refusals from which their rate is taken; below this share of the pace it was no drop, but a
measurement too high."""

SLOWEST = 1.0 / 60.0
"""Calls a second that are tried at least (C-17: growing to 60 s)."""

BURST_SECONDS = 0.05
"""What a late timer may catch up, in seconds of the pace."""

WAIT_GROWTH = 1.6
OUTAGE_SECONDS = 0.5
OUTAGE_GROWTH = 1.1
OUTAGE_WAITS = 4
"""Waits grow twofold in a row without anything let in; where a server says that it is overloaded they stay within half
a second at first, so that its recovery is seen, and after so many of them it was an outage: all is as before."""

FASTEST = 1e5
BURST_MOST = 3600.0
"""Paces of an earlier run that are believed, in calls a second, and the seconds of them that a bucket may hold."""


MOST_WAITS = 60
"""Waits after which none is longer than the one before: by then they are as long as any."""


class Phase(IntEnum):
    """What the pacer does."""

    SEEKING = 0
    HOLDING = 1
    RISING = 2
    CLIMBING = 3


class Run(NamedTuple):
    """Calls that were let in within `seconds` before a refusal, since the key was last idle.

    `most` is the rate of the fastest announced quota of requests, in calls a second; infinity without any.
    """

    count: int
    seconds: float
    most: float


class Pacer:
    """The pace of one key; `rate` is in calls a second, instants are monotonic seconds."""

    __slots__ = (
        "_aftermath",
        "_at",
        "_base",
        "_best",
        "_climb",
        "_factor",
        "_first_count",
        "_first_seconds",
        "_former",
        "_grace",
        "_held",
        "_highest",
        "_judged_at",
        "_last_count",
        "_last_seconds",
        "_level",
        "_lone",
        "_measured_at",
        "_next",
        "_next_count",
        "_patience",
        "_price",
        "_promoted_from",
        "_refused",
        "_saves",
        "_seeded",
        "_seen",
        "_wait_seconds",
        "_waits",
        "_zero_at",
        "_zero_count",
        "active",
        "burst",
        "measured",
        "most",
        "phase",
        "rate",
        "sent_count",
    )

    def __init__(self) -> None:
        self.active = self._seeded = False
        self.phase = Phase.SEEKING
        self.rate = self.measured = 0.0
        self.burst = 1.0
        self.sent_count = self._refused = self._price = 0
        self._level = self._at = self._base = self._best = self._former = 0.0
        self._factor, self._climb = STEP, CLIMB_SECONDS
        self._next, self._next_count = 0.0, 0
        self._patience = PATIENCE_SECONDS
        self._waits = 0
        self._wait_seconds = 0.0
        self._lone = False
        self.most = float("inf")
        self._judged_at = float("inf")
        self._grace = 0.0
        self._zero_at, self._zero_count = 0.0, 0
        self._last_count, self._last_seconds = 0, 0.0
        self._highest = self._held = self._promoted_from = self._measured_at = self._aftermath = 0.0
        self._saves = self._seeded = False
        self._seen = -1
        self._first_count, self._first_seconds = 0, 0.0

    @property
    def mark(self) -> int:
        """What an attempt that goes out now must bring along to its refusal; -1 while nothing is paced."""
        return self.sent_count if self.active else -1

    def alone(self, now: float) -> bool:
        """Whether an attempt is under way that nobody may follow before its fate is known."""
        return now < self._judged_at < float("inf")

    def opens_at(self, now: float) -> float:
        """When the next call may go; asked only while active."""
        missing = 1.0 - self._level - self.rate * (now - self._at)
        return now if missing <= 1e-9 else now + missing / self.rate

    def sent(self, now: float) -> None:
        """A call goes out; asked only while active."""
        self.sent_count += 1
        if now >= self._judged_at:
            self._judged_at = float("inf")
            if self._waits >= OUTAGE_WAITS and self._former >= 0.0:
                self._recover(now)
                return
        level = self._level + self.rate * (now - self._at)
        most = min(self.burst, 1.0 + BURST_SECONDS * self.rate)
        self._level, self._at = min(level, most) - 1.0, now
        if level > most + 1.0:
            self._rest(now)
        if self._lone:
            self._lone = False
            self._judged_at = now + self._grace
            self._level = min(0.0, 1.0 - self.rate * self._grace)
        elif now >= self._next and self.sent_count >= self._next_count:
            self._step(now)

    def note(self, run: Run) -> None:
        """The first refusal of all came after `run`: so many calls the hidden bucket held, but for what came back."""
        if not self._first_count:
            self._first_count, self._first_seconds = run.count, run.seconds

    def begin(self, run: Run, sent_at: float, now: float, cause: Cause, grace: float) -> None:
        """The first refusal, of what was sent at `sent_at`, after the `run` of calls that were let in.

        Of what goes alone nothing is heard for `grace` seconds where it was let in.
        """
        count, seconds, most = run
        self._grace = grace
        self.active, self._seeded = True, False
        self.most = most
        self._waits, self._price = 0, 0
        self._former = 0.0 if cause is Cause.OVERLOAD else -1.0
        self.note(run)
        self._zero_at, self._zero_count = sent_at, self.sent_count - self._refused
        self._seen = self._zero_count
        wait = min(FIRST_WAIT_MOST, max(self._grace, seconds))
        rate = count / (seconds + 4.0 * wait)
        if rate > NEAR * most:
            rate = ANNOUNCED_SHARE * most
        if cause is Cause.SLOPE:
            self.phase, self.rate = Phase.CLIMBING, max(SLOWEST, CLIMB_FROM * count / max(1.0, seconds))
            self._after(self._climb, 0, now)
            wait = CLIMB_WAIT
        else:
            self._seek(rate, now)
        self._level, self._at = 1.0 - self.rate * wait, now
        self._wait_seconds = wait
        self._lone = True

    def refused(self, mark: int, sent_at: float, now: float, new_wave: bool, cause: Cause, grace: float) -> None:
        """A refusal of the attempt that was sent with `mark`; asked only while active."""
        self._grace = grace
        self._judged_at = float("inf")
        self._level, self._at = min(0.0, self._level + self.rate * (now - self._at)), now
        if mark < 0:
            return
        self._price += 1
        count = mark - self._refused
        self._refused += 1
        if not new_wave:
            return
        since = count - self._zero_count
        if cause is Cause.SLOPE:
            self._too_steep(since, now)
        else:
            self._seeded = False
            self._learn(since, sent_at - self._zero_at, cause, now)
            if self.phase is Phase.HOLDING and 0.0 < now - self._measured_at < AFTERMATH_MOST:
                self._aftermath = now - self._measured_at + self._wait_seconds
        if since >= SURE:
            self._zero_at, self._zero_count = sent_at, count
            self._waits, self._wait_seconds = 0, 0.0

    def export(self, now: float) -> dict[str, float]:
        """The pace, for a later run; nothing before it was measured."""
        if not self.active or not self.measured:
            return {}
        return {"rate": self._base or self.rate, "burst": self.burst}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Begins by holding the rate that an earlier run measured; the first rise or refusal measures it anew."""
        rate = plain.get("rate", 0.0)
        if not SLOWEST <= rate <= FASTEST:
            return
        self.active = self._seeded = True
        self.measured = rate
        self.burst = min(BURST_MOST * rate, max(1.0, plain.get("burst", 1.0)))
        self._former = -1.0
        self._level, self._at = 1.0, now
        self._zero_at, self._zero_count = now, 0
        self._hold(rate, now)

    def disproved(self) -> bool:
        """Whether the first refusal comes too soon for the rate of an earlier run; asked at each refusal."""
        seeded, self._seeded = self._seeded, False
        return seeded and self.sent_count <= SURE

    def _learn(self, count: int, seconds: float, cause: Cause, now: float) -> None:
        holding = self.phase is Phase.HOLDING
        nothing = self._zero_count + count == self._seen
        self._seen = self._zero_count + count
        if holding and self._promoted_from:
            # It did not hold: what comes back unused is kept, and was spent.
            self._saves = True
            self._hold(self._promoted_from, now)
        elif count < SURE and (nothing or (holding and (self._waits < DOUBTS or self._deep))):
            self._wait(cause, now)
        elif count < SURE:
            self._seek(min(self.rate, max(self.rate * SEEK_BACK, (count + 0.5) / seconds)), now)
        elif holding and count / seconds > TRUE_SHARE * self.rate:
            self._former = self.rate
            self._patience = PATIENCE_SECONDS
            self._seek(self.rate * DROP, now)
        elif holding and count < MANY and self._deep:
            self._measure(count + self._last_count, seconds + self._last_seconds, now)
        else:
            self._measure(count, seconds, now)

    @property
    def _deep(self) -> bool:
        """Whether the bucket holds seconds of its rate, so that a drained one says little."""
        return self.burst > DEEP * self.rate

    def _wait(self, cause: Cause, now: float) -> None:
        """Nothing, or next to nothing, was let in since the last refusal: the next one goes alone, and later."""
        self._waits += 1
        seconds = max(WAIT_GROWTH * self._wait_seconds, 2.0 / self.rate)
        if cause is Cause.OVERLOAD:
            seconds = min(seconds, OUTAGE_SECONDS * OUTAGE_GROWTH ** min(MOST_WAITS, max(0, self._waits - OUTAGE_WAITS)))
        else:
            self._former = -1.0
            if cause is Cause.SLOPE:
                seconds = CLIMB_WAIT * CLIMB_WAIT_GROWTH ** min(MOST_WAITS, max(0, self._waits - CLIMB_WAITS))
        self._wait_seconds = min(seconds, 1.0 / SLOWEST)
        self._level = 1.0 - self.rate * self._wait_seconds
        self._lone = True
        self._after(self._patience if self.phase is Phase.HOLDING else 0.0, SEEK_CALLS, now)

    def _recover(self, now: float) -> None:
        """It was an outage: the limits are what they were."""
        self._waits = 0
        if self._former > 0.0:
            self._level, self._at = 0.0, now
            self._hold(self._former, now)
        else:
            self.active = False

    def _seek(self, rate: float, now: float) -> None:
        self.phase = Phase.SEEKING
        self.rate = max(SLOWEST, rate)
        self._base = 0.0
        self._factor = SEEK_STEP
        self._after(0.0, SEEK_CALLS, now)

    def _measure(self, count: int, seconds: float, now: float) -> None:
        before, rate = self.measured, count / seconds
        self.measured = rate
        self._best = max(rate, self._best * BEST_FADES)
        self.burst = max(1.0, self._first_count - rate * self._first_seconds)
        self._last_count, self._last_seconds = count, seconds
        if rate < TOP * self._best:
            self._patience = PATIENCE_SECONDS
        elif abs(rate - before) > SAME * before:
            self._patience = PATIENCE_KNOWN
        else:
            calls = self._price * PATIENCE_CALLS * min(1.0, count / PRECISE)
            self._patience = max(PATIENCE_KNOWN, calls / rate)
        self._price = 0
        if rate > TOP * self.most:
            self._patience = max(self._patience, ANNOUNCED_PATIENCE)
        # Half a call for what may have been left at either instant.
        sure = min(ANNOUNCED_SHARE * self.most, MARGIN * (count - 0.5) / seconds)
        held, rose = self._held, self.phase is Phase.RISING
        wasted = self.burst < SMALL_BURST or SURPLUS[0] * held < rate < SURPLUS[1] * held
        if rose and wasted and not (self._saves or self._deep) and self._base > held:
            self._hold(min(self._base, STEP * held), now)
            self._promoted_from = max(sure, held)
        else:
            self._hold(sure, now)
        if rose:
            pause = max(self._aftermath, min(AFTERMATH_FIRST, AFTERMATH_SHARE * self.burst / self.rate))
            self._level = min(self._level, 1.0 - self.rate * pause)
            self._aftermath *= AFTERMATH_FADES
        self._measured_at = now

    def _hold(self, rate: float, now: float) -> None:
        self.phase = Phase.HOLDING
        self.rate = self._base = self._held = max(SLOWEST, rate)
        self._best = max(self._best, self.rate)
        self._highest = RISE_MOST * self._best
        self._promoted_from = 0.0
        self._factor = STEP if self.rate >= TOP * self._best else STEP_MOST
        self._after(self._patience, 0, now)

    def _step(self, now: float) -> None:
        if self.phase is Phase.CLIMBING:
            self.rate *= CLIMB
            self._climb = max(CLIMB_SECONDS, self._climb * CLIMB_SOONER)
            self._after(self._climb, 0, now)
            return
        held, self.rate = self.rate, self.rate * self._factor
        if self.phase is Phase.SEEKING:
            self._after(STEP_SECONDS, SEEK_CALLS, now)
            if self.rate >= ANNOUNCED_SHARE * self.most:
                self._patience = ANNOUNCED_PATIENCE
                self._hold(ANNOUNCED_SHARE * self.most, now)
            return
        self._base = held
        self.phase = Phase.RISING
        self._factor = min(STEP_MOST, self._factor * self._factor)
        self._after(STEP_SECONDS, STEP_CALLS, now)
        if self.rate > self._highest:
            # Twice the best was never known: it is believed where it holds for a while.
            if held >= self._highest:
                self._highest *= RISE_MOST
            self.rate = min(self.rate, self._highest)
            self._after(PATIENCE_SECONDS, STEP_CALLS, now)

    def _too_steep(self, count: int, now: float) -> None:
        self.phase = Phase.CLIMBING
        if not count:
            self._wait(Cause.SLOPE, now)
        else:
            self._climb *= CLIMB_SLOWER
        self._after(self._climb, 0, now)

    def _rest(self, now: float) -> None:
        if self.phase is Phase.RISING:
            self._hold(self._base, now)
        elif self.phase is Phase.HOLDING:
            self._after(self._patience, 0, now)
        else:
            self._after(self._climb, SEEK_CALLS, now)

    def _after(self, seconds: float, calls: int, now: float) -> None:
        self._next, self._next_count = now + seconds, self.sent_count + calls
