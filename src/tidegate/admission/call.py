"""One governed call, from its admission to its result, and `execute` for any callable.

`GovernedCall` connects the exchange, which performs no I/O, to the registry. `FunctionCall` is the governed call of a
user's function.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tidegate import providers
from tidegate.admission import audit
from tidegate.admission.arguments import checked_cost, checked_key, checked_max_wait, checked_priority
from tidegate.admission.context import AttemptScope, within
from tidegate.admission.handoff import PermitHandoff, current_handoff
from tidegate.admission.key_table import KeyTable
from tidegate.admission.steps import next_call_number
from tidegate.admission.thread_states import GRACE_SECONDS, MAX_SDK_PAUSE_SECONDS, SDK_RETRIES
from tidegate.admission.wait_queue import UNPRICED, Waiter, Waker
from tidegate.core import backoff, events
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.events import AttemptTrace
from tidegate.core.exchange import AttemptResult, CallPolicy, Ending, ExchangeResult, Flow, StartedExchange, exchange
from tidegate.core.limiter_state import KeyCounts, LimiterState, Permit
from tidegate.core.safe_text import printable
from tidegate.core.values import CAPACITY, CUSTOM, ELSEWHERE, INFINITY, OK, UNSERVING, Cause, Cost, Key, Kind, Outcome
from tidegate.core.wait_text import awaited, wait_text
from tidegate.errors import DeadlineExceeded, add_note
from tidegate.providers.classification import classify_error, error_text


class KeyCall(Waiter):
    """One call at a key, as its queue and its exchange see it (`tidegate.core.exchange.QueuedCall`).

    `window` is the provider's usual window in seconds. Calls of equal `priority` are first come, first served.
    `refusal_times` of its last refusal for capacity are the seconds of the named pause, and those that it took.
    """

    __slots__ = ("handed_permit", "handoff", "key", "policy", "refusal_times", "registry", "started_at", "window")

    handed_permit: Permit | None
    handoff: PermitHandoff | None
    refusal_times: tuple[float, float]
    started_at: float

    def __init__(self, registry: KeyTable, key: Key, policy: CallPolicy, window: float, priority: int) -> None:
        # `exchange` sets the attributes that only a queued call needs.
        self.registry = registry
        self.key = key
        self.policy = policy
        self.window = window
        self.priority = priority

    @property
    def gate(self) -> str:
        return self.queue.gate if self.queue is not None else ""

    @property
    def recalled(self) -> bool:
        """Return whether the scheduler has recalled this work, or the program wants the end of its thread."""
        return self.is_exiting or (self.handoff is not None and self.handoff.is_recalled)

    @property
    def is_exiting(self) -> bool:
        """Return whether the program was interrupted, or cancelled the work, as the thread of the call saw."""
        return getattr(getattr(self, "waker", None), "exiting", False)

    def enqueue(self, now: float, deadline: float) -> Permit | None:
        """Join the queue, or return a permit at once."""
        self.deadline = deadline
        self.inside = tuple(permit for permit in within.get() if not permit.settled and permit.key == self.key)
        if self.handoff is not None:
            given = self.handed_permit
            if given is not None:
                self.handed_permit = None
                self.registry.bind_waiter(self, self.key, self.window)
                self.handoff.note_sending(given)
                return given
        permit = self.registry.enqueue(self, self.key, self.window)
        if self.handoff is not None:
            if permit is None:
                self.handoff.note_wait_started(self, now)
            else:
                self.handoff.note_sending(permit)
                self.handoff.note_wait_ended(self, now)
        return permit

    def poll(self, now: float) -> Permit | None:
        """Return the permit if the call has one by now."""
        permit = self.registry.poll(self)
        if permit is not None and self.handoff is not None:
            self.handoff.note_sending(permit)
            self.handoff.note_wait_ended(self, now)
        return permit

    def dequeue(self) -> None:
        """Give up the place in the queue, or the unused permit."""
        if self.handoff is not None:
            self.handoff.note_wait_ended(self, self.registry.clock())
        self.registry.dequeue(self)

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        self.registry.learn(permit, outcome)

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> bool:
        """Settle the permit with the outcome of the attempt; return whether the call is in the queue again.

        A call refused for the capacity of others is not, while other calls use the key. The provider may refuse it
        always, and as the head of the queue it would hold them up. But the probe of an outage asks again first.
        """
        if outcome.kind in CAPACITY:
            self.refusal_times = outcome.retry_after or 0.0, now - permit.sent_at
        if self.handoff is not None:
            self.handoff.note_outcome(permit, outcome, not self.policy.patient)
            if rejoin:
                self.handoff.note_wait_started(self, now)
        elsewhere = outcome.cause in ELSEWHERE and not (permit.probe and outcome.cause in UNSERVING)
        if rejoin and elsewhere and not outcome.retry_after and self.queue is not None:
            rejoin = not self.queue.waiting.count and len(permit.state.permits_in_flight) == 1
        rejoin = self.registry.settle(permit, outcome, self if rejoin else None, is_counted=True)
        if self.handoff is not None:
            self.handoff.note_settled(permit)
        return rejoin

    def abandon(self, permit: Permit) -> None:
        """Settle the permit of an attempt that was cut short; safe in a finalizer."""
        self.registry.drop(permit)
        if self.handoff is not None:
            self.handoff.note_settled(permit)

    def begin_attempt(self, permit: Permit, index: int, waited: float) -> None:
        """Note an attempt that is sent now, for listeners and audits; the first one makes the call a sent one."""
        self.is_unsent = False
        if permit.trace is not None or audit.open_blocks:
            self._trace(permit, self.number, index, waited)

    def _trace(self, permit: Permit, number: int, index: int, waited: float) -> None:
        """Note the facts of an attempt that its audits get at its end."""
        trace, receivers = permit.trace, audit.receivers()
        if trace is None:
            if not receivers:
                return
            trace = permit.trace = AttemptTrace(number, waited, permit.probe)
        trace.index, trace.waited, trace.receivers = index, waited, receivers

    def count(self, note: Callable[[KeyCounts], object]) -> None:
        """Count how the call, or an attempt of it, ends."""
        self.registry.count(self, note)

    def note_aside(self, change: int) -> None:
        """Note that a call begins (1) or ends (-1) to wait outside the queue; safe in a finalizer."""
        self.registry.note_aside(self, change)

    def count_left(self) -> None:
        """Count the call as ended by its caller while it was not in flight."""
        self.registry.count_left(self)

    def emit(self, event: type[events.CallEvent], *facts: object) -> None:
        """Report an event of this call."""
        if self.registry.listening:
            self.registry.emit(event(self.key, self.registry.clock(), *facts, call=self.number))


class GovernedCall(KeyCall):
    """One call at a key, from its arrival to its end; `tidegate.admission.drive` runs it.

    Most calls are admitted at once and answered: they need only `try_start` and `finish_fast`. Any other call
    continues, or begins, as an exchange, in which this object waits in the queue.

    A subclass defines `finish`, and `send` or `asend` or both.
    """

    __slots__ = ()

    def send(self, permit: Permit) -> AttemptResult:
        """Perform one attempt on this thread."""
        raise NotImplementedError

    def asend(self, permit: Permit) -> Awaitable[AttemptResult]:
        """Perform one attempt in this task."""
        raise NotImplementedError

    def finish(self, ended: ExchangeResult) -> Any:
        """Return or raise the result of a call that was not simply answered."""
        raise NotImplementedError

    def now(self) -> float:
        return self.registry.clock()

    def outlasts_sdk(self) -> bool:
        """Return whether an SDK alone would have given the call up: the key has only refused for so long.

        The SDK repeats a call after the pauses that the provider names, unless they are long.
        """
        state: LimiterState | None = self.queue.admission if self.queue is not None else None
        refused: tuple[float, float] | None = getattr(self, "refusal_times", None)
        if refused is None and state is not None and state.refusal is not None and state.refusal[1] > state.admitted_at:
            # An SDK would have sent the call, which was refused as that of another caller.
            refused = state.refusal[0], 0.0
        if state is None or refused is None:
            return False
        pause, took = refused
        pauses = SDK_RETRIES * (pause if pause <= MAX_SDK_PAUSE_SECONDS else 0.0)
        since = max(self.started_at, state.admitted_at)
        return self.now() - since >= GRACE_SECONDS + pauses + (1 + SDK_RETRIES) * took

    def try_start(self) -> Permit | None:
        """Return a permit if the call may go at once, else None."""
        handoff = self.handoff = current_handoff()
        permit = (
            self._try_start_handed(handoff) if handoff is not None else self.registry.enter(self, self.key, self.window)
        )
        self.started_at = permit.sent_at if permit is not None else self.registry.clock()
        if audit.open_blocks and permit is not None:
            self._trace(permit, next_call_number(), 0, 0.0)
        return permit

    def finish_fast(self, permit: Permit, attempt: AttemptResult) -> bool:
        """Settle a successful attempt, or learn from the headers of a streaming one; return False for a failure."""
        if attempt.outcome.kind is not OK:
            return False
        handoff = self.handoff
        if handoff is not None:
            handoff.note_outcome(permit, attempt.outcome, False)
        if attempt.streaming:
            self.registry.learn(permit, attempt.outcome)
            return True
        self.registry.settle(permit, attempt.outcome)
        if handoff is not None:
            handoff.note_settled(permit)
        return True

    def exchange(self, make_waker: Callable[[], Waker], permit: Permit | None, attempt: AttemptResult | None) -> Flow:
        """Return the exchange, from the beginning or after the first `attempt`."""
        registry = self.registry
        Waiter.__init__(self, make_waker, self.priority)
        given = permit if permit is not None or self.handoff is None else self.handed_permit
        trace = given.trace if given is not None else None
        self.number = trace.call if trace is not None else next_call_number()
        if permit is None or attempt is None:
            return exchange(self, self.policy, self.started_at, registry.draw)
        self.is_unsent = False
        self.place = permit.place
        self.deadline = self.started_at + self.policy.max_wait
        registry.bind_waiter(self, self.key, self.window)
        return exchange(
            self, self.policy, registry.clock(), registry.draw, StartedExchange(permit, attempt, self.started_at)
        )

    @property
    def immediate(self) -> bool:
        """Return whether the call goes now or not at all: `max_wait` is 0."""
        return self.policy.max_wait == 0.0 and self.policy.patient

    @property
    def was_queued(self) -> bool:
        return getattr(self, "waker", None) is not None

    def settle_stream(self, permit: Permit, outcome: Outcome) -> None:
        """Settle the permit of a streaming answer at its end; not again where its event loop was closed before."""
        if permit.settled:
            return
        if self.handoff is not None:
            self.handoff.note_outcome(permit, outcome, False)
        self.registry.settle(permit, outcome)
        if self.handoff is not None:
            self.handoff.note_settled(permit)

    def release(self, flow: Flow | None) -> None:
        """Give back all that the call holds, at any point of its exchange; safe in a finalizer."""
        if flow is not None:
            flow.close()
        permit = getattr(self, "held", None)
        if permit is not None and not permit.settled:
            self.abandon(permit)
        if getattr(self, "queue", None) is not None:
            self.registry.dequeue(self)

    def reason_of(self, ended: ExchangeResult) -> str:
        """Return how long a call that is given up for lack of capacity waited, for what and why; '' for any other.

        A caller that repeats the call itself (not `patient`) has not given it up.
        """
        attempt = ended.attempt
        kind = attempt.outcome.kind if attempt is not None else Kind.RATE_LIMIT
        lacks = kind in CAPACITY or (kind is Kind.DAILY_LIMIT and ended.waited > 0.0)
        if not (lacks and self.policy.patient and ended.ending in (Ending.GIVEN_UP, Ending.EXPIRED)):
            return ""
        head = self.registry.closing(self)
        why = wait_text(*head) if head.gate else f"it waited for {awaited(ended.gate or self.gate)}"
        why = "the program was interrupted, or cancelled the work" if self.is_exiting else why
        waited = f"it waited {ended.waited:.1f} s of max_wait = {self.policy.max_wait:g} s"
        return printable(f"tidegate: call to {self.key} given up: {waited}; {why}")

    def _try_start_handed(self, handoff: PermitHandoff) -> Permit | None:
        """Act as `try_start` where a permit may have been handed down.

        With a listener subscribed, `enqueue` returns that permit, so that the full exchange reports its events.
        """
        registry, policy = self.registry, self.policy
        self.handed_permit = None
        if handoff.wait_until < INFINITY:
            left = max(0.0, handoff.wait_until - registry.clock())
            self.policy = policy = policy._replace(max_wait=min(policy.max_wait, left))
        permit = handoff.take(registry, self.key)
        if permit is not None:
            self.held = permit
            self.policy = policy._replace(patient=False)
            permit.sent_at = registry.clock()
            if registry.listening:
                self.handed_permit = permit
                return None
            handoff.note_sending(permit)
            return permit
        handoff.note_use(self.key, UNPRICED)
        if handoff.refused_at == self.key:
            # A repetition of the refused attempt must not wait in the queue.
            self.policy = policy._replace(max_wait=0.0, patient=False)
        permit = registry.enter(self, self.key, self.window)
        if permit is not None:
            handoff.note_sending(permit)
        return permit


MAX_LOGGED_GETTERS = 100
"""Source positions of unusable getters that are logged in one process. Raising it lengthens the log. Chosen: only a
program that makes code at run time has more."""

logger = logging.getLogger("tidegate")
_logged_getters: set[tuple[str, str, int]] = set()


class FunctionCall(GovernedCall):
    """One call of a user's function, blocking or not, under a key, with the caller's expected cost."""

    __slots__ = ("expected_cost", "function", "get_headers", "get_retry_after", "is_rate_limited", "provider")

    def __init__(
        self,
        registry: KeyTable,
        key: Key | str,
        function: Callable[[], Any],
        cost: Cost | None,
        get_headers: Callable[[Any], Mapping[str, str] | None] | None,
        is_rate_limited: Callable[[Any, Exception | None], bool] | None,
        get_retry_after: Callable[[Any, Exception | None], float | None] | None,
        max_wait: float | None,
        priority: int,
    ) -> None:
        if isinstance(key, str) and key.strip():
            key = Key(provider=CUSTOM, base_url=registry.address(key))
        key = checked_key(key)
        self.function = function
        self.expected_cost = checked_cost(cost)
        self.get_headers = get_headers
        self.is_rate_limited = is_rate_limited
        self.get_retry_after = get_retry_after
        self.provider = providers.named(key.provider) or providers.COMPATIBLE
        max_wait = registry.settings.max_wait if max_wait is None else checked_max_wait(max_wait)
        policy = CallPolicy(max_wait, backoff.TRANSIENT_ATTEMPTS)
        super().__init__(registry, key, policy, self.provider.default_window, checked_priority(priority))

    def price(self, estimate: CostEstimator) -> Cost:
        return self.expected_cost

    def send(self, permit: Permit) -> AttemptResult:
        """Call the function."""
        token = within.set((*within.get(), permit))
        try:
            with AttemptScope(permit):
                result = self.function()
        except Exception as error:
            return AttemptResult(self.judge(None, error), error=error)
        finally:
            within.reset(token)
        return AttemptResult(self.judge(result, None), response=result)

    async def asend(self, permit: Permit) -> AttemptResult:
        """Call the function and await its result."""
        token = within.set((*within.get(), permit))
        try:
            with AttemptScope(permit):
                result = await self.function()
        except Exception as error:
            return AttemptResult(self.judge(None, error), error=error)
        finally:
            with suppress(ValueError):  # The collector closes a coroutine in another context.
                within.reset(token)
        return AttemptResult(self.judge(result, None), response=result)

    def finish(self, ended: ExchangeResult) -> Any:
        """Return the function's result, or raise its exception.

        Raise `DeadlineExceeded` where it was never called.
        """
        attempt = ended.attempt
        if ended.ending is Ending.EXPIRED or attempt is None:
            raise DeadlineExceeded(
                key=self.key,
                waited=ended.waited,
                max_wait=self.policy.max_wait,
                gate=printable(ended.gate),
                opens_in=ended.opens_in,
            )
        if attempt.error is not None:
            reason = self.reason_of(ended)
            if reason:
                add_note(attempt.error, reason)
            raise attempt.error
        return attempt.response

    def judge(self, result: Any, error: Exception | None) -> Outcome:
        """Return the outcome of a result or an exception; the caller's predicates take precedence."""
        if error is not None:
            outcome = self._judge_error(error)
        else:
            # There may be no HTTP: status 200 only selects how headers are read.
            outcome = self._judge_headers(self._headers(result))._replace(status=None)
        limited = _call_getter(self.is_rate_limited, "is_rate_limited", result, error)
        if limited is not None:
            # `bool` of an array raises.
            limited = _call_getter(bool, "is_rate_limited", limited)
        if limited is not None:
            if limited:
                outcome = Outcome(Kind.RATE_LIMIT, Cause.RATE, outcome.retry_after, outcome.readings, row="caller")
            elif outcome.kind is Kind.RATE_LIMIT:
                outcome = Outcome(Kind.PERMANENT, Cause.INVALID, None, outcome.readings, row="caller")
        if self.get_retry_after is not None and outcome.kind in (Kind.RATE_LIMIT, Kind.OVERLOADED):
            hint = _call_getter(self.get_retry_after, "get_retry_after", result, error)
            if hint is not None and (isinstance(hint, bool) or not isinstance(hint, int | float)):
                _log_getter(
                    "get_retry_after", self.get_retry_after, f"it returned {hint!r}, which is not a number of seconds"
                )
                hint = None
            usable = hint is not None and 0.0 <= hint < 1e10
            outcome = Outcome(outcome.kind, outcome.cause, hint if usable else None, outcome.readings, row=outcome.row)
        return outcome

    def _headers(self, result: Any) -> list[tuple[bytes, bytes]]:
        headers = _call_getter(self.get_headers, "get_headers", result)
        if headers is not None and not isinstance(headers, Mapping):
            _log_getter("get_headers", self.get_headers, f"it returned a {type(headers).__name__}, not a mapping")
        elif headers:
            # Reading the headers may fail too.
            return _call_getter(_pairs, "get_headers", headers) or []
        return []

    def _judge_headers(self, headers: list[tuple[bytes, bytes]]) -> Outcome:
        return providers.judge(self.provider, 200, headers, None, datetime.now(UTC))

    def _judge_error(self, error: Exception) -> Outcome:
        outcome = classify_error(error, datetime.now(UTC), self.provider).outcome
        return outcome._replace(error=error_text(error)) if outcome.cause is Cause.OUTAGE else outcome


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def _call_getter(getter: Callable[..., Any] | None, name: str, *facts: Any) -> Any:
    """Return the result of the caller's `getter`; None if there is no getter, or if it fails.

    The attempt was paid for: a mistake in a getter must not lose its result.
    """
    if getter is None:
        return None
    try:
        return getter(*facts)
    except Exception as error:
        _log_getter(name, getter, f"it raised {type(error).__name__}: {error}", error)
        return None


def _log_getter(name: str, getter: object, reason: str, error: Exception | None = None) -> None:
    # Once per position in the source: a getter is often a new lambda at each call.
    code = getattr(getter, "__code__", None)
    place = name, getattr(code, "co_filename", type(getter).__qualname__), getattr(code, "co_firstlineno", 0)
    if place in _logged_getters or len(_logged_getters) >= MAX_LOGGED_GETTERS:
        return
    _logged_getters.add(place)
    logger.warning("result of %s unusable: %s; it counts as None", name, reason, exc_info=error)
