"""Adaptive limit of calls in flight: slow start, ceiling, latency knee.

Theory of operation. *Slow start* (`ConcurrencyLimit`): the limit begins low and opens slot by slot while all slots are
taken and nothing is refused. It doubles each `RAMP_DOUBLING_SECONDS` seconds, by at most `RAMP_SLOTS_PER_SECOND` slots
a second, and more slowly from `SLOW_RAMP_SLOTS` on. Each success adds one more slot. So slow start is bounded, and
costs no round trip of answers. For a key without any answer yet it begins `RAMP_DOUBLING_SECONDS` seconds later: a
server that is near rejects a wrong key within that time. The limit grows only while it is the limit that holds calls
back, because an idle client proves nothing.

*Ceiling*: a server with N slots refuses exactly the attempts that are sent with N in flight. If a refused attempt had
more in flight than any admitted one, the limit goes just below that number. Single attempts test whether one more is
admitted: the first one soon, because a rate that was taken for slots admits it. After a refused one they come more
rarely, and at once very rarely where slots explain all refusals so far: a test soon after would prove nothing new.
After several admitted tests in a row the ceiling is raised, each time by more. `core.feedback` decides whether slots
explain a refusal at all.

*Latency knee* (`LatencyKnee`): a provider that never refuses may only answer more slowly. By Little's law, the number
in flight is the answers a second times their latency. Answers are sorted into levels by the number in flight when they
were requested; each level is twice the one below. While the provider keeps up, a higher level takes no longer. Beyond
its knee, twice the number in flight takes twice as long, which gains nothing. The limit is cut where a level brings
less than `WORTHWHILE_GAIN_SHARE` of its due gain above a lower one, beyond chance. The new limit is the answers a
second times the latency below the knee.

Latencies also change by themselves, so a cut has to prove itself. If calls under the new limit take as long as before,
the old limit is restored and all levels are cleared. From time to time a limit twice as high is tried, and another one
after that only where the first one surely gains enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log, sqrt

from tidegate.core.backoff import FIRST_GRACE_SECONDS, MAX_PAUSE_SECONDS, REFUSED_CUT_FACTOR
from tidegate.core.values import INFINITY

WORTHWHILE_GAIN_SHARE = 0.3
"""Share of the proportional gain that a higher level has to bring. Chosen: with less, calls only
wait at the provider."""

LEVEL_ANSWERS = 8
"""Answers needed for the mean of a level."""

LEVEL_HALVING_ANSWERS = 64
"""Answers of one level after which older ones count half."""

LEVEL_DOUBT_DEVIATIONS = 1.5
"""Standard errors by which two levels must differ beyond the required gain."""

APART = sqrt(2.0)
"""Ratio of the numbers in flight from which two levels are compared: half a level, because nearer ones differ by
chance."""

FIRST_HOLD_SECONDS = 10.0
"""Seconds after the first cut before a higher limit is tried; they double with each cut, up to the longest pause."""

STEP_ROUNDS = 2
"""Answers for each call in flight from one such step to the next."""


class LatencyLevel:
    """Answers of one level: sums of their number, of logarithms of latencies, of their squares, of numbers in flight.

    Logarithms, because latencies have heavy tails: one call that takes ten times as long would hide a doubling. `fresh`
    counts the answers since the limit was raised last.
    """

    __slots__ = ("count", "flying", "fresh", "logs", "squares")

    def __init__(self) -> None:
        self.count = self.logs = self.squares = self.flying = 0.0
        self.fresh = 0

    def add(self, flying: int, seconds: float) -> None:
        if self.count >= LEVEL_HALVING_ANSWERS:
            self.count /= 2.0
            self.logs /= 2.0
            self.squares /= 2.0
            self.flying /= 2.0
        latency = log(seconds)
        self.count += 1.0
        self.logs += latency
        self.squares += latency * latency
        self.flying += flying

    @property
    def mean(self) -> float:
        """Return the mean logarithm of the latencies."""
        return self.logs / self.count

    @property
    def variance(self) -> float:
        """Return the squared standard error of the mean."""
        return max(0.0, self.squares / self.count - self.mean**2) / self.count


class LatencyKnee:
    """Answers per second of one key at each level of concurrency.

    `useful` is the highest limit worth having, infinity where none is known. Instants are monotonic seconds.
    """

    __slots__ = ("_again_at", "_cut_at", "_hold", "_levels", "_proving", "_raised", "useful")

    def __init__(self) -> None:
        self.useful = INFINITY
        self._levels: dict[int, LatencyLevel] = {}
        self._cut_at = -INFINITY
        self._proving = INFINITY
        self._again_at = INFINITY
        self._hold = FIRST_HOLD_SECONDS
        self._raised = False

    def answered(self, flying: int, sent_at: float, now: float) -> bool:
        """Add an answer to what was sent at `sent_at` as the `flying`-th in flight; return whether `useful` changed."""
        took = now - sent_at
        if sent_at < self._cut_at or took <= 0.0:
            return False
        place = flying.bit_length()
        level = self._levels.get(place)
        if level is None:
            level = self._levels[place] = LatencyLevel()
        level.add(flying, took)
        if level.count % LEVEL_ANSWERS:
            return False
        level.fresh += LEVEL_ANSWERS
        if self._proving < INFINITY:
            return self._prove(level)
        futile, proven = self._judge(place, level)
        if futile:
            self._cut(level, now)
            return True
        if now < self._again_at or flying < self.useful - 1.0:
            return False
        # Quick answers come first, so a step counts as proven after as many answers as calls went in two rounds.
        if self._raised and not (proven and level.fresh >= STEP_ROUNDS * self.useful):
            return False
        self.useful *= 2.0  # the next level
        self._raised = True
        for each in self._levels.values():
            each.fresh = 0
        return True

    def _judge(self, place: int, high: LatencyLevel) -> tuple[bool, bool]:
        """Return whether a level surely brings too little above lower ones, and whether it surely brings enough."""
        futile, proven = False, True
        count = logs = squares = flying = 0.0
        for lower in sorted(self._levels):
            if lower >= place:
                break
            level = self._levels[lower]
            count, logs, squares = count + level.count, logs + level.logs, squares + level.squares
            flying += level.flying
            more = high.flying / high.count * count / flying
            if count < LEVEL_ANSWERS or more < APART:
                continue
            mean = logs / count
            excess = high.mean - mean - log(more / (1.0 + WORTHWHILE_GAIN_SHARE * (more - 1.0)))
            doubt = LEVEL_DOUBT_DEVIATIONS * sqrt(high.variance + max(0.0, squares / count - mean * mean) / count)
            futile, proven = futile or excess > doubt, proven and excess < -doubt
        return futile, proven

    def _cut(self, high: LatencyLevel, now: float) -> None:
        """Cut the limit to what brings as many answers at the latency below the knee."""
        quickest = min(each.mean for each in self._levels.values() if each is high or each.count >= LEVEL_ANSWERS)
        self.useful = max(1.0, exp(quickest - high.mean) * high.flying / high.count)
        self._levels.clear()
        self._cut_at = now
        self._raised = False
        # Relief is a latency nearer to that below the knee than to that above it.
        self._proving = (high.mean + quickest) / 2.0
        self._again_at = now + self._hold
        self._hold = min(MAX_PAUSE_SECONDS, 2.0 * self._hold)

    def _prove(self, level: LatencyLevel) -> bool:
        """Undo a cut that brought no relief, because latencies had changed by themselves; return whether it did."""
        relieved = level.mean <= self._proving
        self._proving = INFINITY
        if relieved:
            return False
        self._levels.clear()
        self.useful = INFINITY
        return True


SATURATED_SHARE = 0.8
"""Share of the limit that must be in flight for a success to count towards growth (Inspect AI 0.3.285: 80 %)."""

RAMP_DOUBLING_SECONDS = 0.05
"""Seconds in which the slots double in slow start below `SLOW_RAMP_SLOTS`; twice that up to the number of announced
requests. Measured (bench.lab): at 0.25 s a new key waits longer for its first answer, and *silent-steady* is 0.026
slower."""

RAMP_SLOTS_PER_SECOND = 200.0
"""Most new slots a second in slow start."""

SLOW_RAMP_DOUBLING_SECONDS = 0.5
"""Seconds in which the slots double from `SLOW_RAMP_SLOTS` on: by then the slowest refusal should have arrived."""

SLOW_RAMP_SLOTS = 100
"""Slots from which slow start slows down (httpx: max_connections=100)."""

DOUBLING = log(2.0)
"""Continuous growth at this rate per unit of time doubles in that time."""

TRIAL_WAIT_GROWTH = 8.0
"""Factor on that wait after each refused test while slots do not explain all refusals."""

MAX_TRIAL_SECONDS = 16.0
"""Most seconds of that wait, and its seconds after a refused test that confirms the ceiling."""

RAISING_TRIALS = 4
"""Admitted tests in a row after which a ceiling is raised: a single one may have used a slot just freed."""


START_CONCURRENCY = 4
"""Calls in flight at once before anything is known of a key. Raising it sends more into a low limit. Precedent: RFC
3390, four segments."""


class ConcurrencyLimit:
    """Concurrency limit of one key: its number of slots for calls in flight, at least 1, at most `highest`."""

    __slots__ = (
        "_before",
        "_capped_at",
        "_filled_at",
        "_grace",
        "_headroom_hint",
        "_heard",
        "_held",
        "_lift",
        "_listens_until",
        "_opens",
        "_ramping",
        "_seeded",
        "_test_at",
        "_trial_delay",
        "_value",
        "ceiling",
        "highest",
        "limit",
        "useful",
    )

    def __init__(self, highest: int) -> None:
        self._value = float(min(START_CONCURRENCY, highest))
        self._ramping = True
        self._seeded = False
        self._opens = INFINITY
        self._heard = False
        self._listens_until = -INFINITY
        self.ceiling = INFINITY
        self.useful = INFINITY
        self._before = 1.0
        self._trial_delay = FIRST_GRACE_SECONDS
        self._test_at = self._filled_at = self._capped_at = -INFINITY
        self._held = 0
        self._lift = 1.0
        self._grace = FIRST_GRACE_SECONDS
        self._headroom_hint = 0.0
        self.highest = highest
        self.limit = 1
        self._set(self._value)

    @property
    def growing_fast(self) -> bool:
        return self._ramping

    def opens_at(self, now: float) -> float:
        """Return when one more call may go although all slots are taken; infinity: when a slot is released."""
        return max(now, self._opens, self._test_at) if self._heard else max(now, self._opens, self._listens_until)

    def note_accepted(self) -> None:
        """Record an answer that does not reject the whole key."""
        self._heard = True

    def filled(self, in_flight: int, now: float, waited: float = 0.0) -> None:
        """Record that the attempt that makes it `in_flight` took the last slot, or one more.

        Its call waited for `waited` seconds. If the event loop was late, the next slots open earlier, within one
        doubling. Before the first answer they do not: the delay of a busy machine delays the first refusal too.
        """
        if self.ceiling < INFINITY:
            if in_flight > self.limit:
                self._tried(now)
            else:
                # Right after its predecessor, a rate refuses one more call too. Half way to the next one tells them
                # apart.
                self._test_at, self._filled_at = now + (now - self._filled_at) / 2.0, now
            return
        if not self._ramping or self.useful < INFINITY:
            return
        late = 0.0
        if in_flight > self.limit:
            self._set(float(in_flight))
            late = min(RAMP_DOUBLING_SECONDS, waited, now - self.opens_at(-INFINITY)) if self._heard else 0.0
        if self.limit < in_flight or self._value >= self.highest:
            self._opens = INFINITY
            return
        if self.limit < SLOW_RAMP_SLOTS:
            pause = max(1.0 / RAMP_SLOTS_PER_SECOND, RAMP_DOUBLING_SECONDS / (DOUBLING * self.limit))
        else:
            pause = SLOW_RAMP_DOUBLING_SECONDS / (DOUBLING * self.limit)
        if self.limit < self._headroom_hint:
            # Half as fast as usual, because another limit may be lower.
            pause = min(pause, 2.0 * RAMP_DOUBLING_SECONDS / (DOUBLING * self.limit))
        if not self._heard and self._listens_until == -INFINITY:
            self._listens_until = now + RAMP_DOUBLING_SECONDS
        self._opens = now - late + pause

    def withdrawn(self, in_flight: int) -> None:
        """Undo one of `in_flight` attempts that was never sent: if it was to test the ceiling, no test was made."""
        if self.ceiling < INFINITY and in_flight > self.limit:
            self._held = max(0, self._held - 1)

    def limit_to(self, highest: int) -> None:
        """Set the highest number of slots; growth continues where it was held back by a lower one."""
        self.highest = highest
        self._set(self._value)

    def set_headroom_hint(self, remaining: float) -> None:
        """Record that a header announced `remaining` requests: in slow start that many slots open faster."""
        self._heard = True
        self._headroom_hint = max(self._headroom_hint, remaining)

    def succeeded(self, in_flight: int) -> bool:
        """Count a success with `in_flight` calls, including itself; return whether the limit grew by a whole slot."""
        self._heard = True
        if in_flight < SATURATED_SHARE * self.limit or self._value >= min(self.highest, self.ceiling, self.useful):
            return False
        before = int(self._value)
        self._set(self._value + 1.0)
        return int(self._value) > before

    def refused(
        self,
        in_flight: int,
        admitted: int,
        sent_at: float,
        now: float,
        new_wave: bool,
        grace: float,
        confirmed: bool = False,
    ) -> bool:
        """Return whether a ceiling explains a refusal with `in_flight` calls; if so, cut the limit just below it.

        `admitted` is the highest number in flight of an admitted attempt: one not refused within `grace` seconds. A
        refused test has `confirmed` the ceiling where slots explain all refusals.
        """
        self._heard = True
        self._grace = max(RAMP_DOUBLING_SECONDS, grace)  # no test follows another within a doubling
        if self._seeded and in_flight <= self.ceiling:
            self._unseed()
        self._seeded = False
        known = self.ceiling < INFINITY
        if in_flight <= (1 if known else max(1, admitted)):
            return False
        if known and new_wave:
            # Below the ceiling no test was refused: the ceiling was too high. A single slot looks like a bucket of one
            # call, so only an attempt that was sent under that ceiling confirms it.
            confirmed = confirmed and in_flight > self.ceiling and (self.ceiling > 1.0 or sent_at > self._capped_at)
            grown = MAX_TRIAL_SECONDS if confirmed else self._trial_delay * TRIAL_WAIT_GROWTH
            self._trial_delay = min(MAX_TRIAL_SECONDS, grown)
        self._ramping = False
        self._cap(min(self.ceiling, in_flight - 1.0), now)
        return True

    def cap(self, slots: int, now: float) -> bool:
        """Set a ceiling of this number of slots; return True."""
        self._ramping = False
        self._cap(float(slots), now)
        return True

    def cut_to(self, in_flight: int, now: float) -> None:
        """Cut the limit where the provider calls `in_flight` too many and no ceiling explains it; once per epoch."""
        self._ramping = False
        self._trial_delay = FIRST_GRACE_SECONDS
        self._cap(float(int(REFUSED_CUT_FACTOR * in_flight)), now)

    def set_useful_max(self, useful: float) -> None:
        """Limit the slots to `useful`, because more in flight gains nothing; infinity removes this limit."""
        if self.useful == INFINITY:
            self._before = self._value
        if self.ceiling == INFINITY:
            self._opens = INFINITY
        self.useful = useful
        self._set(self._before)

    def remove_ceiling(self) -> None:
        """Remove the ceiling: a rate refused the call, no ceiling did."""
        self._heard = True
        self.ceiling = INFINITY
        self._ramping = True
        self._opens = 0.0 if self.useful == INFINITY else INFINITY

    def export(self, now: float) -> dict[str, float]:
        return {"slots": self.ceiling} if self.ceiling < INFINITY else {}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Start under the ceiling of an earlier run, on trial: one more call is tested after a moment.

        A refusal confirms the ceiling; an admission, or a refusal of fewer calls, drops it.
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
        if self.ceiling == INFINITY:
            self._capped_at = now
        self.ceiling = max(1.0, ceiling)
        self._test_at, self._filled_at = now, now
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
        if self._held > RAISING_TRIALS:
            self._held = 0
            self.ceiling += self._lift
            self._lift *= 2.0
            self._trial_delay = FIRST_GRACE_SECONDS
            self._set(self.ceiling)

    def _set(self, value: float) -> None:
        self._value = min(float(self.highest), self.useful, value)
        self.limit = max(1, int(self._value + 1e-9))


FIRST_IN_FLIGHT_BOUND = 1000
"""Calls in flight of one key at first, without a configured bound (openai, anthropic: max_connections=1000)."""

MAX_IN_FLIGHT_BOUND = 100_000
"""Calls in flight of one key at most, without a configured bound. Chosen: no machine carries more connections."""


class CallBound:
    """Bound of one key: the `configured` one, else one that rises; at most the connections of the client's `pool`.

    A call beyond the pool would wait in the client, where a short timeout fails it, instead of in the queue. `pool` is
    None while no pool is known, or if several clients share the key. `client` refers to the client whose pool was
    looked at last.
    """

    __slots__ = ("client", "configured", "pool", "risen")

    def __init__(self, configured: int | None) -> None:
        self.configured = configured
        self.risen = FIRST_IN_FLIGHT_BOUND
        self.pool: int | None = None
        self.client: Callable[[], object] | None = None

    @property
    def highest(self) -> int:
        highest = self.risen if self.configured is None else self.configured
        return highest if self.pool is None else max(1, min(highest, self.pool))

    @property
    def may_rise(self) -> bool:
        return (
            self.configured is None
            and self.risen < MAX_IN_FLIGHT_BOUND
            and (self.pool is None or self.pool > self.risen)
        )

    def rise(self, most: int) -> None:
        """Double the bound, up to `most` calls, which the machine carries; it never falls."""
        self.risen = max(self.risen, min(2 * self.risen, most, MAX_IN_FLIGHT_BOUND))
