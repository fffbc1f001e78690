"""State of one key's limiters, its permits and its counters.

Theory of operation. A *gate* is one limiter of a key that may hold a call back. A call may go when all five gates are
open, and `LimiterState.ready_at` is the latest of their opening times:

- the quota mirrors (`core.quota`), one local copy per reported quota, exact wherever headers exist;
- the pacer (`core.pacer`), for a rate limit that refuses calls without having been announced;
- the concurrency limit (`core.concurrency_limit`);
- the pause (`core.backoff`), a cooldown that a retry-after sets for all calls of the key;
- the circuit breaker (`core.circuit_breaker`), which an outage opens.

The gates do not know each other. `core.admission_controller` admits calls through them, and `core.feedback` changes
them by the outcomes of attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from tidegate.core import events
from tidegate.core.backoff import HintTrust, Pause
from tidegate.core.ceiling import Ceiling, CeilingRule
from tidegate.core.circuit_breaker import CLOSED, CircuitBreaker, FailingCalls, KeyOutage, OutageClock
from tidegate.core.concurrency_limit import CallBound, ConcurrencyLimit, LatencyKnee
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.pacer import Pacer
from tidegate.core.provenance import LimiterProvenance
from tidegate.core.quota import KeyQuotas, QuotaSet
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import Charge
from tidegate.core.rate_meter import Burst
from tidegate.core.refusal_cause import RefusalCause
from tidegate.core.rejection import KeyRejection
from tidegate.core.values import CAPACITY, INFINITY, Cost, Key, Outcome, QuotaReading, Source


class Permit:
    """Proof of admission for one attempt; its holder settles it exactly once.

    `informs` says whether a success's headers are to be read: always, but only now and then while ample quota is left.
    Headers of a refusal are always read.

    A permit `beyond` the slots and the learned rate is for a call that must not wait: its refusal cuts neither.

    A `silent` attempt was given no answer within the time limit of its caller.

    `thread` is the identifier of the thread that runs the attempt, 0 if unknown. `loop` is the event loop that runs it,
    None for an attempt that blocks its thread. `trace` is None where nothing reports the attempt.

    An attempt is `learned` from when its answer has begun and is a stream. Only such a permit may have `seen`, the
    bytes that are kept of those that were read.
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
        "place",
        "probe",
        "seen",
        "sent_at",
        "settled",
        "silent",
        "state",
        "thread",
        "trace",
    )

    seen: bytearray | None

    def __init__(
        self, state: LimiterState, cost: Cost, order: int, sent_at: float, probe: bool = False, beyond: bool = False
    ) -> None:
        self.state = state
        self.beyond = beyond
        self.cost = cost
        self.order = order
        self.epoch = state.epoch
        self.generation = state.generation
        self.in_flight = len(state.permits_in_flight) + 1
        pacer = state.pacer
        self.mark = pacer.mark if pacer.active and not beyond else -1
        self.sent_at = sent_at
        self.probe = probe
        self.place = 0
        self.thread = 0
        self.loop: object = None
        self.settled = False
        self.silent = False
        self.answered = False
        self.learned = False
        self.trace: events.AttemptTrace | None = None
        self.charges: list[Charge] = []
        self.informs = True

    @property
    def key(self) -> Key:
        return self.state.key


