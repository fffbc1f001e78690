"""Fallbacks: one call that several models or deployments may answer, in the order of preference.

Theory of operation. A call takes the first choice whose key admits it. It passes over a choice that is closed, or that
refuses, for a reason in `on`; for any other reason it waits for that choice. If every choice is closed, the call waits
for the one that opens first. Calls of one fallback that wait do so in one line: only its head asks the keys, so their
order is that of their arrival. A choice gets its permit by `try_admit`, and hands it down to the call.

The dialogue of a call has the effects of every governed call, and its interpreters (`tidegate.admission.drive`).
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tidegate import providers
from tidegate.admission.arguments import checked_cost, checked_key, checked_max_wait
from tidegate.admission.call import GovernedCall
from tidegate.admission.drive import adrive, drive
from tidegate.admission.handoff import PermitHandoff, current_handoff, hand_off
from tidegate.admission.registry import NotReady, RateLimitRegistry, registry
from tidegate.admission.wait_queue import Waker
from tidegate.core.backoff import full_jitter
from tidegate.core.exchange import (
    AttemptResult,
    CallPolicy,
    Effect,
    Ending,
    ExchangeResult,
    Flow,
    Resume,
    Send,
    WaitUntil,
)
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import DAY, REJECTED
from tidegate.core.values import INFINITY, AnsweredBy, Cost, Key, Kind, Outcome, passing_reason
from tidegate.errors import DeadlineExceeded, add_note, require
from tidegate.providers.classification import classify_error

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REASONS = ("day", "money", "outage", "rate", "overload")
"""Reasons for which a choice may be passed over."""

ORDERS = ("listed", "first_ready")

UNKNOWN = Key("unknown", "")
"""Key of a waiting call whose choices have none yet."""

NO_OUTCOME = Outcome(Kind.OK)
"""Outcome of a function that made no attempt and did not fail."""


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


Chosen: TypeAlias = tuple[int, Permit | None]
"""Choice to take, by its position, and its permit if there is one."""

_T = TypeVar("_T")
Steps: TypeAlias = Generator[Effect, Resume, _T]
"""Part of the dialogue of a call."""


class WaitingLine:
    """Line of the calls of one fallback that wait, first come, first served; only its head asks the keys.

    A call that was refused waits `aside`: it leaves out choices that are open to the calls behind it.
    """

    def __init__(self) -> None:
        self._wakers: deque[Waker] = deque()
        self._aside: set[Waker] = set()
        self._process = os.getpid()

    def join(self, waker: Waker, aside: bool = False) -> None:
        """Join at the end, or beside the line; in a forked child, forget the calls of the parent before."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._wakers.clear()
            self._aside.clear()
        if aside:
            self._aside.add(waker)
        else:
            self._wakers.append(waker)

    def may_ask(self, waker: Waker) -> bool:
        """Return whether a call is the head, or waits aside."""
        return waker in self._aside or self._head() is waker

    def leave(self, waker: Waker) -> None:
        """Leave the line, and wake its head: of several calls that leave at once, the last one finds the new head.

        Calls whose event loop is closed are taken out.
        """
        self._aside.discard(waker)
        self._take_out(waker)
        while (head := self._head()) is not None and not head.wake():
            self._take_out(head)

    def wake(self) -> None:
        """Make the calls look again that may ask."""
        for each in [*self._aside, self._head()]:
            if each is not None:
                each.wake()

    def _head(self) -> Waker | None:
        try:
            return self._wakers[0]
        except IndexError:
            return None

    def _take_out(self, waker: Waker) -> None:
        with suppress(ValueError):
            self._wakers.remove(waker)


