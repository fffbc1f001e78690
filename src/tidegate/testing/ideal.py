"""The oracle: how soon a client could have finished that knew every limit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from tidegate.errors import ConfigurationError
from tidegate.testing.gate import Call, Refusal, Ticket
from tidegate.testing.scenario import Scenario


def ideal_makespan(scenario: Scenario, costs: Sequence[Call], *, concurrency: int | None = None) -> float:
    """The earliest finish of all calls, in seconds from their common submission at 0.

    The oracle sends the calls in order, each as early as the limiters of one key allow, with at most `concurrency` in
    flight (None: as many as it likes). A call then takes the median latency, plus the pace of its output tokens; a call
    with no output tokens of its own takes the scenario's median. Raises ConfigurationError for a call that no amount of
    waiting admits.
    """
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError("concurrency", concurrency, "1 or more, or None for no bound")
    gate = scenario.gate()
    running: list[tuple[float, int, Ticket]] = []
    now = last = 0.0

    def land() -> None:
        at, _, ticket = heapq.heappop(running)
        gate.finish(ticket, ticket.call.output_tokens, at)

    for index, cost in enumerate(costs):
        call = cost if cost.output_tokens else scenario.with_output(cost)
        if concurrency is not None and len(running) >= concurrency:
            now = max(now, running[0][0])
        while True:
            while running and running[0][0] <= now:
                land()
            ticket = gate.admit(call, now)
            if not isinstance(ticket, Refusal):
                break
            ready_at = gate.ready_at(call, now)
            soonest = min(ready_at, running[0][0] if running else math.inf)
            if soonest == math.inf:
                raise ConfigurationError(f"costs[{index}]", cost, f"admitted by no waiting: {ticket.name}")
            now = max(soonest, math.nextafter(now, math.inf))
        ends_at = now + scenario.duration(call)
        last = max(last, ends_at)
        heapq.heappush(running, (ends_at, index, ticket))
    return last
