"""The five gates of one key: the state that decides whether the next call may go.

Theory of operation. A call may go when all five are open, and `ready_at` is their maximum:

- the quota mirrors (`quota`), one a reported quota, exact wherever headers exist;
- the pacer (`pacer`), for a rate that refuses without having been announced;
- the concurrency limit (`limit`);
- the pause (`pause`) that an explicit retry-after moves for everybody;
- the breaker (`breaker`) that an outage opens.

They know nothing of each other. `admission` lets calls through them; what moves them is in `answer` and `refusal`.

The permit of an admitted call, and the counters of a key.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from tidegate.core import events
from tidegate.core.backoff import Pause
from tidegate.core.circuit_breaker import CLOSED, CircuitBreaker
from tidegate.core.concurrency_limit import ConcurrencyLimit, LatencyKnee
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.pacer import Pacer
from tidegate.core.provenance import LimiterProvenance, Source
from tidegate.core.quota import Charge, QuotaSet
from tidegate.core.rate_meter import Burst
from tidegate.core.rejection import KeyRejection
from tidegate.core.unavailability import KeyOutage, OutageClock
from tidegate.core.values import Cost, Key, Outcome


class Permit:
    """Proof of admission for one attempt; settled exactly once, by whoever holds it.

    `informs` says whether a success's headers are to be read: all, unless ample quota is known to be left; then now and
    then. A refusal's are read always. One that is sent `beyond` the learned slots and rate, for a call that does not
    wait, cuts neither where it is refused. `thread` is the identifier of the thread that runs the attempt, 0 if not
    known, and `loop` the event loop that does, None for an attempt that blocks its thread. One that was `overcommitted`
    took a slot that an attempt of a loop that does not run may hold yet; it is beyond the learned slots, too.
    """

    __slots__ = (
        "answered",
        "beyond",
        "charges",
        "cost",
        "epoch",
        "generation",
        "in_flight",
        "informs",
        "learned",
        "loop",
        "mark",
        "order",
        "overcommitted",
        "place",
        "probe",
        "sent_at",
        "settled",
        "state",
        "thread",
    )

    def __init__(
        self, state: LimiterState, cost: Cost, order: int, sent_at: float, probe: bool, beyond: bool = False
    ) -> None:
        self.state = state
        self.beyond = beyond
        self.cost = cost
        self.order = order
        self.epoch = state.epoch
        self.generation = state.generation
        self.in_flight = len(state.flying) + 1
        self.mark = state.pacer.mark if not beyond else -1
        self.sent_at = sent_at
        self.probe = probe
        self.place = 0
        self.thread = 0
        self.loop: object = None
        self.overcommitted = False
        self.settled = False
        self.answered = False
        self.learned = False
        self.charges: list[Charge] = state.quotas.debit(cost, order, sent_at, self)
        self.informs = state.quotas.asks

    @property
    def key(self) -> Key:
        """Return whose quota it counts against."""
        return self.state.key


class KeyCounts:
    """The counters of one key since it was made; latencies of the last hundred answered attempts, in seconds.

    `resent` attempts were of calls that had been sent before, `absorbed` of those after a refusal, which the caller so
    never saw. Calls that were `given_up` for want of capacity include those that were never sent, `unsent`. The failure
    of `failed_calls` was handed back; `replayed` calls got an answer that another call had been given, and those of
    them that were never sent are counted in `spared`.
    """

    __slots__ = (
        "abandoned",
        "absorbed",
        "answered",
        "attempts",
        "failed",
        "failed_calls",
        "given_up",
        "ignored",
        "latencies",
        "refused",
        "replayed",
        "resent",
        "spared",
        "unsent",
    )

    def __init__(self) -> None:
        self.attempts = self.answered = self.refused = self.failed = 0
        self.abandoned = self.ignored = self.resent = self.absorbed = self.given_up = self.unsent = 0
        self.failed_calls = self.replayed = self.spared = 0
        self.latencies: deque[float] = deque(maxlen=100)

    @property
    def latency(self) -> float:
        """The mean latency of the last answered attempts, in seconds; infinity where none was answered."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else float("inf")


ANNOUNCED_WINDOW = 60.0
"""Seconds of the longest window whose rate may be enforced over shorter ones too (60 a minute as 1 a second)."""