class Fallback(Generic[T_co]):
    """Call with several choices; see `tidegate.fallback`. Threads, event loops and trio runs may share it."""

    def __init__(
        self,
        choices: Sequence[Choice[T_co]],
        on: frozenset[str],
        patience: float,
        spreads: bool,
        governor: RateLimitRegistry | None,
    ) -> None:
        self._choices = choices
        self._on = on
        self._patience = patience
        self._registry = governor
        self._has_one_model = spreads
        self._turns = itertools.count() if spreads else itertools.repeat(0)
        self._line = WaitingLine()
        self._keys = [each.key if isinstance(each.key, Key) else None for each in choices]
        self._costs = [checked_cost(each.cost) for each in choices]

    def execute(self, *args: Any, max_wait: float | None = None) -> Answered[T_co]:
        """Return the answer of the first choice that gives one; each gets `args`.

        The call waits at most `max_wait` seconds for a choice (None: `Settings.max_wait`); then, or if no choice can
        open again, raise the failure of the first choice. An exception for a reason not in `on` is raised unchanged.
        """
        answered: Answered[T_co] = drive(_FallbackCall(self, RateLimitRegistry.execute, args, max_wait))
        return answered

    async def aexecute(self: Fallback[Awaitable[T]], *args: Any, max_wait: float | None = None) -> Answered[T]:
        """Return the answer of the first choice that gives one, as `execute`; each `call` returns an awaitable."""
        answered: Answered[T] = await adrive(_FallbackCall(self, RateLimitRegistry.aexecute, args, max_wait))
        return answered

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


