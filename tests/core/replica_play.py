"""Histories of one key before a provider, at the level of the core: a replica that acts, and others that replay it.

Instants are multiples of a thousandth and a bit (`TICK`), so that they add up without rounding.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.core.values import KEY
from tidegate.core.limiter_state import Permit
from tidegate.core.replica import Replica
from tidegate.core.replicated_controller import ReplicatedKey
from tidegate.core.values import (
    Cause,
    Cost,
    Kind,
    Outcome,
    QuotaReading,
    RequestFacts,
    ResetInstant,
    Usage,
)
from tidegate.settings import Settings
from tidegate.testing import Call, Limit, Refusal, Scenario, Ticket
from tidegate.testing.specs import OutageSpan

TICK = 1.0 / 1024.0

CALENDAR = float(1 << 31)
"""The provider's clock at zero."""

BEGINS = 16.0
"""The first instant: zero stands for no instant in some fields."""


def replica_of(member: int, now: float = BEGINS) -> Replica:
    """A replica of one key that nobody has used."""
    replica = Replica(member, lambda tag, at: ReplicatedKey(KEY, Settings(), 60.0, at))
    ReplicatedKey(KEY, Settings(), 60.0, now).begin_replica(replica, "")
    return replica


def plain(replica: Replica, at: float) -> Any:
    payload = replica.dump(at)
    assert payload is not None
    return json.loads(zlib.decompress(payload))


@dataclass(frozen=True)
class Regime:
    """A provider: its limits, and how it tells of them."""

    name: str
    scenario: Scenario
    headers: bool = True
    hints: bool = True
    refill: str = ""
    dated: bool = False
    rejects: bool = False
    bound: float = 0.0


def _limits(*limiters: Limit, **facts: Any) -> Scenario:
    return Scenario(limiters=limiters, **facts)


REGIMES = (
    Regime("bucket", _limits(Limit(limit=40, window=8.0))),
    Regime("tokens", _limits(Limit(limit=200, window=8.0), Limit(limit=4000, window=8.0, unit="tokens")), bound=200.0),
    Regime("ample", _limits(Limit(limit=100_000, window=8.0))),
    Regime("fixed", _limits(Limit(kind="fixed", limit=20, window=8.0, offset=3.0)), refill="fixed"),
    Regime("dated", _limits(Limit(kind="fixed", limit=20, window=8.0, offset=3.0)), refill="fixed", dated=True),
    Regime("dated-bucket", _limits(Limit(limit=40, window=8.0)), dated=True),
    Regime("rolling", _limits(Limit(kind="rolling", limit=20, window=8.0))),
    Regime("sub", _limits(Limit(limit=300, window=60.0), Limit(kind="fixed", limit=5, window=1.0, announced=False))),
    Regime("silent", _limits(Limit(limit=10, window=1.0)), headers=False, hints=False),
    Regime("hinted", _limits(Limit(kind="fixed", limit=10, window=4.0)), headers=False),
    Regime("slots", _limits(Limit(kind="slots", limit=6)), headers=False, hints=False),
    Regime("outage", _limits(Limit(limit=50, window=4.0), outages=(OutageSpan(start=3.0, end=9.0),))),
    Regime("rejected", _limits(Limit(limit=1000, window=4.0)), rejects=True),
)