class KeyCounts:
    """Counters of one key since its creation, and the latencies of the last hundred answered attempts, in seconds.

    `resent` attempts were of calls that had been sent before. Those of them after a refusal are `absorbed`: the caller
    never saw the refusal. `given_up` calls ended for lack of capacity. `failed_calls` ended with another failure, or
    their stream broke. `left` calls were ended by their callers while they were not in flight. `unsent` calls were
    never sent so far, whether they still wait or have ended. `retried_calls` had more than one attempt.
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
        "left",
        "refused",
        "resent",
        "retried_calls",
        "unsent",
    )

    def __init__(self) -> None:
        self.attempts = self.answered = self.refused = self.failed = 0
        self.abandoned = self.ignored = self.resent = self.absorbed = self.given_up = self.unsent = 0
        self.failed_calls = self.left = self.retried_calls = 0
        self.latencies: deque[float] = deque(maxlen=100)

    def note_sent(self, now: float) -> None:
        self.attempts += 1

    def note_answered(self, latency: float) -> None:
        self.latencies.append(latency)
        self.answered += 1

    def note_resent(self, after: Outcome, is_second: bool) -> None:
        """Count an attempt of a call whose last one ended as `after`; `is_second` says that it had only one."""
        self.resent += 1
        self.retried_calls += is_second
        self.absorbed += after.kind in CAPACITY
        self.note_fate("absorbed", after)

    def note_given_up(self, outcome: Outcome | None) -> None:
        """Count a call that is given up for lack of capacity, after its last `outcome` (None: it had none)."""
        self.given_up += 1
        if outcome is not None:
            self.note_fate("given_up", outcome)

    def note_failed_call(self, outcome: Outcome) -> None:
        self.failed_calls += 1
        self.note_fate("handed_back", outcome)

    def copy(self) -> KeyCounts:
        counts = KeyCounts()
        for name in KeyCounts.__slots__:
            setattr(counts, name, getattr(self, name))
        counts.latencies = self.latencies.copy()
        return counts

    def save(self) -> None:
        """Do nothing; a subclass that shares its counts writes them."""

    def note_closing(self) -> None:
        """Do nothing; a subclass that shares its counts writes until when the key is closed."""

    def note_refusal(self, outcome: Outcome) -> None:
        """Do nothing; a subclass that shares its counts writes what a refusal has changed, and its cause."""

    def note_fate(self, fate: str, outcome: Outcome) -> None:
        """Do nothing; such a subclass counts a refusal by its cause and fate: absorbed, handed_back or given_up."""

    @property
    def calls(self) -> int:
        return self.attempts - self.resent + self.unsent

    @property
    def latency(self) -> float:
        """Return the mean latency of the last answered attempts in seconds; infinity where none was answered."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else INFINITY


BUSY_CLIENT_SECONDS = 0.5
"""Seconds for which slow start, or a test of a ceiling, waits for an admitted call that has not run. Raising it waits
longer for a blocked event loop. Chosen: an event loop that starts two thousand calls is busy for that long and reads no
refusal."""

ALIVE_SECONDS = 1.0
ALIVE_LATENCIES = 3.0
"""Seconds since the last good answer, and mean latencies, for which a failure of another call is no outage. Chosen:
answers of a busy key come far more often."""

Out = list[events.Event] | None
"""List to which events are appended, or None without listeners."""


class LimiterSettings(Protocol):
    """Settings that the gates read; `tidegate.Settings` has all of them, with units and precedents."""

    @property
    def max_concurrency(self) -> int | None: ...
    @property
    def max_unreached(self) -> float: ...
    def ceiling_of(self, key: Key) -> CeilingRule | None: ...


