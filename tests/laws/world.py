"""Virtual time: the real registry and exchange against the simulator's pure limiters, without a socket or a clock."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.admission import Permit
from tidegate.core.estimate import Estimate
from tidegate.core.exchange import Ended, Ending, Flow, Policy, Resume, Send, Sent
from tidegate.core.vocabulary import Cause, Cost, Key, Kind, Outcome, Reading
from tidegate.registries import RateLimitRegistry
from tidegate.settings import Settings
from tidegate.testing import Call, Gate, Refusal, Scenario, Ticket
from tidegate.turn import Turn

KEY = Key("virtual", "https://provider.test", "0123456789abcdef", "model")


@dataclass
class Attempt:
    """One request as the server saw it."""

    row: int
    at: float
    admitted: bool
    sent_at: float


@dataclass
class World:
    """A provider, its network, and the clients before it; `call` adds one, `run` plays until nothing moves."""

    scenario: Scenario
    settings: Settings = field(default_factory=Settings)
    network: float = 0.005
    latency: Callable[[random.Random], float] = lambda draw: 0.5
    headers: bool = True
    hints: bool = True
    seed: int = 0
    lag: float = 0.0
    """Seconds, at most, between the waking of a call and its looking."""
    repeats: int = 0
    """How often the caller, as an SDK does, makes a call again that came back with a transient failure."""
    watch: Callable[[World], None] | None = None
    """Called after every event."""

    def __post_init__(self) -> None:
        self.now = 0.0
        self.random = random.Random(self.seed)
        self.gate: Gate = self.scenario.gate()
        self.registry = RateLimitRegistry(self.settings, clock=lambda: self.now, draw=self.random.random)
        self.attempts: list[Attempt] = []
        self.sends: list[Sending] = []
        self.first_reading_at = math.inf
        self.ended: dict[int, Ended] = {}
        self.makespan = 0.0
        self.in_flight = self.peak = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._flows: dict[int, VirtualCall] = {}

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Plays `action` in `delay` seconds."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now + max(0.0, delay), self._sequence, action))

    def call(self, row: int, *, at: float = 0.0, tokens: int = 0, max_wait: float = 3600.0, priority: int = 0) -> None:
        """A call that joins at `at`."""
        call = VirtualCall(self, row, tokens, max_wait, priority)
        self._flows[row] = call
        self.after(at - self.now, call.start)

    def cancel(self, row: int, at: float) -> None:
        """The caller of `row` goes away at `at`."""
        self.after(at - self.now, self._flows[row].cancel)

    def run(self, until: float = math.inf) -> None:
        """Plays every event up to `until`; time does not run backwards and does not stand still for ever."""
        steps = 0
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
            if self.watch is not None:
                self.watch(self)
            steps += 1
            assert steps < 200_000, "the world does not come to rest"

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[Sent], None]) -> None:
        """What becomes of a request that is sent now."""
        sent_at = self.now
        self.after(self.network, lambda: self._arrive(call, permit, sent_at, reply))

    def _arrive(self, call: VirtualCall, permit: Permit, sent_at: float, reply: Callable[[Sent], None]) -> None:
        verdict = self.gate.admit(Call(input_tokens=call.tokens), self.now)
        admitted = isinstance(verdict, Ticket)
        self.attempts.append(Attempt(call.row, self.now, admitted, sent_at))
        readings = self._readings() if self.headers else ()
        if isinstance(verdict, Refusal):
            outcome = self._refused(verdict, readings)
            self.after(self.network, lambda: reply(Sent(outcome)))
            return
        told = readings if permit.informs else ()
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        latency = self.latency(self.random)

        def finish() -> None:
            self.in_flight -= 1
            self.gate.finish(verdict, 0, self.now)
            self.after(self.network, lambda: reply(Sent(Outcome(Kind.OK, readings=told, status=200))))

        self.after(latency, finish)

    def _refused(self, refusal: Refusal, readings: tuple[Reading, ...]) -> Outcome:
        if refusal.reason == "outage":
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, status=500)
        hint = refusal.retry_after if self.hints else None
        if refusal.reason == "slots":
            return Outcome(Kind.OVERLOADED, Cause.OVERLOAD, None, readings, status=503)
        return Outcome(Kind.RATE_LIMIT, Cause.RATE, hint, readings, status=429)

    def _readings(self) -> tuple[Reading, ...]:
        levels = self.gate.levels(self.now)[len(self.scenario.outages) :]
        return tuple(
            Reading(
                name=level.name,
                unit=level.unit,
                refill="fixed" if limit.kind == "fixed" else "continuous",
                limit=level.limit,
                remaining=max(0.0, math.floor(level.remaining)),
                reset_after=level.reset_after,
            )
            for limit, level in zip(self.scenario.limiters, levels, strict=True)
            if limit.is_announced
        )


@dataclass(frozen=True)
class Sending:
    """One attempt as it left: the permit it went under, and how many of its call had gone before."""

    row: int
    at: float
    permit: Permit
    before: int


class VirtualTurn(Turn):
    """A call that weighs so many tokens, and says so."""

    __slots__ = ("tokens",)

    def price(self, estimate: Estimate) -> Cost:
        return Cost(tokens=self.tokens, input_tokens=self.tokens)


class VirtualCall:
    """One caller: takes its turn as `tidegate.drive` does, on the world's events."""

    def __init__(self, world: World, row: int, tokens: int, max_wait: float, priority: int) -> None:
        self.world = world
        self.row = row
        self.tokens = tokens
        self.priority = priority
        self.waiting_for = 0
        self.sent = self.repeated = 0
        self.standing = False
        self.turn = VirtualTurn(world.registry, KEY, Policy(max_wait=max_wait), 60.0, priority)
        self.turn.tokens = tokens
        self.passed: Permit | None = None
        self.flow: Flow | None = None
        self.finished = False

    def start(self) -> None:
        if self.finished:
            return
        self.flow, self.passed = None, self.turn.begin()
        if self.passed is not None:
            self._leaves(self.passed)
        else:
            self._goes_on(None, None)

    def cancel(self) -> None:
        self.finished, self.standing = True, False
        if self.passed is not None:
            self.turn.abandon(self.passed)
            self.passed = None
        elif self.flow is not None:
            self.flow.close()

    def wake(self) -> bool:
        return self.arm(self.world.now)

    def arm(self, until: float) -> bool:
        turn = self.waiting_for
        late = self.world.lag * self.world.random.random() if self.world.lag else 0.0
        self.world.after(max(0.0, until - self.world.now) + late, lambda: self._resume(turn))
        return True

    def _resume(self, turn: int) -> None:
        if turn == self.waiting_for and not self.finished:
            self._step(lambda: self.flow.send(Resume(self.world.now)))

    def _goes_on(self, permit: Permit | None, sent: Sent | None) -> None:
        self.flow = self.turn.flow(lambda: self, permit, sent)
        self._step(lambda: next(self.flow))

    def _leaves(self, permit: Permit) -> None:
        self.standing = False
        self.world.sends.append(Sending(self.row, self.world.now, permit, self.sent))
        self.sent += 1
        self.world.serve(self, permit, self._reply)

    def _step(self, advance: Callable[[], object]) -> None:
        self.waiting_for += 1
        try:
            effect = advance()
        except StopIteration as stop:
            self._ends(stop.value)
            return
        if isinstance(effect, Send):
            self.waiting_for += 1
            self._leaves(effect.permit)
            return
        self.standing = True
        if effect.until is not None:
            self.arm(effect.until)

    def _ends(self, ended: Ended) -> None:
        self.standing = False
        if self._repeats(ended):
            return
        self.finished = True
        self.world.ended[self.row] = ended
        self.world.makespan = self.world.now

    def _repeats(self, ended: Ended) -> bool:
        """Whether the caller makes the call again: its own back-off runs, in which nothing stands or is under way."""
        transient = ended.sent is not None and ended.sent.outcome.kind is Kind.TRANSIENT
        if not transient or ended.ending is not Ending.HANDED_BACK or self.repeated >= self.world.repeats:
            return False
        self.repeated += 1
        backoff = min(8.0, 0.5 * 2.0 ** (self.repeated - 1)) * (1.0 - 0.25 * self.world.random.random())
        self.world.after(backoff, self.start)
        return True

    def _reply(self, sent: Sent) -> None:
        if self.finished:
            return
        if sent.outcome.readings:
            self.world.first_reading_at = min(self.world.first_reading_at, self.world.now)
        if self.passed is None:
            self._step(lambda: self.flow.send(Resume(self.world.now, sent)))
            return
        permit, self.passed = self.passed, None
        if self.turn.concluded(permit, sent):
            self._ends(Ended(Ending.ANSWERED, sent, 0.0))
        else:
            self._goes_on(permit, sent)
