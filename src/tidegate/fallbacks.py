"""Fallbacks: one call that several models or deployments may answer, in the order of preference.

Theory of operation. A call takes the first choice whose key admits it. It passes over a choice that is closed, or that
refuses, for a reason in `on`; for any other reason it waits for that choice. If every choice is closed, the call waits
for the one that opens first. Calls of one fallback that wait do so in one line: only its head asks the keys, so their
order is that of their arrival. A choice gets its permit by `try_admit`, and hands it down to the call.

The dialogue of a call is one generator with two interpreters, `execute` and `aexecute`.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from tidegate import providers
from tidegate.admission import fork
from tidegate.admission.arguments import checked_cost, checked_key, checked_max_wait
from tidegate.admission.drive import ThreadWaker, async_waker
from tidegate.admission.handoff import PermitHandoff, current_handoff, hand_off
from tidegate.admission.registry import NotReady, RateLimitRegistry, registry
from tidegate.admission.wait_queue import Waker
from tidegate.classification import classify_error
from tidegate.core.answered_by import AnsweredBy
from tidegate.core.backoff import full_jitter
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import DAY, REJECTED
from tidegate.core.values import INFINITY, Cause, Cost, Key, Kind, Outcome
from tidegate.errors import DeadlineExceeded, add_note, require

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REASONS = ("day", "money", "outage", "rate", "overload")
"""Reasons for which a choice may be passed over."""

ORDERS = ("listed", "first_ready")

UNKNOWN = Key("unknown", "")
"""Key of a waiting call whose choices have none yet."""

NO_OUTCOME = Outcome(Kind.OK)
"""Outcome of a function that made no attempt and did not fail."""

_REASON_OF_KIND = {
    Kind.DAILY_LIMIT: "day",
    Kind.QUOTA_EXHAUSTED: "money",
    Kind.RATE_LIMIT: "rate",
    Kind.OVERLOADED: "overload",
}


@dataclass(frozen=True, slots=True)
class Choice(Generic[T_co]):
    """Model or deployment that may answer a call.

    `call` asks it, with the arguments of `execute`. If `key` is a `Key` or a name, `call` runs under
    `registry.execute(key, ...)`, at the expected `cost`. If it is None, the client in `call` is itself governed, by
    `wrap` or `install`; its key is then learned from the first call. `name` identifies the choice in `Answered`, and
    defaults to the key, or to the position. An experiment warns where choices of different `model` answered; that is by
    default the key's model, or the choice's name.
    """

    key: Key | str | None
    call: Callable[..., T_co]
    name: str = ""
    cost: Cost | None = None
    model: str = ""


class PassedOver(NamedTuple):
    """Choice that did not answer: its `choice` name, its `key` if known, and the `reason`, one of `REASONS`.

    `until` is the aware time at which it may be asked again; None if that is unknown.
    """

    choice: str
    key: Key | None
    reason: str
    until: datetime | None


class Answered(NamedTuple, Generic[T_co]):
    """Result of a call: the `value`, the name of the `choice` that gave it, and its `key` if known.

    `passed_over` has the choices that were closed or refused before, the newest reason for each.
    """

    value: T_co
    choice: str
    key: Key | None
    passed_over: tuple[PassedOver, ...]


class _Wait(NamedTuple):
    """Effect: wait until woken, or until an instant (None: without end)."""

    until: float | None


class _Run(NamedTuple):
    """Effect: call a function inside a handoff."""

    call: Callable[[], Any]
    handoff: PermitHandoff


class _Chosen(NamedTuple):
    """Choice to take, by its position, and its permit if there is one."""

    position: int
    permit: Permit | None


class _Result(NamedTuple):
    """Value of a function that was called, or its exception."""

    value: Any = None
    error: Exception | None = None


class _Closed(NamedTuple):
    """Reason for which a choice was passed over, and the monotonic instant at which it opens (infinity: unknown)."""

    reason: str
    until: float


class WaitingLine:
    """Line of the calls of one fallback that wait, first come, first served; only its head asks the keys.

    A call that was refused waits `aside`: it leaves out choices that are open to the calls behind it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: deque[Waker] = deque()
        self._aside: set[Waker] = set()
        fork.register(self)

    def join(self, waker: Waker, aside: bool = False) -> None:
        """Join at the end, or beside the line."""
        with self._lock:
            if aside:
                self._aside.add(waker)
            else:
                self._wakers.append(waker)

    def may_ask(self, waker: Waker) -> bool:
        """Return whether a call is the head, or waits aside."""
        with self._lock:
            return waker in self._aside or self._wakers[0] is waker

    def leave(self, waker: Waker) -> None:
        """Leave the line, and wake its new head; calls whose event loop is closed are taken out."""
        with self._lock:
            heads = self._take_out(waker)
        while heads and not heads[0].wake():
            with self._lock:
                heads = self._take_out(heads[0])

    def wake(self) -> None:
        """Make the calls look again that may ask."""
        with self._lock:
            asking = [*self._aside, *list(self._wakers)[:1]]
        for each in asking:
            each.wake()

    def before_fork(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Make a new lock, and forget the calls of the parent."""
        self._lock = threading.Lock()
        self._wakers.clear()
        self._aside.clear()

    def _take_out(self, waker: Waker) -> list[Waker]:
        """Remove a call; return the new head if it was the head."""
        self._aside.discard(waker)
        was_head = bool(self._wakers) and self._wakers[0] is waker
        if waker in self._wakers:
            self._wakers.remove(waker)
        return [self._wakers[0]] if was_head and self._wakers else []


class Fallback(Generic[T_co]):
    """Call with several choices; see `tidegate.fallback`. Threads, event loops and trio runs may share it."""

    def __init__(
        self,
        choices: Iterable[Choice[T_co]],
        *,
        on: Iterable[str] = ("day", "money", "outage"),
        patience: float = 0.0,
        order: str = "listed",
        governor: RateLimitRegistry | None = None,
    ) -> None:
        self._choices = _checked_choices(choices)
        require(order in ORDERS, "order", order, "one of " + ", ".join(ORDERS))
        self._on = _checked_reasons(on) if order == "listed" else frozenset(REASONS)
        number = isinstance(patience, int | float) and not isinstance(patience, bool)
        require(number and 0 <= patience < INFINITY, "patience", patience, "a number of seconds, 0 or more")
        known = governor is None or isinstance(governor, RateLimitRegistry)
        require(known, "registry", governor, "a RateLimitRegistry")
        self._patience = patience
        self._registry = governor
        self._has_one_model = order == "first_ready"
        self._turns = itertools.count() if order == "first_ready" else itertools.repeat(0)
        self._line = WaitingLine()
        self._keys = [each.key if isinstance(each.key, Key) else None for each in self._choices]
        self._costs = [checked_cost(each.cost) for each in self._choices]

    def execute(self, *args: Any, max_wait: float | None = None) -> Answered[T_co]:
        """Return the answer of the first choice that gives one; each gets `args`.

        The call waits at most `max_wait` seconds for a choice (None: `Settings.max_wait`); then, or if no choice can
        open again, raise the failure of the first choice. An exception for a reason not in `on` is raised unchanged.
        """
        waker, governor = ThreadWaker(), self._governor()
        flow = self._dialogue(waker, governor, governor.execute, args, max_wait)
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, _Run):
                    with effect.handoff:
                        try:
                            result = _Result(effect.call())
                        except Exception as error:
                            result = _Result(error=error)
                    effect = flow.send(result)
                else:
                    waker.wait(effect.until)
                    effect = flow.send(None)
        except StopIteration as stop:
            return _answer(stop.value)
        finally:
            flow.close()

    async def aexecute(self: Fallback[Awaitable[T]], *args: Any, max_wait: float | None = None) -> Answered[T]:
        """Return the answer of the first choice that gives one, as `execute`; each `call` returns an awaitable."""
        waker, governor = async_waker(), self._governor()
        flow = self._dialogue(waker, governor, governor.aexecute, args, max_wait)
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, _Run):
                    with effect.handoff:
                        try:
                            result = _Result(await effect.call())
                        except Exception as error:
                            result = _Result(error=error)
                    effect = flow.send(result)
                else:
                    await waker.wait(effect.until)
                    effect = flow.send(None)
        except StopIteration as stop:
            return _answer(stop.value)
        finally:
            flow.close()
            waker.close()

    def answered_by(self, position: int) -> AnsweredBy:
        """Return a choice as the results of experiments record it.

        With the order `first_ready` the choices are deployments of one model, whatever their keys are called.
        """
        choice, key = self._choices[position], self._keys[position]
        model = choice.model
        if not model and not self._has_one_model:
            model = (key.scope if key is not None else "") or choice.name
        return AnsweredBy(choice.name, key.provider if key is not None else "", model)

    def _governor(self) -> RateLimitRegistry:
        """Return the registry, and give each choice with a name its key there."""
        governor = self._registry
        if governor is None:
            governor = self._registry = registry()
        for position, choice in enumerate(self._choices):
            if isinstance(choice.key, str):
                self._keys[position] = checked_key(governor.address(choice.key))
        return governor

    def _dialogue(
        self,
        waker: Waker,
        governor: RateLimitRegistry,
        submit: Callable[..., Any],
        args: tuple[Any, ...],
        max_wait: float | None,
    ) -> Generator[_Wait | _Run, _Result | None, tuple[_Result, Answered[Any]]]:
        call = _FallbackCall(self, waker, governor, submit, args, max_wait)
        while True:
            chosen = yield from call.choose()
            if chosen is None:
                return (yield from call.give_up())
            result = yield from call.run(chosen.position, chosen.permit, call.deadline)
            if result is not None:
                return result, call.answered(chosen.position, result, final=True)


def _answer(ended: tuple[_Result, Answered[Any]]) -> Answered[Any]:
    result, answered = ended
    if result.error is not None:
        raise result.error
    return answered


class _FallbackCall:
    """State of one call of a fallback; its steps are parts of the dialogue. Instants are monotonic seconds."""

    def __init__(
        self,
        fallback: Fallback[Any],
        waker: Waker,
        governor: RateLimitRegistry,
        submit: Callable[..., Any],
        args: tuple[Any, ...],
        max_wait: float | None,
    ) -> None:
        max_wait = governor.settings.max_wait if max_wait is None else checked_max_wait(max_wait)
        self._fallback = fallback
        self.waker = waker
        self._governor = governor
        self._submit = submit
        self._args = args
        self._outer = current_handoff()
        self._closed: dict[int, _Closed] = {}
        self._opens: dict[int, float] = {}
        self._failures: dict[int, _Result] = {}
        self._refusals = 0
        self._max_wait = max_wait
        self._begun = now = governor.clock()
        self.deadline = now + max_wait
        self._patient_until = now + fallback._patience
        first = next(fallback._turns) % len(fallback._choices)
        self._order = [*range(first, len(fallback._choices)), *range(first)]

    @property
    def key(self) -> Key:
        """Return the key for which the call is said to wait: that of its first choice."""
        return self._fallback._keys[0] or UNKNOWN

    def choose(self) -> Generator[_Wait, None, _Chosen | None]:
        """Return the next choice; None if none opens in time."""
        line, outer, waits = self._fallback._line, self._outer, False
        line.join(self.waker, aside=bool(self._failures))
        try:
            while True:
                now = self._governor.clock()
                until = self.deadline
                if line.may_ask(self.waker):
                    found = self._look(now)
                    if isinstance(found, float):
                        # The call must be woken: it asks again, and leaves one callback for the whole line.
                        found = self._look(now, line.wake)
                    if not isinstance(found, float):
                        return found
                    until = min(found, until)
                is_over = now >= self.deadline or getattr(self.waker, "exiting", False)
                if is_over or (outer is not None and outer.is_recalled):
                    return None
                if outer is not None and not waits:
                    waits = True
                    outer.note_wait_started(self, now)
                yield _Wait(None if until == INFINITY else until)
        finally:
            line.leave(self.waker)
            if outer is not None and waits:
                outer.note_wait_ended(self, self._governor.clock())

    def run(self, position: int, permit: Permit | None, deadline: float) -> Generator[_Run, _Result, _Result | None]:
        """Return the result of a choice; None if it refused for a reason to pass it over."""
        fallback, governor = self._fallback, self._governor
        choice, key = fallback._choices[position], fallback._keys[position]
        while True:
            call: Callable[[], Any] = partial(choice.call, *self._args)
            now = governor.clock()
            if choice.key is not None:
                call = partial(self._submit, key, call, cost=choice.cost, max_wait=max(0.0, deadline - now))
            handoff = hand_off(governor, permit, deadline)
            result = yield _Run(call, handoff)
            if choice.key is None and handoff.keys:
                # The key of its first attempt is the one to ask for a permit next time.
                fallback._keys[position], fallback._costs[position] = next(iter(handoff.keys.items()))
            outcome, reason = _reason_of(result, handoff)
            if reason in fallback._on:
                break
            if handoff.refused is None:
                return result
            # The attempt with the handed permit came back without a wait; the next one waits in the key's own queue.
            permit = None
        self._failures[position] = result
        opens = self._opens[position] = self._opens_after(reason, outcome)
        self._closed[position] = _Closed(reason, opens)
        return None

    def give_up(self) -> Generator[_Run, _Result, tuple[_Result, Answered[Any]]]:
        """Return the failure of the first choice; one that was not asked answers from its key's own state."""
        if 0 not in self._failures:
            result = yield from self.run(0, None, self._governor.clock())
            if result is not None:
                return result, self.answered(0, result, final=True)
        failure = self._failures[0]
        if isinstance(failure.error, DeadlineExceeded):
            failure = _Result(error=self._deadline_exceeded(failure.error))
        if failure.error is not None:
            passed = ", ".join(f"{each.choice}: {each.reason}" for each in self._passed_over())
            add_note(failure.error, f"tidegate: fallback given up: no choice opens in time; passed over {passed}")
        return failure, self.answered(0, failure)

    def _deadline_exceeded(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """Return the error of the first choice, with the whole wait of this call."""
        waited = self._governor.clock() - self._begun
        return DeadlineExceeded(
            key=error.key, waited=waited, max_wait=self._max_wait, gate=error.gate, opens_in=error.opens_in
        )

    def answered(self, position: int, result: _Result, *, final: bool = False) -> Answered[Any]:
        """Return the result with the choice that gave it; a `final` value is no refusal, and its choice is noted."""
        self._closed.pop(position, None)
        fallback = self._fallback
        if final and result.error is None and self._outer is not None:
            self._outer.note_answered_by(fallback.answered_by(position))
        return Answered(result.value, fallback._choices[position].name, fallback._keys[position], self._passed_over())

    def _look(self, now: float, wake: Callable[[], object] | None = None) -> _Chosen | float | None:
        """Return the first choice that is open; else the instant to look again; None if none opens in time.

        With `wake`, a change at some key calls it; infinity stands for such a change. A key that other calls wait for
        admits nobody past them: where no choice is open, the call joins the queue of the first such key.
        """
        fallback, again, hopeless, joinable = self._fallback, INFINITY, True, -1
        for position in self._order:
            key, opens = fallback._keys[position], self._opens.get(position, now)
            if opens > now:
                again = min(again, opens)
                hopeless = hopeless and (opens > self.deadline or opens == INFINITY)
                continue
            if key is None:
                return _Chosen(position, None)
            permit = self._outer.take(self._governor, key) if self._outer is not None else None
            answer = permit or self._governor.try_admit(key, fallback._costs[position], wake=wake)
            if not isinstance(answer, NotReady):
                return _Chosen(position, answer)
            last = answer.rejection or self._governor.unavailable(key).last
            reason = _reason_of_gate(answer.gate, last)
            if reason not in fallback._on:
                return _Chosen(position, None)
            opens = INFINITY if reason == "money" else answer.ready_at
            self._closed[position] = _Closed(reason, opens)
            if reason == "money":
                self._opens[position] = INFINITY
                continue
            again = min(again, opens)
            hopeless = hopeless and answer.stated and opens > self.deadline
            if answer.queued and reason == "rate" and joinable < 0:
                joinable = position
            if now < self._patient_until and (opens <= self._patient_until or opens == INFINITY):
                return min(again, self._patient_until)
        if joinable >= 0:
            return _Chosen(joinable, None)
        return None if hopeless else again

    def _opens_after(self, reason: str, outcome: Outcome) -> float:
        """Return when to ask a choice again after its refusal; infinity for one that has used up its attempts."""
        now = self._governor.clock()
        if reason in ("money", "outage"):
            return INFINITY
        if reason == "day":
            return now + (outcome.retry_after or INFINITY)
        # The state of the key holds the wait that the provider has named.
        self._refusals += 1
        return now + full_jitter(self._refusals, self._governor.draw())

    def _passed_over(self) -> tuple[PassedOver, ...]:
        fallback, now, today = self._fallback, self._governor.clock(), datetime.now(UTC)
        return tuple(
            PassedOver(
                fallback._choices[position].name,
                fallback._keys[position],
                closed.reason,
                None if closed.until == INFINITY else today + timedelta(seconds=closed.until - now),
            )
            for position, closed in sorted(self._closed.items())
        )


def _reason_of(result: _Result, handoff: PermitHandoff) -> tuple[Outcome, str]:
    """Return the outcome of a function's last attempt, and the reason to pass its choice over ('': none)."""
    error, outcome = result.error, handoff.outcome
    if outcome is None and isinstance(error, DeadlineExceeded):
        return NO_OUTCOME, _reason_of_gate(error.gate, None)
    if outcome is None:
        outcome = (
            NO_OUTCOME if error is None else classify_error(error, datetime.now(UTC), providers.COMPATIBLE).outcome
        )
    return outcome, _reason_of_outcome(outcome)


def _reason_of_outcome(outcome: Outcome) -> str:
    if outcome.kind is Kind.TRANSIENT:
        return "outage" if outcome.cause is Cause.OUTAGE else ""
    return _REASON_OF_KIND.get(outcome.kind, "")


def _reason_of_gate(gate: str, last: Outcome | None) -> str:
    """Return the reason for which a gate is closed, by the newest refusal of its key; '' for a wrong credential."""
    if gate == "breaker":
        return "outage"
    if gate == DAY:
        return "day"
    told = "" if last is None else _reason_of_outcome(last)
    if gate == REJECTED:
        return told
    return told if gate == "pause" and told in ("rate", "overload") else "rate"


def _checked_choices(choices: Iterable[Choice[T]]) -> Sequence[Choice[T]]:
    require(isinstance(choices, Iterable), "choices", choices, "a list of Choice")
    given = list(choices)
    require(bool(given), "choices", given, "at least one Choice")
    named: list[Choice[T]] = []
    for position, choice in enumerate(given):
        where = f"choices[{position}]"
        require(isinstance(choice, Choice), where, choice, "a Choice")
        require(callable(choice.call), f"{where}.call", choice.call, "a function")
        require(isinstance(choice.name, str), f"{where}.name", choice.name, "a text")
        name = choice.name or (f"choice {position + 1}" if choice.key is None else str(choice.key))
        keys = [checked_key(each.key) for each in named if each.key is not None]
        if choice.key is not None:
            require(checked_key(choice.key) not in keys, f"{where}.key", choice.key, "a key that no other choice has")
        require(name not in [each.name for each in named], f"{where}.name", name, "a name that no other choice has")
        checked_cost(choice.cost)
        require(isinstance(choice.model, str), f"{where}.model", choice.model, "a text")
        named.append(replace(choice, name=name))
    return named


def _checked_reasons(on: Iterable[str]) -> frozenset[str]:
    require(isinstance(on, Iterable) and not isinstance(on, str), "on", on, "a sequence of reasons")
    given = tuple(on)
    for reason in given:
        require(reason in REASONS, "on", reason, "one of " + ", ".join(REASONS))
    return frozenset(given)


def fallback(
    choices: Iterable[Choice[T]],
    *,
    on: Iterable[str] = ("day", "money", "outage"),
    patience: float = 0.0,
    order: str = "listed",
    registry: RateLimitRegistry | None = None,
) -> Fallback[T]:
    """Return a call that several models or deployments may answer; see `Fallback.execute`.

    A choice that is closed, or refuses, for a reason in `on` is passed over: `day` (its daily quota is spent), `money`,
    `outage` (it is down, or fails), `rate` and `overload`. One that opens within `patience` seconds of the call's
    arrival is waited for. For a reason that is not in `on`, the call waits for the choice, or raises its exception.

    `order` is `listed`, or `first_ready`: every reason counts, and the calls begin with each choice in turn. This
    spreads them over deployments of one model. `registry` defaults to that of the process. Raise `ConfigurationError`
    for an empty list, two equal keys or names, an unknown reason or order, and an unusable `patience`.
    """
    return Fallback(choices, on=on, patience=patience, order=order, governor=registry)
