"""A process without others at a key: its attempts get no numbers until another process has joined."""

from __future__ import annotations

import pytest

from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.replica import Replica
from tidegate.core.values import OK, Cost, Key, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

pytestmark = pytest.mark.constants(START_CONCURRENCY=1)

KEY = Key("provider", "https://provider.test", "0123456789abcdef", "model")
ANSWERED = Outcome(OK, status=200)


def process(store: MemoryStore, clock: VirtualClock) -> RateLimitRegistry:
    """A process that starts with one call at a time."""
    settings = Settings(telemetry=False, status=False)
    return RateLimitRegistry(settings, clock=clock, carrier=MemoryCarrier(store))


def replica_of(registry: RateLimitRegistry) -> Replica:
    assert registry._shared is not None
    (session,) = registry._shared.sessions.values()
    return session.replica


def admitted(registry: RateLimitRegistry) -> Permit:
    permit = registry.try_admit(KEY, Cost())
    assert isinstance(permit, Permit)
    return permit


def test_attempts_of_a_process_alone_get_numbers_when_another_joins() -> None:
    clock, store = VirtualClock(), MemoryStore()
    first = process(store, clock)
    first.settle(admitted(first), ANSWERED)
    flying = [admitted(first), admitted(first)]
    replica = replica_of(first)
    assert replica.alone
    assert not replica.flights
    second = process(store, clock)
    assert isinstance(second.try_admit(KEY), NotReady), "it has no state before the first one's next step"
    assert isinstance(first.try_admit(KEY), NotReady)
    assert not replica.alone
    assert sorted(replica.flights.values(), key=lambda each: each.order) == flying
    answer = second.try_admit(KEY)
    assert isinstance(answer, NotReady)
    assert answer.gate == "concurrency", "both slots that slow start has opened are taken by the first process"
    first.settle(flying[0], ANSWERED)
    own = admitted(second)
    assert len(replica_of(second).flights) == 2
    first.settle(flying[1], ANSWERED)
    second.settle(own, ANSWERED)
    first.settle(admitted(first), ANSWERED)
    assert not replica.flights


def test_counts_go_on_when_another_process_joins() -> None:
    clock, store = VirtualClock(), MemoryStore()
    first = process(store, clock)
    for _ in range(3):
        first.settle(admitted(first), ANSWERED)
    flying = admitted(first)
    second = process(store, clock)
    second.try_admit(KEY)
    # The first step with another member is that of an answer.
    first.settle(flying, ANSWERED)
    second.settle(admitted(second), ANSWERED)
    first.settle(admitted(first), ANSWERED)
    counts = first.snapshot().keys[KEY]
    assert (counts.attempts, counts.answered, counts.in_flight) == (5, 5, 0)
    tally = replica_of(first).controllers[""].tally
    assert (tally.attempts, tally.answered) == (6, 6)
    assert second.snapshot().keys[KEY].attempts == 1