class _FallbackCall(GovernedCall):
    """One call of a fallback; `submit` runs a choice that has a key. Instants are monotonic seconds."""

    def __init__(
        self, fallback: Fallback[Any], submit: Callable[..., Any], args: tuple[Any, ...], max_wait: float | None
    ) -> None:
        self._governor = governor = fallback._governor()
        policy = CallPolicy(governor.settings.max_wait if max_wait is None else checked_max_wait(max_wait))
        # It is said to wait for the key of its first choice.
        super().__init__(governor, fallback._keys[0] or UNKNOWN, policy, 0.0, 0)
        self._fallback = fallback
        self._submit = partial(submit, governor)
        self._args = args
        self._closed: dict[int, PassedOver] = {}
        # When a choice may be asked again that this call was refused by; infinity: never.
        self._rests_until: dict[int, float] = {}
        self._failures: dict[int, AttemptResult] = {}
        self._refusals = self._answering = 0
        self.handoff = current_handoff()
        self.started_at = self.now()
        self.deadline = self.started_at + policy.max_wait
        self._patient_until = self.started_at + fallback._patience
        first = next(fallback._turns) % len(fallback._choices)
        self._order = [*range(first, len(fallback._choices)), *range(first)]

    def try_start(self) -> Permit | None:
        """Return None: the dialogue asks for the permits."""
        return None

    def exchange(self, make_waker: Callable[[], Waker], permit: Permit | None, attempt: AttemptResult | None) -> Flow:
        """Return the dialogue."""
        self.waker = make_waker()
        return self._dialogue(self.waker)

    def send(self, permit: Any) -> AttemptResult:
        """Call a choice inside its handoff, on this thread; the dialogue reads the outcome from the handoff."""
        with permit.handoff:
            try:
                return AttemptResult(NO_OUTCOME, permit.call())
            except Exception as error:
                return AttemptResult(NO_OUTCOME, error=error)

    async def asend(self, permit: Any) -> AttemptResult:
        """Call a choice inside its handoff, in this task."""
        with permit.handoff:
            try:
                return AttemptResult(NO_OUTCOME, await permit.call())
            except Exception as error:
                return AttemptResult(NO_OUTCOME, error=error)

    def finish(self, ended: ExchangeResult) -> Answered[Any]:
        """Return the result with the choice that gave it, or raise its exception; note a value that is no refusal."""
        attempt, fallback, position = ended.attempt, self._fallback, self._answering
        assert attempt is not None, "a dialogue ends with an attempt"
        self._closed.pop(position, None)
        if attempt.error is not None:
            raise attempt.error
        if ended.ending is Ending.ANSWERED and self.handoff is not None:
            self.handoff.note_answered_by(fallback.answered_by(position))
        name, key = fallback._choices[position].name, fallback._keys[position]
        return Answered(attempt.response, name, key, self._passed_over)

    def _dialogue(self, waker: Waker) -> Flow:
        attempt = None
        while attempt is None:
            chosen = yield from self._choose(waker)
            if chosen is None:
                return (yield from self._give_up())
            attempt = yield from self._ask(*chosen, self.deadline)
        return ExchangeResult(Ending.ANSWERED, attempt, 0.0)

    def _choose(self, waker: Waker) -> Steps[Chosen | None]:
        """Return the next choice; None if none opens in time."""
        line, outer, waits, now = self._fallback._line, self.handoff, False, self.now()
        line.join(waker, aside=bool(self._failures))
        try:
            while True:
                until = self.deadline
                if line.may_ask(waker):
                    found = self._look(now)
                    if not isinstance(found, float):
                        return found
                    until = min(found, until)
                if now >= self.deadline or self.recalled:
                    return None
                if outer is not None and not waits:
                    waits = True
                    outer.note_wait_started(self, now)
                now = (yield WaitUntil(None if until == INFINITY else until, waker)).now
        finally:
            line.leave(waker)
            if outer is not None and waits:
                outer.note_wait_ended(self, self.now())

    def _ask(self, position: int, permit: Permit | None, deadline: float) -> Steps[AttemptResult | None]:
        """Return the result of a choice; None if it refused for a reason to pass it over."""
        fallback, governor = self._fallback, self._governor
        choice, key = fallback._choices[position], fallback._keys[position]
        while True:
            call: Callable[[], Any] = partial(choice.call, *self._args)
            if choice.key is not None:
                call = partial(self._submit, key, call, cost=choice.cost, max_wait=max(0.0, deadline - self.now()))
            handoff = hand_off(governor, permit, deadline)
            # It stands where other calls have the permit: an interpreter sets its `loop`.
            asked: Any = SimpleNamespace(call=call, handoff=handoff)
            attempt = (yield Send(asked)).attempt
            assert attempt is not None, "a Send is resumed with what became of it"
            if choice.key is None and handoff.keys:
                # The key of its first attempt is the one to ask for a permit next time.
                fallback._keys[position], fallback._costs[position] = next(iter(handoff.keys.items()))
            outcome, reason = _reason_of(attempt.error, handoff)
            if reason in fallback._on:
                break
            if handoff.refused is None:
                self._answering = position
                return attempt
            # The attempt with the handed permit came back without a wait; the next one waits in the key's own queue.
            permit = None
        self._failures[position] = attempt
        opens = self._rests_until[position] = self._opens_after(reason, outcome)
        self._pass_over(position, reason, opens)
        return None

    def _give_up(self) -> Steps[ExchangeResult]:
        """Return the failure of the first choice; one that was not asked answers from its key's own state."""
        if 0 not in self._failures:
            attempt = yield from self._ask(0, None, self.now())
            if attempt is not None:
                return ExchangeResult(Ending.ANSWERED, attempt, 0.0)
        failure, self._answering = self._failures[0], 0
        error = failure.error
        if isinstance(error, DeadlineExceeded):
            # The error names the whole wait of this call.
            waited, most = self.now() - self.started_at, self.policy.max_wait
            error = DeadlineExceeded(
                key=error.key, waited=waited, max_wait=most, gate=error.gate, opens_in=error.opens_in
            )
        if error is not None:
            passed = ", ".join(f"{each.choice}: {each.reason}" for each in self._passed_over)
            add_note(error, f"tidegate: fallback given up: no choice opens in time; passed over {passed}")
        return ExchangeResult(Ending.GIVEN_UP, failure._replace(error=error), 0.0)

    def _look(self, now: float) -> Chosen | float | None:
        """Return the first choice that is open; else the instant to look again; None if none opens in time.

        A change at a key that is closed wakes the line; infinity stands for such a change. A key that other calls wait
        for admits nobody past them: where no choice is open, the call joins the queue of the first such key.
        """
        fallback, again, hopeless, joinable = self._fallback, INFINITY, True, -1
        for position in self._order:
            key, opens = fallback._keys[position], self._rests_until.get(position, now)
            if opens > now:
                again = min(again, opens)
                hopeless = hopeless and (opens > self.deadline or opens == INFINITY)
                continue
            if key is None:
                return position, None
            permit = self.handoff.take(self._governor, key) if self.handoff is not None else None
            answer = permit or self._governor.try_admit(key, fallback._costs[position], wake=fallback._line.wake)
            if not isinstance(answer, NotReady):
                return position, answer
            last = answer.rejection or self._governor.unavailable(key).last
            reason = _reason_of_gate(answer.gate, last)
            if reason not in fallback._on:
                return position, None
            opens = INFINITY if reason == "money" else answer.ready_at
            self._pass_over(position, reason, opens)
            if reason == "money":
                self._rests_until[position] = INFINITY
                continue
            again = min(again, opens)
            hopeless = hopeless and answer.stated and opens > self.deadline
            if answer.queued and reason == "rate" and joinable < 0:
                joinable = position
            if now < self._patient_until and (opens <= self._patient_until or opens == INFINITY):
                return min(again, self._patient_until)
        if joinable >= 0:
            return joinable, None
        return None if hopeless else again

    def _opens_after(self, reason: str, outcome: Outcome) -> float:
        """Return when to ask a choice again after its refusal; infinity for one that has used up its attempts."""
        now = self.now()
        if reason in ("money", "outage"):
            return INFINITY
        if reason == "day":
            return now + (outcome.retry_after or INFINITY)
        # The state of the key holds the wait that the provider has named.
        self._refusals += 1
        return now + full_jitter(self._refusals, self._governor.draw())

    def _pass_over(self, position: int, reason: str, opens: float) -> None:
        """Note why a choice is passed over, and the instant at which it opens (infinity: unknown)."""
        until = None if opens == INFINITY else datetime.now(UTC) + timedelta(seconds=opens - self.now())
        name, key = self._fallback._choices[position].name, self._fallback._keys[position]
        self._closed[position] = PassedOver(name, key, reason, until)

    @property
    def _passed_over(self) -> tuple[PassedOver, ...]:
        return tuple(self._closed[position] for position in sorted(self._closed))


