"""The rest of a run is foretold by its keys' limits, from the moment that they are known."""

from __future__ import annotations

import pytest

import tidegate
from tests.core.values import KEY, answer, bucket
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Cost, Key
from tidegate.experiments.engine.forecast import RestForecast
from tidegate.testing import VirtualClock

OTHER = Key("provider", "https://provider.test", "0123456789abcdef", "judge")


@pytest.fixture
def registry() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(telemetry=False), clock=VirtualClock(), draw=lambda: 0.5)


def limited(registry: RateLimitRegistry, key: Key = KEY, limit: float = 120.0, calls: int = 1) -> None:
    """The key has answered so many calls at once, and its quota is used up."""
    for _ in range(calls):
        permit = registry.try_admit(key)
        assert permit
        registry.settle(permit, answer(bucket(limit, 50.0)))
    permit = registry.try_admit(key)
    assert permit
    registry.settle(permit, answer(bucket(limit, 0.0)))


def test_rest_takes_as_long_as_the_quota_and_not_as_the_burst_before_it(registry: RateLimitRegistry) -> None:
    limited(registry)
    rest = RestForecast(registry).rest([(KEY, Cost(), 130, 230)]).seconds
    assert rest == pytest.approx(115.0, abs=0.5)


def test_stages_of_one_key_add_up_and_those_of_several_go_on_together(registry: RateLimitRegistry) -> None:
    limited(registry)
    limited(registry, OTHER, 60.0)
    forecast = RestForecast(registry)
    both = [(KEY, Cost(), 0, 60), (KEY, Cost(), 0, 60)]
    assert forecast.rest(both).seconds == pytest.approx(60.0, abs=0.5)
    assert forecast.rest([*both, (OTHER, Cost(), 0, 90)]).seconds == pytest.approx(90.0, abs=0.5)


def test_items_of_several_calls_take_as_many_times_as_long(registry: RateLimitRegistry) -> None:
    limited(registry)
    forecast = RestForecast(registry)
    assert forecast.rest([(KEY, Cost(), 5, 60)]).seconds == pytest.approx(30.0, abs=0.5)
    registry._queues[KEY].admission.counts.answered += 30
    assert forecast.rest([(KEY, Cost(), 15, 60)]).seconds == pytest.approx(90.0, abs=0.5)


def test_unknown_key_foretells_nothing_unless_its_stage_is_done(registry: RateLimitRegistry) -> None:
    limited(registry)
    forecast = RestForecast(registry)
    assert forecast.rest([(KEY, Cost(), 0, 9), (None, None, 0, 1)]).seconds is None
    assert forecast.rest([(OTHER, Cost(), 0, 9)]).seconds is None
    assert forecast.rest([(None, None, 9, 0)]).seconds == 0.0