class LimiterState:
    """Gates of one key, its attempts in flight, its counters and its provenance.

    A *run* of the key is the time from an attempt that finds none in flight until none is in flight again.
    `refusals_in_run` were refused in the present one. `epoch` numbers the waves of refusals, `order` the sends and
    settles. `resumes` says that a pause was reported and nothing was sent since. `untaken` permits, the last one
    granted at `given_at`, are of calls that have not run since. Until they run, the absence of refusals proves
    little. `home` identifies the key table that the key is in. `answered_order` is the order of the newest attempt
    that any answer came to. `admitted_order` is that of the newest attempt with a good answer, `admitted_cost` its
    cost, and `admitted_at` the instant of the last one. The failure settled last is `aside` where it shows no limit
    of the key: only its own call waits. A key is *calm* while nothing but slots and quotas may hold a call back, and
    nothing observes refusals. With fewer than `calm_slots` attempts in flight a calm key admits a call without a look
    at its gates; 0 for any other key.
    """

    __slots__ = (
        "_attempts_before",
        "_began",
        "admitted_at",
        "admitted_cost",
        "admitted_order",
        "answered_order",
        "aside",
        "bound",
        "breaker",
        "calm_slots",
        "cause",
        "ceiling",
        "concurrency",
        "counts",
        "epoch",
        "estimate",
        "failing",
        "generation",
        "given_at",
        "hints",
        "home",
        "key",
        "latency_knee",
        "order",
        "pacer",
        "pause",
        "permits_in_flight",
        "provenance",
        "quotas",
        "refusal",
        "refusals_in_run",
        "rejection",
        "resumes",
        "scarce",
        "unavailability",
        "untaken",
        "used_at",
    )

    def __init__(self, key: Key, settings: LimiterSettings, default_window: float, now: float) -> None:
        self.key = key
        self.bound = CallBound(settings.max_concurrency)
        self.concurrency = ConcurrencyLimit(self.bound.highest)
        self.latency_knee = LatencyKnee()
        self.pacer = Pacer()
        self.cause: RefusalCause | None = None
        self.pause = Pause()
        self.hints = HintTrust()
        self.breaker = CircuitBreaker(settings.max_unreached)
        self.quotas: KeyQuotas = QuotaSet(default_window)
        rule = settings.ceiling_of(key)
        self.ceiling = None if rule is None else Ceiling(rule, now)
        self.estimate = CostEstimator()
        self.counts = KeyCounts()
        self.provenance = LimiterProvenance()
        self.unavailability = OutageClock()
        self.failing = FailingCalls()
        self.home: object = None
        self.permits_in_flight: dict[int, Permit] = {}
        self.order = self.answered_order = self.admitted_order = 0
        self.admitted_at, self.admitted_cost = -INFINITY, Cost()
        self.epoch = 0
        self.generation = 0
        self.untaken = 0
        self.given_at = now
        self.used_at = self._began = now
        self.resumes = self.aside = self.scarce = False
        self.rejection: KeyRejection | None = None
        # Seconds that the newest refusal named (0: none), and when it came.
        self.refusal: tuple[float, float] | None = None
        self._attempts_before = self.refusals_in_run = 0
        self.calm_slots = 0

    @property
    def in_flight(self) -> int:
        return len(self.permits_in_flight)

    @property
    def tests_again(self) -> bool:
        """Return whether the next attempt tests the key after a test of it failed."""
        if self.breaker.state is not CLOSED:
            return self.breaker.retests
        return self.resumes and self.pause.is_repeated

    @property
    def all_counts(self) -> KeyCounts:
        """Return the counts of all attempts that take capacity here, those of other processes included."""
        return self.counts

    def is_alive(self, now: float) -> bool:
        """Return whether a call was answered so recently that a failure of another one is no outage."""
        latency = self.counts.latency
        return now - self.admitted_at <= max(ALIVE_SECONDS, ALIVE_LATENCIES * latency if latency < INFINITY else 0.0)

    def excuse(self, permit: Permit) -> None:
        """Let an attempt's failure show nothing about the key. One whose answer began still counts as admitted."""
        permit.beyond = True
        if permit.learned:
            return
        if self.cause is not None:
            self.cause.withdrawn(permit.order)
        if self.pacer.active and permit.mark >= 0:
            self.pacer.gauge.refused(permit.mark)

    @property
    def at_bound(self) -> bool:
        return self.concurrency.limit >= self.concurrency.highest

    def apply_bound(self) -> None:
        self.calm_slots = 0
        self.concurrency.limit_to(self.bound.highest)

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return when `cost` may go, and the gate that delays it ('': now; infinity: until an attempt ends)."""
        ready, gate = now, ""
        if len(self.permits_in_flight) >= self.concurrency.limit:
            opens = self.concurrency.opens_at(now)
            if self.untaken:
                opens = max(opens, self.given_at + BUSY_CLIENT_SECONDS)
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
        if self.pause.used:
            paused = self.pause.opens_at(now)
            if paused > ready:
                ready, gate = paused, "pause"
        if self.ceiling is not None:
            ready, gate = self.ceiling.gate(ready, gate, cost, now)
        quota, name = self.quotas.ready_at(cost, now)
        if quota > ready:
            if self.quotas.unproven and not self.permits_in_flight:
                # A quota known only from an earlier run must not block the key: one call tests it.
                quota, name = self.quotas.probed_at(cost, now)
                if quota <= ready:
                    return ready, gate
            ready, gate = quota, f"quota {name}"
        return ready, gate

    def released_at(self, held: tuple[float, str], cost: Cost, now: float) -> tuple[float, str]:
        """Return when a call held by `ready_at` goes: from `gives_up_at` on no inferred limit holds it."""
        gives_up_at = self.breaker.gives_up_at
        if held[0] <= now or gives_up_at == INFINITY:
            return held
        return self.admits(cost, now, probes=False) if now >= gives_up_at else min(held, (gives_up_at, held[1]))

    def admits(self, cost: Cost, now: float, probes: bool = True, slots: bool = True) -> tuple[float, str]:
        """Return the same as `ready_at` without inferred limits: of slots and pace, only `limit.highest` counts.

        Without `probes`, an open breaker holds no call; without `slots`, no number of attempts in flight does.
        """
        if slots and len(self.permits_in_flight) >= self.concurrency.highest:
            return INFINITY, "concurrency"
        ready, gate = (self.breaker.opens_at(now), "breaker") if probes else (now, "")
        paused = self.pause.opens_at(now)
        if paused > ready:
            ready, gate = paused, "pause"
        if self.ceiling is not None:
            ready, gate = self.ceiling.gate(ready, gate, cost, now)
        quota, name = self.quotas.ready_at(cost, now)
        if quota > now and self.quotas.unproven and not self.permits_in_flight:
            quota, name = self.quotas.probed_at(cost, now)
        if quota > ready:
            ready, gate = quota, f"quota {name}"
        return (ready, gate) if ready > now else (now, "")

    @property
    def shown_quotas(self) -> tuple[KeyQuotas, ...]:
        """Return the quotas of the provider, and the windows of the user's ceiling."""
        return (self.quotas,) if self.ceiling is None else (self.quotas, self.ceiling.quotas)

    @property
    def untested(self) -> bool:
        """Return whether only slow start holds calls back: the provider never refused any for their number."""
        return self.concurrency.growing_fast and not self.pacer.active and self.concurrency.useful == INFINITY

    def certain(self, gate: str) -> bool:
        """Return whether the provider stated when `gate` opens, and no answer in flight can change it.

        Slots, pace and breaker open at guessed instants. A quota opens earlier if a call in flight returns units.
        """
        if gate == "pause":
            return self.provenance.pause.origin is Source.RETRY_AFTER
        if self.permits_in_flight or not gate.startswith("quota "):
            return False
        name = gate.removeprefix("quota ")
        provenance = self.quotas.provenance.get(name)
        return provenance is not None and provenance.origin is Source.HEADERS and name not in self.quotas.unproven

    def charged_to(self, mirror: QuotaMirror) -> list[Permit]:
        return list(self.permits_in_flight.values())

    def hint_headroom(self, quota: str, remaining: float) -> None:
        """Open slots faster in slow start: a header announced that `remaining` requests are left of a quota."""
        self.concurrency.set_headroom_hint(remaining)

    def owner_of(self, quota: str) -> Key:
        return self.key

    def pause_for(self, quota: str, readings: Iterable[QuotaReading]) -> Pause:
        """Return the pause that a refusal with a hint closes; it is explained by `quota` ('': by none)."""
        return self.pause

    def waiting_with(self, quota: str) -> int:
        """Return the number of calls at other keys that wait for a quota."""
        return 0

    def unavailable(self, now: float) -> KeyOutage:
        """Return for how long the key has answered no call, and why."""
        clocks = self.unavailability
        if self.breaker.state is CLOSED:
            clocks.closed()
        if clocks.running and not self.quotas.unproven:
            clocks.stated(now, self.quotas.ready_at(Cost(), now)[0])
        return clocks.at(now)

    def run(self, permit: Permit, before: bool = False) -> Burst:
        """Return the calls admitted since the key was last idle; `before`: without those sent after `permit`."""
        counts = self.counts
        count = counts.attempts - self._attempts_before - self.refusals_in_run
        if before:
            count -= sum(order > permit.order for order in self.permits_in_flight)
        return Burst(max(1, count), permit.sent_at - self._began)