def _reason_of(error: Exception | None, handoff: PermitHandoff) -> tuple[Outcome, str]:
    """Return the outcome of a function's last attempt, and the reason to pass its choice over ('': none)."""
    outcome = handoff.outcome
    if outcome is None and isinstance(error, DeadlineExceeded):
        return NO_OUTCOME, _reason_of_gate(error.gate, None)
    if outcome is None:
        outcome = NO_OUTCOME
        if error is not None:
            outcome = classify_error(error, datetime.now(UTC), providers.COMPATIBLE).outcome
    return outcome, passing_reason(outcome)


def _reason_of_gate(gate: str, last: Outcome | None) -> str:
    """Return the reason for which a gate is closed, by the newest refusal of its key; '' for a wrong credential."""
    if gate == "breaker":
        return "outage"
    if gate == DAY:
        return "day"
    told = "" if last is None else passing_reason(last)
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
    require(order in ORDERS, "order", order, "one of " + ", ".join(ORDERS))
    require(isinstance(on, Iterable) and not isinstance(on, str), "on", on, "a sequence of reasons")
    reasons = tuple(on)
    require(all(each in REASONS for each in reasons), "on", on, "some of " + ", ".join(REASONS))
    number = isinstance(patience, int | float) and not isinstance(patience, bool)
    require(number and 0 <= patience < INFINITY, "patience", patience, "a number of seconds, 0 or more")
    known = registry is None or isinstance(registry, RateLimitRegistry)
    require(known, "registry", registry, "a RateLimitRegistry")
    spreads = order == "first_ready"
    return Fallback(_checked_choices(choices), frozenset(REASONS if spreads else reasons), patience, spreads, registry)
