"""The world of the laws: registry and exchange against the simulator's pure limiters, whose headers are exact."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from bench import world
from bench.world import VirtualCall
from tidegate.admission.call import GovernedCall
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.exchange import AttemptResult, CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Key, Kind, Outcome, QuotaReading
from tidegate.settings import Settings
from tidegate.testing import Call, Gate, Refusal, Scenario, Ticket

DOWN = Outcome(Kind.TRANSIENT, Cause.OUTAGE, status=500)
KEY = Key("virtual", "https://provider.test", "0123456789abcdef", "model")


@dataclass
class Attempt:
    """One request as the server saw it."""

    row: int
    at: float
    admitted: bool
    sent_at: float


class World(world.World):
    """A provider, its network, and the clients before it; `call` adds one, `run` plays until nothing moves."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings | None = None,
        network: float = 0.005,
        latency: Callable[[random.Random], float] = lambda draw: 0.5,
        headers: bool = True,
        hints: bool = True,
        seed: int = 0,
        lag: float = 0.0,
        repeats: int = 0,
        watch: Callable[[World], None] | None = None,
        down: Outcome = DOWN,
    ) -> None:
        self.down = down
        self.settings = settings or Settings()
        super().__init__(self.settings, seed, lag=lag, repeats=repeats, watch=watch)
        self.scenario = scenario
        self.network = network
        self.latency = latency
        self.headers = headers
        self.hints = hints
        self.gate: Gate = scenario.gate()
        self.attempts: list[Attempt] = []
        self.in_flight = self.peak = 0

    def call(self, row: int, *, at: float = 0.0, tokens: int = 0, max_wait: float = 3600.0, priority: int = 0) -> None:
        governed = WeightedCall(self.registry, KEY, CallPolicy(max_wait=max_wait), 60.0, priority)
        governed.tokens = tokens
        self.join(VirtualCall(self, row, governed), at)

    def cancel(self, row: int, at: float) -> None:
        self.after(at - self.now, self.calls[row].cancel)

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        """What becomes of a request that is sent now."""
        sent_at = self.now
        self.after(self.network, lambda: self._arrive(call, permit, sent_at, reply))

    def _arrive(
        self, call: VirtualCall, permit: Permit, sent_at: float, reply: Callable[[AttemptResult], None]
    ) -> None:
        verdict = self.gate.admit(Call(input_tokens=call.governed.tokens), self.now)
        admitted = isinstance(verdict, Ticket)
        self.attempts.append(Attempt(call.row, self.now, admitted, sent_at))
        readings = self._readings() if self.headers else ()
        if isinstance(verdict, Refusal):
            outcome = self._refused(verdict, readings)
            self.after(self.network, lambda: reply(AttemptResult(outcome)))
            return
        told = readings if permit.informs else ()
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        latency = self.latency(self.random)

        def finish() -> None:
            self.in_flight -= 1
            self.gate.finish(verdict, 0, self.now)
            self.after(self.network, lambda: reply(AttemptResult(Outcome(Kind.OK, readings=told, status=200))))

        self.after(latency, finish)

    def _refused(self, refusal: Refusal, readings: tuple[QuotaReading, ...]) -> Outcome:
        if refusal.reason == "outage":
            return self.down
        hint = refusal.retry_after if self.hints else None
        if refusal.reason == "slots":
            return Outcome(Kind.OVERLOADED, Cause.OVERLOAD, None, readings, status=503)
        return Outcome(Kind.RATE_LIMIT, Cause.RATE, hint, readings, status=429)

    def _readings(self) -> tuple[QuotaReading, ...]:
        levels = self.gate.levels(self.now)[len(self.scenario.outages) :]
        return tuple(
            QuotaReading(
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


class WeightedCall(GovernedCall):
    """A call that weighs so many tokens, and says so."""

    __slots__ = ("tokens",)

    def price(self, estimate: CostEstimator) -> Cost:
        return Cost(tokens=self.tokens, input_tokens=self.tokens)