class Play:
    """Processes before a provider, one by default; `replayers` follow them. `offset` is added to their clock.

    A process reads the log before each of its own events, and only then. `log` has all events with their members.
    """

    def __init__(self, regime: Regime, seed: int, offset: float = 0.0, callers: int = 12, members: int = 1) -> None:
        self.regime = regime
        self.random = random.Random(seed)
        self.offset = offset
        self.now = BEGINS
        self.gate = regime.scenario.gate()
        self.replicas = [replica_of(number, self.clock) for number in range(members)]
        self.replica = self.replicas[0]
        self.replayers: list[Replica] = []
        self.log: list[tuple[int, float, bytes]] = []
        self._read = [0] * members
        self._events: list[tuple[float, int, Callable[[], None], Replica]] = []
        self._numbers = itertools.count()
        for number in range(callers):
            self._turn(self.random.randrange(64) * TICK, self.replicas[number % members])

    @property
    def controller(self) -> ReplicatedKey:
        found = self.replica.controllers[""]
        assert isinstance(found, ReplicatedKey)
        return found

    def catch_up(self, replica: Replica) -> None:
        """Let a process read what the others did since its last event."""
        if replica not in self.replicas:
            return
        number = replica.member
        for who, at, payload in self.log[self._read[number] :]:
            if who != number:
                replica.replay(who, at, payload)
        self._read[number] = len(self.log)

    def _turn(self, seconds: float, replica: Replica) -> None:
        self._after(seconds, self._ask, replica)

    @property
    def clock(self) -> float:
        return self.now + self.offset

    def run(self, steps: int, check: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            if not self._events:
                return
            self.now, _, action, self.replica = heapq.heappop(self._events)
            self.catch_up(self.replica)
            action()
            for at, payload in self.replica.said:
                self.log.append((self.replica.member, at, payload))
                for each in self.replayers:
                    each.replay(self.replica.member, at, payload)
            self._read[self.replica.member] = len(self.log)
            self.replica.said.clear()
            check()

    def _after(self, seconds: float, action: Callable[[], None], replica: Replica | None = None) -> None:
        ticks = max(0, math.ceil(seconds / TICK - 1e-3))
        entry = (self.now + ticks * TICK, next(self._numbers), action, replica or self.replica)
        heapq.heappush(self._events, entry)

    def _draw_cost(self) -> Cost:
        tokens = float(self.random.randrange(1, 256))
        bound = self.regime.bound
        return Cost(
            tokens=tokens + bound,
            input_tokens=tokens,
            held=bound,
            input_estimate=tokens,
            output_bound=bound,
            output_estimate=min(bound, 50.0),
        )

    def _ask(self) -> None:
        cost = self._draw_cost()
        controller, now = self.controller, self.clock
        if controller.rejection is not None and controller.rejection.opens_at(now) > now:
            self._after(0.5, self._ask)
            return
        ready, _ = controller.ready_at(cost, now)
        if ready > now:
            wait = 0.25 if ready == math.inf else ready - now
            self._after(min(wait, 5.0), self._ask)
            return
        permit = controller.admit(cost, now, TICK * self.random.randrange(64), None)
        if self.random.random() < 0.03:
            controller.withdraw(permit, now, None)
            self._after(TICK, self._ask)
            return
        self._after(5 * TICK, lambda: self._arrive(permit))

    def _arrive(self, permit: Permit) -> None:
        verdict = self.gate.admit(Call(input_tokens=int(permit.cost.input_tokens)), self.now - BEGINS)
        if self.regime.rejects and 2.0 < self.now - BEGINS < 6.0:
            denied = Outcome(Kind.DAILY_LIMIT, Cause.DAY, 1.5, status=429)
            self._after(5 * TICK, lambda: self._settle(permit, denied))
            return
        if isinstance(verdict, Refusal):
            self._after(5 * TICK, lambda: self._settle(permit, self._refused(verdict)))
            return
        assert isinstance(verdict, Ticket)
        if self.random.random() < 0.02:
            self._after(0.5, lambda: self._silent(permit))
        if self.random.random() < 0.1:
            self._after(0.05, lambda: self._learn(permit))
        self._after(0.06 + TICK * self.random.randrange(256), lambda: self._end(permit, verdict))

    def _learn(self, permit: Permit) -> None:
        if not permit.settled:
            self.controller.learn(permit, self._answer(), self.clock, None)

    def _silent(self, permit: Permit) -> None:
        if not permit.settled:
            self.controller.note_silent(permit, False, self.clock, 0.5, None)

    def _end(self, permit: Permit, ticket: Ticket) -> None:
        self.gate.finish(ticket, 0, self.now - BEGINS)
        outcome = self._answer()
        if self.random.random() < 0.03:
            outcome = Outcome(Kind.ABANDONED)
        elif self.random.random() < 0.03:
            self.controller.learn_usage(RequestFacts("model", 400, 64), Usage(100, 30), self.clock)
        self._settle(permit, outcome)

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        draw = self.random.randrange(1024) / 1024
        self.controller.settle(permit, outcome, self.clock, draw, None)
        self._after(TICK, self._ask)

    def _answer(self) -> Outcome:
        return Outcome(Kind.OK, readings=self._readings(), usage=Usage(100, 30), status=200)

    def _refused(self, refusal: Refusal) -> Outcome:
        if refusal.reason == "outage":
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, status=500)
        hint = refusal.retry_after if self.regime.hints else None
        if hint is not None:
            hint = math.ceil(hint / TICK) * TICK
        cause = Cause.OVERLOAD if refusal.reason == "slots" else Cause.RATE
        kind = Kind.OVERLOADED if refusal.reason == "slots" else Kind.RATE_LIMIT
        return Outcome(kind, cause, hint, self._readings(), status=429)

    def _readings(self) -> tuple[QuotaReading, ...]:
        if not self.regime.headers:
            return ()
        levels = self.gate.levels(self.now - BEGINS)[len(self.regime.scenario.outages) :]
        found = []
        for limit, level in zip(self.regime.scenario.limiters, levels, strict=True):
            if not limit.is_announced:
                continue
            reset = None if level.reset_after is None else math.ceil(level.reset_after / TICK) * TICK
            dated = float(int(CALENDAR + self.now))
            instant = ResetInstant(CALENDAR + self.now + reset, 1.0, dated) if self.regime.dated and reset else None
            found.append(
                QuotaReading(
                    level.name,
                    level.unit,
                    self.regime.refill or "continuous",  # type: ignore[arg-type]
                    level.limit,
                    float(max(0, math.floor(level.remaining))),
                    reset,
                    from_receipt=instant is not None,
                    instant=instant,
                )
            )
        return tuple(found)
