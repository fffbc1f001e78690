"""Virtual time, and the oracle in it: the earliest finish of a client that knows every limit."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.errors import ConfigurationError
from tidegate.testing.admission import Call, Gate, Pricing, Refusal, Ticket
from tidegate.testing.limiters import Limiter
from tidegate.testing.scenario import Scenario


class VirtualClock:
    """Clock for tests: a call returns the instant, in seconds; `advance` moves it and returns the new instant.

    It has the signature of `time.monotonic`, so it can replace it wherever a clock is a parameter.
    """

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    @property
    def now(self) -> float:
        """Return the current instant, in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward by `seconds`, and return the new instant. Raise ConfigurationError if negative."""
        if not seconds >= 0:
            raise ConfigurationError("seconds", seconds, "it must be 0 or more: a clock only moves forward")
        self._now += seconds
        return self._now

    def advance_to(self, instant: float) -> float:
        """Move to `instant`, unless it is already past, and return the current instant."""
        self._now = max(self._now, instant)
        return self._now


@dataclass(frozen=True, slots=True)
class Schedule:
    """Instants of admission and end of the oracle's calls, in call order, in seconds of the provider's clock."""

    admitted_at: tuple[float, ...]
    ended_at: tuple[float, ...]

    @property
    def makespan(self) -> float:
        """Return the instant at which the last call ended; 0 without calls.

        It is the time since the submission if that was at 0.
        """
        return max(self.ended_at, default=0.0)


def ideal_makespan(scenario: Scenario, costs: Sequence[Call], *, concurrency: int | None = None) -> float:
    """Return the earliest finish of all calls, in seconds from their common submission at 0.

    It is that of `ideal_schedule` with median latencies.
    """
    return ideal_schedule(scenario, costs, concurrency=concurrency).makespan


def ideal_schedule(
    scenario: Scenario,
    costs: Sequence[Call],
    *,
    concurrency: int | None = None,
    drawn: bool = False,
    start: float = 0.0,
    arrivals: Sequence[float] = (),
) -> Schedule:
    """Return the schedule of an oracle that knows every limit.

    It sends the calls in order from `start` (seconds of the provider's clock), each as early as the limiters of one key
    allow. At most `concurrency` calls are in flight (None: no bound), and at most the scenario's `knee`, beyond which
    nothing is gained. A call takes the median latency, plus the pace of its output tokens. A call without output tokens
    produces the scenario's median. With `drawn`, the scenario's seed draws latencies and outputs, as the simulator does
    for calls that are admitted in this order. With `arrivals` each call comes at its own instant, in order.
    Raise ConfigurationError for a call that no wait admits.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError("concurrency", concurrency, "it must be 1 or more, or None for no bound")
    if arrivals and (len(arrivals) != len(costs) or list(arrivals) != sorted(arrivals)):
        raise ConfigurationError("arrivals", arrivals, "it must have one instant for each call, sorted")
    most = min(concurrency or math.inf, scenario.knee or math.inf)
    return _Oracle(scenario, most, drawn).play(costs, start, arrivals)


class OracleCharge:
    """Charges for the oracle: a call must fit with all that it will have been charged at its end.

    A provider that charges output as it is written lets a client go into debt. The oracle keeps the limits, except for
    a call that is larger than a limit. It sends that call when the limit is full.
    """

    def __init__(self, pricing: Pricing, limiters: Sequence[Limiter]) -> None:
        self._pricing = pricing
        self._room: dict[str, float] = {}
        for limiter in limiters:
            self._room[limiter.unit] = min(limiter.capacity, self._room.get(limiter.unit, math.inf))
        self.at_end = pricing.at_end

    def at_admission(self, unit: str, call: Call) -> float:
        """Return the larger of the amount that must fit and the amount that is charged in the end."""
        charged = min(self.at_end(unit, call, call.output_tokens), self._room.get(unit, math.inf))
        return max(self._pricing.at_admission(unit, call), charged)


class _Oracle:
    def __init__(self, scenario: Scenario, most: float, drawn: bool) -> None:
        self.scenario = scenario
        limiters = scenario.gate().limiters
        for limiter in limiters:
            limiter.foresee()
        self.gate = Gate(limiters, OracleCharge(scenario, limiters))
        self.most = most
        self.drawn = drawn
        self.random = random.Random(scenario.seed)
        self.running: list[tuple[float, int, Ticket]] = []

    def play(self, costs: Sequence[Call], start: float, arrivals: Sequence[float]) -> Schedule:
        admitted_at: list[float] = []
        ended_at: list[float] = []
        now = start
        for index, cost in enumerate(costs):
            if arrivals:
                now = max(now, arrivals[index])
            if len(self.running) >= self.most:
                now = max(now, self.running[0][0])
            # The simulator draws in this order at admission.
            latency = self.scenario.latency.draw(self.random) if self.drawn else self.scenario.latency.median
            call = self._produced(cost)
            ticket, now = self._admit(index, call, now)
            ends_at = now + latency + self.scenario.token_pace * call.output_tokens
            heapq.heappush(self.running, (ends_at, index, ticket))
            admitted_at.append(now)
            ended_at.append(ends_at)
        return Schedule(tuple(admitted_at), tuple(ended_at))

    def _admit(self, index: int, call: Call, now: float) -> tuple[Ticket, float]:
        while True:
            self._land(now)
            # An attempt that is refused may count: the oracle makes none.
            ready_at = self.gate.ready_at(call, now)
            if ready_at <= now:
                ticket = self.gate.admit(call, now)
                assert not isinstance(ticket, Refusal), "a limiter that is ready refuses"
                return ticket, now
            soonest = min(ready_at, self.running[0][0] if self.running else math.inf)
            if soonest == math.inf:
                refusal = self.gate.admit(call, now)
                assert isinstance(refusal, Refusal)
                raise ConfigurationError(f"costs[{index}]", call, f"the limiter {refusal.name} never admits it")
            now = max(soonest, math.nextafter(now, math.inf))

    def _land(self, now: float) -> None:
        while self.running and self.running[0][0] <= now:
            at, _, ticket = heapq.heappop(self.running)
            self.gate.finish(ticket, ticket.call.output_tokens, at)

    def _produced(self, call: Call) -> Call:
        if call.output_tokens or self.scenario.output_tokens is None:
            return call
        if not self.drawn:
            return self.scenario.with_output(call)
        bound = call.max_tokens
        natural = max(1, round(self.scenario.output_tokens.draw(self.random)))
        return dataclasses.replace(call, output_tokens=natural if bound is None else min(natural, bound))
