"""Lifecycle of one call, from its queue to its result, as a generator that performs no I/O.

Theory of operation. `exchange` yields the next effect and is resumed with its result. An effect is `WaitUntil` (wait
until an instant or a wake-up) or `Send` (one attempt under a permit). The generator never reads a clock: every `Resume`
carries `now` in monotonic seconds. `tidegate.admission.drive` has its only two interpreters: one blocks a thread, one
awaits.

tidegate owns capacity retries. A call that the provider refuses for lack of capacity returns to the *head* of its
queue. It spends no attempt and waits again, until its deadline. A daily limit that resets before the deadline is
treated in the same way. Where the queue does not take it back, it first backs off by itself.

Transient failures belong to the owner of the retry policy. An SDK gets them back at once (`attempts` is 1), and
`registry.execute` repeats them itself. There are two exceptions. A call whose probe of the circuit breaker failed
returns to the head, so an outage loses no call. And while other calls of the key are answered, a failure beside others
in flight is no outage, and is repeated here. The SDK gets it where the call itself is its cause
(`core.repeated_failure`): several attempts failed, and calls sent after them were answered. A refused call ends in the
same case, much later. A probe ends with its status 500 where an outage is unlikely (`core.circuit_breaker`). Every
other failure ends its call at once.

However the exchange ends (return, exception, cancellation, an abandoned generator), it releases the queue place or the
permit exactly once. An interpreter that stops early closes the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core import events
from tidegate.core.backoff import ABSURD_HINT_SECONDS, MAX_PAUSE_SECONDS, full_jitter, half_jitter_of
from tidegate.core.limiter_state import KeyCounts, Permit
from tidegate.core.rejection import is_final
from tidegate.core.repeated_failure import OVERTAKEN_ATTEMPTS, OWN_SECONDS, OWN_TRIES, RepeatedFailure
from tidegate.core.values import CAPACITY, ELSEWHERE, FAILING, LOAD, TERMINAL, Cause, Key, Kind, Outcome

FIRST_RESEND_SECONDS = 0.1
MAX_RESEND_SECONDS = 8.0
"""Seconds before a call is sent again whose failure shows no limit of the key: the first wait at most, doubled each
time, and the longest. Derived: nine tries within `OWN_SECONDS`."""

UNSENT = Outcome(Kind.RATE_LIMIT)
"""Outcome that stands for the missing one of a call that was given up before its first attempt."""


class Ending(StrEnum):
    """End of a call.

    `GIVEN_UP` stops the SDK's own retries, `HANDED_BACK` allows them. `EXPIRED` calls left the queue before their first
    attempt.
    """

    ANSWERED = "answered"
    HANDED_BACK = "handed_back"
    GIVEN_UP = "given_up"
    EXPIRED = "expired"


class WaitUntil(NamedTuple):
    """Step that waits until `until` (monotonic seconds; None: no limit) or until `waker` is woken."""

    until: float | None
    waker: Any


class Send(NamedTuple):
    """Step that performs one attempt under `permit`."""

    permit: Permit


class AttemptResult(NamedTuple):
    """Result of one attempt: its outcome, and the response or exception that carried it.

    `streaming` says that the body is still being received: the stream then holds the permit and settles it.
    """

    outcome: Outcome
    response: Any = None
    error: Exception | None = None
    streaming: bool = False


class Resume:
    """Input of the generator: the time, and the result of a `Send`."""

    __slots__ = ("attempt", "now")

    def __init__(self, now: float, attempt: AttemptResult | None = None) -> None:
        self.now = now
        self.attempt = attempt


class ExchangeResult(NamedTuple):
    """Result of an exchange: its ending, the last attempt's result (if any), and the seconds for capacity.

    A gate is one limiter of a key that may hold a call back. `gate` is the one that was closed at the end. It opens in
    `opens_in` seconds, where that was known to be after the deadline.
    """

    ending: Ending
    attempt: AttemptResult | None
    waited: float
    gate: str = ""
    opens_in: float | None = None


class CallPolicy(NamedTuple):
    """Limits of a call: it waits `max_wait` seconds in all, and repeats transient failures up to `attempts`.

    `replayable` is False for a body that can be sent only once. A call that is not `patient` ends with its first
    refusal, because its caller retries.
    """

    max_wait: float
    attempts: int = 1
    replayable: bool = True
    patient: bool = True


class StartedExchange(NamedTuple):
    """First attempt that was admitted at once but not simply answered: the exchange continues from it."""

    permit: Permit
    attempt: AttemptResult
    started_at: float


class QueuedCall(Protocol):
    """Place of one call in its key's queue (`admission.call.GovernedCall`); no method blocks.

    `until` is the latest instant to look again (None: when woken). A call that is `recalled` ends as at its deadline.
    `opens_at` is when its gate opens, where that is known to be after the deadline.
    """

    @property
    def key(self) -> Key: ...
    @property
    def until(self) -> float | None: ...
    @property
    def gate(self) -> str: ...
    @property
    def recalled(self) -> bool: ...
    @property
    def opens_at(self) -> float | None: ...
    def get_waker(self) -> Any: ...
    def enqueue(self, now: float, deadline: float) -> Permit | None: ...
    def poll(self, now: float) -> Permit | None: ...
    def dequeue(self) -> None: ...
    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None: ...
    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> bool: ...
    def abandon(self, permit: Permit) -> None: ...
    def begin_attempt(self, permit: Permit, index: int, waited: float) -> None: ...
    def count(self, note: Callable[[KeyCounts], object]) -> None: ...
    def count_left(self) -> None: ...
    def note_aside(self, change: int) -> None: ...
    def emit(self, event: type[events.CallEvent], *facts: object) -> None: ...


Effect: TypeAlias = WaitUntil | Send
Flow: TypeAlias = Generator[Effect, Resume, ExchangeResult]


class RetryTime(StrEnum):
    """Time of another attempt: never, at once, or after a backoff."""

    NO = "no"
    AT_ONCE = "at_once"
    LATER = "later"


def exchange(
    call: QueuedCall, policy: CallPolicy, now: float, draw: Callable[[], float], started: StartedExchange | None = None
) -> Flow:
    """Return the generator that runs one call; `draw` returns uniform numbers in [0, 1)."""
    # A hundred thousand calls may wait: each costs only one generator with few local names.
    return _Exchange(call, policy, now if started is None else started.started_at).run(now, draw, started)


class _Exchange:
    """State of one exchange.

    `permit` is the permit that it holds, `attempt` the result of its last one. `gate` is the gate that was closed when
    it last waited, `queued_at` when it joined the queue. `own` are its failures in a row. `probing` says that the last
    attempt was the breaker's probe.
    `is_lasting` says that its failure is the call's own, though no other call is answered.
    `is_over` says that the call has a result: if not, the caller ended it.
    """

    __slots__ = (
        "attempt",
        "attempts",
        "call",
        "deadline",
        "failures",
        "gate",
        "is_lasting",
        "is_over",
        "is_queued",
        "own",
        "permit",
        "policy",
        "probing",
        "queued_at",
        "refusals",
        "started_at",
        "waited",
    )

    def __init__(self, call: QueuedCall, policy: CallPolicy, started_at: float) -> None:
        self.call = call
        self.policy = policy
        self.started_at = started_at
        self.deadline = started_at + policy.max_wait
        self.attempts = self.failures = self.refusals = 0
        self.waited = 0.0
        self.gate, self.queued_at = "", started_at
        self.is_queued = self.is_over = self.is_lasting = self.probing = False
        self.permit: Permit | None = None
        self.attempt: AttemptResult | None = None
        self.own: RepeatedFailure | None = None

    def run(self, now: float, draw: Callable[[], float], started: StartedExchange | None) -> Flow:
        try:
            while True:
                if started is None:
                    self.enqueue(now)
                    while self.permit is None and now < self.deadline and not self.wait_is_useless:
                        now = (yield self.wait()).now
                        self.permit = self.call.poll(now)
                    self.count_wait(now)
                    if self.permit is None:
                        return self.expired_result(now)
                    now = yield from self.send(now)
                else:
                    self.permit, self.attempt, started = started.permit, started.attempt, None
                retry = self.settle(now)
                if retry is RetryTime.NO:
                    return self.final_result(now)
                if retry is RetryTime.LATER:
                    now = yield from self.back_off(now, draw)
                    if now >= self.deadline or self.call.recalled:
                        return self.late_result(now)
        finally:
            if self.permit is not None:
                self.call.abandon(self.permit)
            self.call.dequeue()
            if self.permit is None and not self.is_over:
                self.call.count_left()

    def enqueue(self, now: float) -> None:
        self.gate, self.queued_at = "", now
        self.permit = self.call.poll(now) if self.is_queued else self.call.enqueue(now, self.deadline)

    @property
    def wait_is_useless(self) -> bool:
        return self.call.recalled or self.call.opens_at is not None

    def wait(self) -> WaitUntil:
        self.gate = self.call.gate or "queue"
        return WaitUntil(self.call.until, self.call.get_waker())

    def count_wait(self, now: float) -> None:
        if self.gate:
            self.call.emit(events.RequestWaited, now - self.queued_at, self.gate)
        self.waited += now - self.queued_at

    def send(self, now: float) -> Generator[Effect, Resume, float]:
        assert self.permit is not None, "an attempt is sent under a permit"
        self.call.begin_attempt(self.permit, self.attempts, now - self.queued_at)
        if self.attempt is None:
            self.call.emit(events.RequestStarted, self.waited)
        else:
            before = self.attempt.outcome
            self.call.count(lambda counts: counts.note_resent(before, self.attempts == 1))
            self.call.emit(events.RequestRetrying, self.attempts, before.kind, before.cause, before.status)
        resume = yield Send(self.permit)
        self.attempt = resume.attempt
        return resume.now

    def settle(self, now: float) -> RetryTime:
        permit, attempt, call = self.permit, self.attempt, self.call
        assert permit is not None, "an attempt holds its permit"
        assert attempt is not None, "a Send is resumed with what became of it"
        outcome, self.permit = attempt.outcome, None
        self.probing = permit.probe
        self.attempts += 1
        if outcome.kind is Kind.OK:
            if self.own is not None:
                self.own.answered(permit.state)
            if attempt.streaming:
                call.learn(permit, outcome, now)
            else:
                call.settle(permit, outcome, now, False)
            return RetryTime.NO
        retry = retry_time(self.policy, permit, outcome, now, self.deadline, self.failures + 1)
        if self.policy.patient and self.policy.replayable and now < self.deadline:
            retry, is_own = self.judge_own(permit, outcome, now, retry)
            again = self.own is not None and self.own.tries > 1
            outcome = outcome._replace(own=is_own, again=again) if is_own or again else outcome
        self.is_queued = call.settle(permit, outcome, now, retry is RetryTime.AT_ONCE)
        if retry is not RetryTime.AT_ONCE or self.is_queued:
            return retry
        return RetryTime.NO if is_final(outcome, permit.state.rejection) else RetryTime.LATER

    def judge_own(self, permit: Permit, outcome: Outcome, now: float, retry: RetryTime) -> tuple[RetryTime, bool]:
        """Return when the call is repeated, and whether others outran it, by the fate of calls sent later."""
        refused = outcome.kind in CAPACITY
        if not refused and (outcome.kind is not Kind.TRANSIENT or outcome.cause is not Cause.OUTAGE):
            return retry, False
        state = permit.state
        own = self.own = self.own or RepeatedFailure(state, permit.sent_at)
        own.failed(permit)
        if own.is_own(state, now, refused):
            if refused:
                own.given_back(state)
            # A failed attempt that is none of capacity has the attempts that its policy gives it.
            return RetryTime.NO if refused else retry, True
        # A gateway's 502 to 504 tell of the server, and not of the request.
        failed = outcome.status == HTTPStatus.INTERNAL_SERVER_ERROR
        lasts = permit.probe and failed and now - self.started_at >= OWN_SECONDS
        if lasts and state.failing.is_no_outage(state.admitted_order, state.counts.answered):
            self.is_lasting = True
            return RetryTime.NO, True
        if refused and own.holds(state, now):
            return retry, False
        if refused and own.is_larger and retry is RetryTime.AT_ONCE:
            # That it never fits shows beside smaller calls.
            return RetryTime.LATER, own.tries > 1
        if own.overtaken >= OVERTAKEN_ATTEMPTS:
            return RetryTime.LATER if retry is not RetryTime.NO or not refused else retry, True
        if retry is RetryTime.AT_ONCE and refused and own.tries > 1 and state.admitted_order and not permit.probe:
            return RetryTime.LATER, False
        if retry is not RetryTime.NO or refused or permit.probe:
            return retry, False
        slow = now - permit.sent_at > OWN_SECONDS / OWN_TRIES
        if slow or own.repeats(state) or not state.is_alive(now):
            return retry, False
        # A lone caller exceeds no limit, and may not want its request repeated.
        return RetryTime.LATER if permit.in_flight > 1 or state.in_flight > 1 else retry, False

    def back_off(self, now: float, draw: Callable[[], float]) -> Generator[Effect, Resume, float]:
        """Wait before a transient failure, or a refusal of this call alone, is repeated; return the time."""
        assert self.attempt is not None, "an attempt was made"
        started_at, policy = now, self.policy
        is_refused = self.attempt.outcome.kind in CAPACITY
        if is_refused:
            self.refusals += 1
        else:
            self.failures += 1
        count = self.refusals if is_refused else self.failures
        if policy.patient and policy.attempts == 1 and self.attempt.outcome.cause not in ELSEWHERE:
            until = now + half_jitter_of(count, FIRST_RESEND_SECONDS, MAX_RESEND_SECONDS, draw())
            if is_refused and self.own is not None and self.own.tries > 1:
                # Another call is the next test of the key.
                until = max(until, self.own.paced_until(now) + FIRST_RESEND_SECONDS)
            until = min(until, self.deadline)
        else:
            until = min(now + full_jitter(count, draw()), self.deadline)
        named = self.attempt.outcome.retry_after or 0.0
        if self.attempt.outcome.cause in LOAD and 0.0 < named < ABSURD_HINT_SECONDS:
            until = min(max(until, now + min(named, MAX_PAUSE_SECONDS)), self.deadline)
        self.call.note_aside(1)
        try:
            while now < until and not self.call.recalled:
                now = (yield WaitUntil(until, self.call.get_waker())).now
        finally:
            self.call.note_aside(-1)
        self.call.emit(events.RequestWaited, now - started_at, "backoff")
        if is_refused:
            self.waited += now - started_at
        return now

    def final_result(self, now: float) -> ExchangeResult:
        attempt = self.attempt
        assert attempt is not None, "an attempt was made"
        self.is_over, outcome = True, attempt.outcome
        if outcome.kind is Kind.OK:
            self.call.emit(events.RequestCompleted, self.attempts, now - self.started_at, outcome.status)
            return ExchangeResult(Ending.ANSWERED, attempt, self.waited)
        refused = outcome.kind in CAPACITY and self.policy.replayable
        given_up = refused and self.policy.patient
        self.call.count(lambda counts: (counts.note_given_up if given_up else counts.note_failed_call)(outcome))
        self._failed(outcome, given_up, now)
        final = refused or outcome.kind in TERMINAL or self.is_lasting or (self.probing and not self.policy.patient)
        return ExchangeResult(Ending.GIVEN_UP if final else Ending.HANDED_BACK, attempt, self.waited)

    def late_result(self, now: float) -> ExchangeResult:
        """Return the result where the deadline passed during the backoff, or the call was recalled."""
        attempt = self.attempt
        assert attempt is not None, "an attempt was made"
        self.is_over = True
        self.call.count(lambda counts: counts.note_given_up(attempt.outcome))
        self._failed(attempt.outcome, True, now)
        return ExchangeResult(Ending.GIVEN_UP, attempt, self.waited)

    def expired_result(self, now: float) -> ExchangeResult:
        attempt, gate, self.is_over = self.attempt, self.call.gate, True
        outcome = attempt.outcome if attempt is not None else None
        self.call.count(lambda counts: counts.note_given_up(outcome))
        self.call.emit(events.QueueDeadline, now - self.started_at, gate, now - self.queued_at)
        self._failed(outcome or UNSENT, True, now, gate)
        opens = self.call.opens_at
        ending = Ending.EXPIRED if attempt is None else Ending.GIVEN_UP
        return ExchangeResult(ending, attempt, self.waited, gate, opens - now if opens is not None else None)

    def _failed(self, outcome: Outcome, given_up: bool, now: float, gate: str | None = None) -> None:
        why = (outcome.kind, outcome.cause, given_up, outcome.status, gate)
        self.call.emit(events.RequestFailed, self.attempts, now - self.started_at, *why)


def retry_time(
    policy: CallPolicy, permit: Permit, outcome: Outcome, now: float, deadline: float, failures: int
) -> RetryTime:
    """Return whether and when another attempt follows a failed one, the `failures`-th transient failure."""
    if deadline <= now or not policy.replayable:
        return RetryTime.NO
    at_once = RetryTime.AT_ONCE if policy.patient else RetryTime.NO
    # Without a breaker, the call would get the error of a key at which no server has worked.
    is_error_of_key = outcome.cause in FAILING and now >= permit.state.breaker.gives_up_at
    if outcome.kind in CAPACITY:
        return RetryTime.NO if is_error_of_key else at_once
    if outcome.kind is Kind.DAILY_LIMIT:
        return at_once if outcome.retry_after and outcome.retry_after <= deadline - now else RetryTime.NO
    if outcome.kind is not Kind.TRANSIENT:
        return RetryTime.NO
    if permit.probe and outcome.cause is Cause.OUTAGE and not is_error_of_key:
        return at_once
    return RetryTime.LATER if failures < policy.attempts else RetryTime.NO
