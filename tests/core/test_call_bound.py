"""The bound of the calls in flight of a key rises while the key admits more, up to the client's pool."""

from __future__ import annotations

import pytest

import tidegate
from tidegate.admission import key_table
from tidegate.admission.process import FreeResources
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.concurrency_limit import FIRST_IN_FLIGHT_BOUND, MAX_IN_FLIGHT_BOUND, CallBound, ConcurrencyLimit
from tidegate.core.limiter_state import Permit
from tidegate.core.values import OK, Outcome

KEY = tidegate.Key("p", "https://p.test")


def test_a_configured_bound_never_rises() -> None:
    bound = CallBound(30)
    assert (bound.highest, bound.may_rise) == (30, False)
    bound.pool = 10
    assert bound.highest == 10


def test_a_bound_rises_as_far_as_the_machine_and_the_pool_carry() -> None:
    bound = CallBound(None)
    assert (bound.highest, bound.may_rise) == (FIRST_IN_FLIGHT_BOUND, True)
    bound.rise(1500)
    assert bound.highest == 1500
    bound.rise(700)
    assert bound.highest == 1500
    bound.pool = 1500
    assert not bound.may_rise
    bound.pool = None
    for _ in range(20):
        bound.rise(10**9)
    assert (bound.highest, bound.may_rise) == (MAX_IN_FLIGHT_BOUND, False)


def test_a_limit_that_was_held_back_grows_on() -> None:
    limit = ConcurrencyLimit(4)
    limit.filled(4, 0.0)
    assert limit.opens_at(1.0) == float("inf")
    limit.limit_to(8)
    limit.filled(4, 1.0)
    assert limit.opens_at(1.0) < 2.0
    limit.limit_to(2)
    assert limit.limit == 2


@pytest.mark.constants(START_CONCURRENCY=1000)
@pytest.mark.parametrize(
    ("configured", "free", "highest"), [(None, 10**6, 2000), (None, 100, 1099), (1000, 10**6, 1000)]
)
def test_a_key_that_admits_all_of_its_bound_gets_a_higher_one(
    monkeypatch: pytest.MonkeyPatch, configured: int | None, free: int, highest: int
) -> None:
    unlocked: list[bool] = []

    def measure() -> FreeResources:
        unlocked.append(not registry._stepping)
        return FreeResources(None, free + 64)

    monkeypatch.setattr(key_table, "measure", measure)
    now = [0.0]
    settings = tidegate.Settings(max_concurrency=configured)
    registry = RateLimitRegistry(settings, clock=lambda: now[0])
    permits = [registry.try_admit(KEY) for _ in range(1000)]
    assert all(permits)
    now[0] = 2.0
    for permit in permits[:5]:
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(OK))
    (queue,) = registry._queues.values()
    assert queue.admission.concurrency.highest == highest
    assert unlocked == ([] if configured else [True]), "measured once a second, with the lock free"
