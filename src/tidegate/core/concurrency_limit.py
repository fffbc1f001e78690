"""Adaptive limit of calls in flight: slow start, ceiling, latency knee.

The limit of calls in flight: a swift first round, and the ceiling of a server with so many slots.

Theory of operation. The limit begins at a few and opens slot by slot while all are taken and nothing is refused: twice
as many each `RAMP` seconds, but never more than `RAMP_RATE` a second, and more slowly from `SLOW_FROM` on; each success
adds one besides. So a first round is bounded, and costs no round trip of answers. Where nothing was heard of the key
yet it begins `LISTEN` seconds later: a server that is near rejects a wrong key within that. The limit grows only while
it is what holds calls back: an idle client proves nothing.

A server with N slots refuses exactly what is sent with N in flight: where a refused attempt had more in flight than
any that was let in, the limit goes just under it. One attempt at a time, ever more rarely, tries whether one more is
let in; where several in a row are, the ceiling is lifted, by more each time.

More in flight than is of use (`goodput`) is not given out.

The search for the concurrency beyond which answers only slow down, for a provider that never refuses.

Theory of operation. By Little's law, the number in flight is the answers a second times their latency. Answers are
sorted into levels by the number in flight when they were asked for; each level is twice the one below. While the
provider keeps up, a higher level takes no longer. Beyond its knee twice the number in flight takes twice as long, which
gains nothing. A level may bring less than `WORTH` of its due gain above a lower one, beyond what chance explains. Then
the limit becomes the answers a second times the latency below the knee, and a little more.

Latencies also change by themselves, so the cut has to prove itself. Where calls under the new limit take as long as
before, the old limit is restored and everything is forgotten. From time to time a little more is tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

WORTH = 0.3
"""Share of the gain that a higher level has to bring (CONTROL 3)."""

ENOUGH = 8
"""Answers from which the mean of a level is taken."""

MEMORY = 64
"""Answers of one level after which older ones count half."""

DOUBT = 1.5
"""Standard errors by which two levels must differ beyond what is asked."""

HEADROOM = 1.0
"""Share of the measured knee that is given: what is measured between two levels is rather above it than under."""

RELIEF = 0.5
"""Share of the expected relief that a cut has to bring: back to what an answer takes below the knee."""

HOLD_FIRST = 10.0
HOLD_MOST = 160.0
AGAIN = 1.5
AGAIN_AFTER = 2.0
"""Seconds before more is tried, doubling with each cut; how much more, and how often while it is worth it."""

INFINITY = float("inf")


class LatencyLevel:
    """The answers of one level: how many, their latencies (seconds) with squares, and what was in flight."""

    __slots__ = ("count", "flying", "seconds", "squares")

    def __init__(self) -> None:
        self.count = self.seconds = self.squares = self.flying = 0.0

    def add(self, flying: int, seconds: float) -> None:
        """Takes in one answer."""
        if self.count >= MEMORY:
            self.count *= 0.5
            self.seconds *= 0.5
            self.squares *= 0.5
            self.flying *= 0.5
        self.count += 1.0
        self.seconds += seconds
        self.squares += seconds * seconds
        self.flying += flying

    @property
    def mean(self) -> float:
        """Mean latency."""
        return self.seconds / self.count

    @property
    def doubt(self) -> float:
        """The standard error of the mean, as a share of it."""
        mean = self.mean
        variance = max(0.0, self.squares / self.count - mean * mean)
        return sqrt(variance / self.count) / mean if mean > 0.0 else 0.0


class LatencyKnee:
    """The answers per second of one key at each level of concurrency.

    `useful` is the limit that is worth having, infinity where none is known. Instants are monotonic seconds.
    """

    __slots__ = ("_again_at", "_cut_at", "_hold", "_levels", "_proving", "useful")

    def __init__(self) -> None:
        self.useful = INFINITY
        self._levels: dict[int, LatencyLevel] = {}
        self._cut_at = -INFINITY
        self._proving = 0.0
        self._again_at = INFINITY
        self._hold = HOLD_FIRST

    def answered(self, flying: int, sent_at: float, now: float) -> bool:
        """An answer to what was sent at `sent_at` as the `flying`-th in flight; returns whether `useful` changed."""
        if sent_at < self._cut_at:
            return False
        place = flying.bit_length()
        level = self._levels.get(place)
        if level is None:
            level = self._levels[place] = LatencyLevel()
        level.add(flying, now - sent_at)
        if level.count % ENOUGH:
            return False
        if self._proving:
            return self._prove(level)
        if now >= self._again_at and flying >= self.useful - 1.0:
            self.useful *= AGAIN
            self._again_at = now + AGAIN_AFTER
            return True
        return self._judge(place, level, now)

    def _judge(self, place: int, high: LatencyLevel, now: float) -> bool:
        """Cuts where a level brings too little above any lower one."""
        quickest = high.mean
        futile = False
        for lower, low in self._levels.items():
            if lower >= place or low.count < ENOUGH:
                continue
            quickest = min(quickest, low.mean)
            more = high.flying / high.count * low.count / low.flying
            allowed = more / (1.0 + WORTH * (more - 1.0))
            sure = 1.0 - DOUBT * sqrt(high.doubt**2 + low.doubt**2)
            futile = futile or high.mean * sure > allowed * low.mean
        if not futile:
            return False
        self.useful = max(1.0, HEADROOM * quickest * high.flying / high.seconds)
        self._levels.clear()
        self._cut_at = now
        self._proving = high.mean - RELIEF * (high.mean - HEADROOM * quickest)
        self._again_at = now + self._hold
        self._hold = min(HOLD_MOST, 2.0 * self._hold)
        return True

    def _prove(self, level: LatencyLevel) -> bool:
        """Takes a cut back that brought no relief: latencies had changed by themselves."""
        relieved = level.mean <= self._proving
        self._proving = 0.0
        if relieved:
            return False
        self._levels.clear()
        self.useful = INFINITY
        return True


SATURATED = 0.8
"""Share of the limit that must be in flight for a success to count towards growth (Inspect AI 0.3.285: 80 %)."""

RAMP = 0.05
RAMP_RATE = 200.0
SLOW_RAMP = 0.5
SLOW_FROM = 100
TOLD_RAMP = 0.1
"""The first round: seconds in which the slots double, at most so many new ones a second; and seconds in which they
double from so many on (httpx: max_connections=100), by when the slowest refusal should have come. Up to what a header
said stands ready they double each `TOLD_RAMP` seconds: not at once, because another limit may be less."""

LISTEN = 0.05
"""Seconds after the first slots of a new key were taken before more open without an answer. Raising it sends fewer
calls to a key that rejects all of them, and delays every other key's first round by as much: 0.25 made bench.lab's
*silent-steady* and *unlimited* 0.026 slower, 0.05 makes them 0.003 slower."""

DOUBLING = 0.6931
"""Natural logarithm of 2: what grows by this share of itself in a time has doubled by its end."""

TRIAL_FIRST = 0.25
TRIAL_GROWTH = 2.0
TRIAL_MOST = 16.0
"""Seconds before one more than the ceiling is tried, and after each refused trial."""

SUSPICIONS = 3
"""Refusals in a row above all that was let in, from which a pace is given up for a ceiling."""

TRIAL_GRACE = 0.05
TRIALS = 4
"""A ceiling is lifted after so many trials in a row, so far apart, were let in: one alone may have met a slot that was
just free (its answer under way)."""


class ConcurrencyLimit:
    """The number of slots of one key: how many calls may be in flight; never below 1, never above `highest`."""

    __slots__ = (
        "_before",
        "_grace",
        "_heard",
        "_held",
        "_lift",
        "_listens_until",
        "_opens",
        "_ramping",
        "_seeded",
        "_suspicions",
        "_told",
        "_trial_delay",
        "_value",
        "ceiling",
        "cut",
        "highest",
        "scarcity",
        "slots",
        "useful",
    )

    def __init__(self, start: int, highest: int, cut: float) -> None:
        self._value = float(min(start, highest))
        self._ramping = True
        self._seeded = False
        self._opens = INFINITY
        self._heard = False
        self._listens_until = -INFINITY
        self.ceiling = INFINITY
        self.useful = INFINITY
        self._before = 1.0
        self._trial_delay = TRIAL_FIRST
        self._held = 0
        self._lift = 1.0
        self._suspicions = 0
        self._grace = TRIAL_GRACE
        self._told = 0.0
        self.highest = highest
        self.cut = cut
        self.scarcity = 1.0
        self.slots = 1
        self._set(self._value)

    @property
    def growing_fast(self) -> bool:
        """Return whether the limit is in its first round of growth."""
        return self._ramping

    def opens_at(self, now: float) -> float:
        """When one more may go although all slots are taken; infinity: when one is given back."""
        return max(now, self._opens if self._heard else max(self._opens, self._listens_until))

    def heard(self) -> None:
        """An answer came that does not reject the whole key."""
        self._heard = True

    def filled(self, in_flight: int, now: float) -> None:
        """The last slot was taken, or one more than there are, by the attempt that makes it `in_flight`."""
        if self.ceiling < INFINITY:
            if in_flight > self.slots:
                self._tried(now)
            return
        if not self._ramping or self.scarcity < 1.0 or self.useful < INFINITY:
            return
        if in_flight > self.slots:
            self._set(float(in_flight))
        if self.slots < in_flight or self._value >= self.highest:
            self._opens = INFINITY
            return
        if self.slots < SLOW_FROM:
            pause = max(1.0 / RAMP_RATE, RAMP / (DOUBLING * self.slots))
        else:
            pause = SLOW_RAMP / (DOUBLING * self.slots)
        if self.slots < self._told:
            pause = min(pause, TOLD_RAMP / (DOUBLING * self.slots))
        if not self._heard and self._listens_until == -INFINITY:
            self._listens_until = now + LISTEN
        self._opens = now + pause

    def withdrawn(self, in_flight: int) -> None:
        """One of `in_flight` was never sent: where it was to try one more than the ceiling, nothing was tried."""
        if self.ceiling < INFINITY and in_flight > self.slots:
            self._held = max(0, self._held - 1)

    def announced(self, remaining: float) -> None:
        """A header said that `remaining` requests stand ready: in the first round as many slots open faster."""
        self._heard = True
        self._told = max(self._told, remaining)

    def succeeded(self, in_flight: int) -> bool:
        """Counts a success with `in_flight` calls under way, itself included; returns whether a whole slot was won."""
        self._heard = True
        if (
            in_flight < SATURATED * self.slots
            or self.scarcity < 1.0
            or self._value >= min(self.highest, self.ceiling, self.useful)
        ):
            return False
        before = int(self._value)
        self._set(self._value + 1.0)
        return int(self._value) > before

    def refused(self, in_flight: int, admitted: int, now: float, new_wave: bool, grace: float) -> bool:
        """Return whether a ceiling explains a refusal with `in_flight` under way; `admitted` is the most ever let in.

        Then the limit goes just under it. What was not refused within `grace` seconds was let in.
        """
        self._heard = True
        self._grace = max(TRIAL_GRACE, grace)
        if self._seeded and in_flight <= self.ceiling:
            self._unseed()
        self._seeded = False
        known = self.ceiling < INFINITY
        if in_flight <= max(1.0, self.ceiling if known and new_wave else admitted):
            return False
        if known and new_wave:
            self._trial_delay = min(TRIAL_MOST, self._trial_delay * TRIAL_GROWTH)
        self._ramping = False
        self._cap(min(self.ceiling, in_flight - 1.0), now)
        return True

    def suspect_ceiling(self, in_flight: int, admitted: int, now: float, grace: float) -> bool:
        """Return whether it was a ceiling after all that a pace was taken for: it is, the third time in a row."""
        self._suspicions = self._suspicions + 1 if in_flight > max(1, admitted) else 0
        if self._suspicions < SUSPICIONS:
            return False
        self._suspicions = 0
        return self.refused(in_flight, admitted, now, True, grace)

    def cut_to(self, in_flight: int, now: float) -> None:
        """The provider says that `in_flight` were too many, and no ceiling explains it; called once per epoch."""
        self._ramping = False
        self._trial_delay = TRIAL_FIRST
        self._cap(float(int(self.cut * in_flight)), now)

    def bound(self, useful: float) -> None:
        """More than `useful` in flight brings nothing; infinity: it does."""
        if self.useful == INFINITY:
            self._before = self._value
        if self.ceiling == INFINITY:
            self._opens = INFINITY
        self.useful = useful
        self._set(self._before)

    def remove_ceiling(self) -> None:
        """It was a rate that refused, no ceiling."""
        self._heard = True
        self.ceiling = INFINITY
        self._ramping = True
        self._opens = 0.0 if self.useful == INFINITY else INFINITY

    def scale_down(self, share: float) -> None:
        """Holds back a part of the slots while `share` (0 to 1) of a quota remains: 20 % of them at 0, 60 % at 10 %.

        Only for quotas that no mirror can pace; promptfoo's scheduler acts at the same 10 % with the same factors.
        """
        self.scarcity = 1.0 if share >= 0.1 else 0.2 + 4.0 * max(0.0, share)
        if self.scarcity < 1.0 and self.ceiling == INFINITY:
            self._opens = INFINITY
        self._set(self._value)

    def export(self, now: float) -> dict[str, float]:
        """The ceiling, for a later run; nothing where none was met."""
        return {"slots": self.ceiling} if self.ceiling < INFINITY else {}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Begins under the ceiling of an earlier run, on trial: one more is tried after a moment.

        Where that is refused the ceiling is what it was. Where it is let in, or less is refused, nothing was known.
        """
        slots = plain.get("slots", 0.0)
        if slots >= 1.0:
            self._cap(min(slots, float(self.highest)), now)
            self._seeded = True

    def _unseed(self) -> None:
        self._seeded = False
        self.ceiling = INFINITY
        self._ramping = True
        self._held = 0

    def _cap(self, ceiling: float, now: float) -> None:
        self.ceiling = max(1.0, ceiling)
        self._held = 0
        self._lift = 1.0
        self._opens = now + self._trial_delay
        self._set(self.ceiling)

    def _tried(self, now: float) -> None:
        self._opens = now + self._grace
        self._held += 1
        if self._seeded and self._held > 1:
            self._unseed()
            return
        if self._held > TRIALS:
            self._held = 0
            self.ceiling += self._lift
            self._lift *= 2.0
            self._trial_delay = TRIAL_FIRST
            self._set(self.ceiling)

    def _set(self, value: float) -> None:
        self._value = min(float(self.highest), self.useful, value)
        self.slots = max(1, int(self._value * self.scarcity + 1e-9))