BUSY = 0.5
"""Seconds that a first round, or a trial of a ceiling, waits for a call that was let in and has not run: a loop that
starts two thousand calls is busy for that long, and reads no refusal. It may also be stuck, and others are not."""

OVERCOMMIT_WAIT_MIN = 0.25
"""Seconds after which a refused slot of a loop that does not run is tried again, at least, where answers come faster.
Raising it holds up a call that blocks its loop; lowering it pays more refusals."""

OVERCOMMIT_WAIT_UNKNOWN = 1.0
"""The same where no answer has come yet, so its latency is not known; between the calls of small and large models."""

OVERCOMMIT_WAIT_MAX = 60.0
"""The same at most, where answers take longer. Raising it holds up a blocking call of a key of slow answers."""

INFINITY = float("inf")

Out = list[events.Event] | None
"""Where events are appended, or None where nobody listens."""


class LimiterSettings(Protocol):
    """The settings that the gates read; `tidegate.Settings` has them all, with units and precedents."""

    @property
    def start_concurrency(self) -> int: ...
    @property
    def max_concurrency(self) -> int: ...
    @property
    def concurrency_cut(self) -> float: ...
    @property
    def pause_base(self) -> float: ...
    @property
    def max_pause(self) -> float: ...
    @property
    def breaker_threshold(self) -> int: ...
    @property
    def breaker_cooldown(self) -> float: ...
    @property
    def max_breaker_cooldown(self) -> float: ...


