"""A provider whose models share some limits and have others of their own, before registry and exchange."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from bench import world
from bench.world import VirtualCall
from tests.laws.world import WeightedCall
from tidegate.core.exchange import AttemptResult, CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Key, Kind, Outcome, QuotaReading
from tidegate.settings import Settings
from tidegate.testing import Call, Limit, Refusal, Scenario
from tidegate.testing.admission import Gate, Ticket

SCOPES = {"virtual": {"shared": "account"}}


def key_of(model: int) -> Key:
    return Key("virtual", "https://provider.test", "0123456789abcdef", f"model-{model}")


@dataclass
class Attempt:
    """One request as the server saw it."""

    row: int
    model: int
    at: float
    admitted: bool


class TwoLevelWorld(world.World):
    """A provider with one `shared` limit for all models, and `own` limits of each; announced exactly, if `headers`."""

    def __init__(
        self,
        shared: Limit,
        own: dict[int, Limit] | None = None,
        settings: Settings | None = None,
        network: float = 0.005,
        latency: Callable[[random.Random], float] = lambda draw: 0.5,
        seed: int = 0,
        lag: float = 0.0,
    ) -> None:
        super().__init__(settings or Settings(scopes=SCOPES), seed, lag=lag)
        self.network = network
        self.latency = latency
        self.pricing = Scenario()
        self.shared = shared.build("shared")
        self.own = {model: limit.build("own") for model, limit in (own or {}).items()}
        self.limits = {"shared": shared, **{f"own {model}": limit for model, limit in (own or {}).items()}}
        self.gates: dict[int, Gate] = {}
        self.attempts: list[Attempt] = []
        self.models: dict[int, int] = {}
        self.in_flight = 0

    def call(
        self, row: int, model: int, *, at: float = 0.0, tokens: int = 0, max_wait: float = 1e6, priority: int = 0
    ) -> None:
        governed = WeightedCall(self.registry, key_of(model), CallPolicy(max_wait=max_wait), 60.0, priority)
        governed.tokens = tokens
        self.models[row] = model
        self.join(VirtualCall(self, row, governed), at)

    def cancel(self, row: int, at: float) -> None:
        self.after(at - self.now, self.calls[row].cancel)

    def gate(self, model: int) -> Gate:
        """The limiters of a model, of which one is that of all models."""
        if model not in self.gates:
            own = (self.own[model],) if model in self.own else ()
            self.gates[model] = Gate((self.shared, *own), self.pricing)
        return self.gates[model]

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        self.after(self.network, lambda: self._arrive(call, permit, reply))

    def _arrive(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        model = self.models[call.row]
        gate = self.gate(model)
        verdict = gate.admit(Call(input_tokens=call.governed.tokens), self.now)
        self.attempts.append(Attempt(call.row, model, self.now, isinstance(verdict, Ticket)))
        readings = self._readings(model)
        if isinstance(verdict, Refusal):
            outcome = Outcome(Kind.RATE_LIMIT, Cause.RATE, verdict.retry_after, readings, status=429)
            self.after(self.network, lambda: reply(AttemptResult(outcome)))
            return
        told = readings if permit.informs else ()
        self.in_flight += 1

        def finish() -> None:
            self.in_flight -= 1
            gate.finish(verdict, 0, self.now)
            self.after(self.network, lambda: reply(AttemptResult(Outcome(Kind.OK, readings=told, status=200))))

        self.after(self.latency(self.random), finish)

    def _readings(self, model: int) -> tuple[QuotaReading, ...]:
        found = []
        for level in self.gate(model).levels(self.now):
            limit = self.limits["shared" if level.name == "shared" else f"own {model}"]
            found.append(
                QuotaReading(
                    name=level.name,
                    unit=level.unit,
                    refill="fixed" if limit.kind == "fixed" else "continuous",
                    limit=level.limit,
                    remaining=max(0.0, math.floor(level.remaining)),
                    reset_after=level.reset_after,
                )
            )
        return tuple(found)
