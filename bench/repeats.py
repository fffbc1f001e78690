"""Schedule of a client that meets faults: it knows every limit, and sends each broken call again at once.

The oracle of `tidegate.testing` meets no fault. Where a share of all attempts breaks at random, no client is spared its
part of them, and the ideal is the time of a client that loses nothing but these attempts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from tidegate.testing import Call, Refusal, Scenario, Schedule
from tidegate.testing.accounts import Accounts, AdmittedCall


def repeated(scenario: Scenario, calls: Sequence[Call], callers: int, start: float = 0.0) -> Schedule:
    """Return the schedule against the provider's own books, which draw the faults; no limit may bind.

    A caller sends its call until it is answered, and then takes the next one. The instants of admission are those of
    first attempts.
    """
    now = start
    accounts = Accounts(scenario, lambda: now - start)
    left = deque(range(len(calls)))
    admitted_at, ended_at = [start] * len(calls), [start] * len(calls)
    running: list[tuple[float, int, AdmittedCall]] = []

    def send(number: int) -> None:
        outcome = accounts.admit("key", str(number), calls[number], stream=False).outcome
        assert not isinstance(outcome, Refusal), "the quotas are ample"
        # The simulator draws the output of broken calls, too.
        output = accounts.output_tokens(0)
        pace = 0.0 if outcome.fault else outcome.token_pace * output
        heapq.heappush(running, (now + outcome.latency + pace, number, outcome))

    for _ in range(min(callers, len(calls))):
        send(left.popleft())
    while running:
        now, number, admitted = heapq.heappop(running)
        accounts.end(admitted, "broken" if admitted.fault else "answered", 0)
        if admitted.fault:
            send(number)
            continue
        ended_at[number] = now
        if left:
            admitted_at[left[0]] = now
            send(left.popleft())
    return Schedule(tuple(admitted_at), tuple(ended_at))