class LimiterState:
    """The gates of one key, what is under way behind them, and what was counted and learnt there.

    `epoch` numbers the waves of refusals, `order` the sends and settles. `resumes` says that a pause was told of, and
    that nothing has gone out since. `untaken` permits were given to calls that have not run since then, the last one
    at `given_at`: that nothing is refused meanwhile proves little. `stalled_loops` are event loops that do not run:
    their attempts cannot end, and do not count, from `overcommit_at` on.
    """

    __slots__ = (
        "_attempts_before",
        "_began",
        "_refused_before",
        "breaker",
        "counts",
        "epoch",
        "estimate",
        "flying",
        "generation",
        "given_at",
        "goodput",
        "key",
        "lessons",
        "limit",
        "order",
        "overcommit_at",
        "pacer",
        "pause",
        "quotas",
        "refusal",
        "rejection",
        "resumes",
        "stalled_loops",
        "unavailability",
        "untaken",
        "used_at",
    )

    def __init__(self, key: Key, tuning: LimiterSettings, default_window: float, now: float) -> None:
        self.key = key
        self.limit = ConcurrencyLimit(tuning.start_concurrency, tuning.max_concurrency, tuning.concurrency_cut)
        self.goodput = LatencyKnee()
        self.pacer = Pacer()
        self.pause = Pause(tuning.pause_base, tuning.max_pause)
        self.breaker = CircuitBreaker(tuning.breaker_threshold, tuning.breaker_cooldown, tuning.max_breaker_cooldown)
        self.quotas = QuotaSet(default_window)
        self.estimate = CostEstimator()
        self.counts = KeyCounts()
        self.lessons = LimiterProvenance()
        self.unavailability = OutageClock()
        self.flying: dict[int, Permit] = {}
        self.order = 0
        self.epoch = 0
        self.generation = 0
        self.untaken = 0
        self.given_at = now
        self.used_at = self._began = now
        self.resumes = False
        self.rejection: KeyRejection | None = None
        self.refusal: tuple[Outcome, float] | None = None
        self.stalled_loops: list[object] = []
        self.overcommit_at = now
        self._attempts_before = self._refused_before = 0

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return len(self.flying)

    def counted(self, blocked: int) -> int:
        """Return the attempts under way that can end: not those of stalled loops, or of the thread `blocked`."""
        if not blocked and not self.stalled_loops:
            return len(self.flying)
        return sum(
            not (blocked and permit.thread == blocked) and not self.is_stalled(permit.loop)
            for permit in self.flying.values()
        )

    def overcommits(self, blocked: int, now: float) -> bool:
        """Return whether the slots are free only because attempts that cannot end do not count, as in `counted`."""
        return (
            bool(blocked or self.stalled_loops)
            and self.limit.opens_at(now) > now
            and self.counted(blocked) < self.limit.slots <= len(self.flying)
        )

    def refuse_overcommit(self, now: float) -> None:
        """Close the slots of loops that do not run for as long as an answer takes: the provider counts them yet."""
        latency = self.counts.latency
        wait = OVERCOMMIT_WAIT_UNKNOWN
        if latency < INFINITY:
            wait = max(OVERCOMMIT_WAIT_MIN, min(latency, OVERCOMMIT_WAIT_MAX))
        self.overcommit_at = now + wait

    def is_stalled(self, loop: object) -> bool:
        """Return whether an event loop is known not to run."""
        return any(loop is each for each in self.stalled_loops)

    def ready_at(self, cost: Cost, now: float, blocked: int = 0) -> tuple[float, str]:
        """When `cost` may go, and the gate that says so ('': now; infinity: when an attempt under way ends).

        The call may block the thread `blocked` whose event loop then cannot end its attempts: they do not count.
        """
        ready, gate = now, ""
        if len(self.flying) >= self.limit.slots:
            opens = self.limit.opens_at(now)
            if self.overcommits(blocked, now):
                opens = min(opens, max(now, self.overcommit_at))
            elif self.untaken:
                opens = max(opens, self.given_at + BUSY)
            if opens > now:
                ready, gate = opens, "concurrency"
                if opens == INFINITY:
                    return ready, gate
        if self.pacer.active:
            paced = self.pacer.spacing.opens_at(now)
            if paced > ready:
                ready, gate = paced, "pace"
        if self.breaker.state is not CLOSED:
            breaker = self.breaker.opens_at(now)
            if breaker > ready:
                ready, gate = breaker, "breaker"
        paused = self.pause.opens_at(now)
        if paused > ready:
            ready, gate = paused, "pause"
        quota, name = self.quotas.ready_at(cost, now)
        if quota > ready:
            if self.quotas.unproven and not self.counted(blocked):
                # What an earlier run knew holds nobody back for long: one goes and asks.
                quota, name = self.quotas.probed_at(cost, now)
                if quota <= ready:
                    return ready, gate
            ready, gate = quota, f"quota {name}"
        return ready, gate

    def admits(self, cost: Cost, now: float) -> tuple[float, str]:
        """As `ready_at`, without what was only inferred: slots and pace hold nobody, their upper bound does."""
        if len(self.flying) >= self.limit.highest:
            return INFINITY, "concurrency"
        ready, gate = self.breaker.opens_at(now), "breaker"
        paused = self.pause.opens_at(now)
        if paused > ready:
            ready, gate = paused, "pause"
        quota, name = self.quotas.ready_at(cost, now)
        if quota > now and self.quotas.unproven and not self.flying:
            quota, name = self.quotas.probed_at(cost, now)
        if quota > ready:
            ready, gate = quota, f"quota {name}"
        return (ready, gate) if ready > now else (now, "")

    @property
    def untested(self) -> bool:
        """Return whether only the first round holds calls back: the provider never refused any for their number."""
        return self.limit.growing_fast and not self.pacer.active and self.limit.useful == INFINITY

    def certain(self, gate: str) -> bool:
        """Return whether the provider stated the instant at which `gate` opens, and no answer in flight can change it.

        Slots, pace and breaker open when they may: their instants are guesses. A quota opens sooner than its copy says
        where a call under way returns what it was charged too much.
        """
        if gate == "pause":
            return self.lessons.pause.origin is Source.RETRY_AFTER
        if self.flying or not gate.startswith("quota "):
            return False
        name = gate.removeprefix("quota ")
        lesson = self.quotas.lessons.get(name)
        return lesson is not None and lesson.origin is Source.HEADERS and name not in self.quotas.unproven

    def unavailable(self, now: float) -> KeyOutage:
        """Return for how long the key has answered nobody, and why."""
        clocks = self.unavailability
        if self.breaker.state is CLOSED:
            clocks.closed()
        if clocks.running and not self.quotas.unproven:
            clocks.stated(now, self.quotas.ready_at(Cost(), now)[0])
        return clocks.at(now)

    def run(self, permit: Permit) -> Burst:
        """Return what was let in before `permit` was sent, since the key was last idle."""
        counts = self.counts
        count = counts.attempts - self._attempts_before - (counts.refused - self._refused_before)
        rates = [
            mirror.limit / mirror.window
            for mirror in self.quotas.mirrors.values()
            if mirror.unit == "requests" and mirror.window <= ANNOUNCED_WINDOW
        ]
        return Burst(max(1, count), permit.sent_at - self._began, max(rates, default=INFINITY))
