from __future__ import annotations

import pytest

from tidegate.core.pacer_phases import (
    PATIENCE_CALLS,
    PATIENCE_KNOWN,
    PATIENCE_SECONDS,
    PATIENCE_SHALLOW,
    cruise_seconds,
    shallow,
)
from tidegate.core.rate_meter import Burst, RateMeter


def measured(rate: float = 20.0, burst: float = 200.0) -> RateMeter:
    """A gauge that has just measured `rate`, of a bucket that holds `burst`."""
    gauge = RateMeter()
    gauge.note(Burst(int(burst), 0.0))
    gauge.measured(int(10 * rate), 10.0)
    return gauge


def test_the_same_rate_again_is_held_until_calls_have_paid_for_each_refusal() -> None:
    assert cruise_seconds(measured(), 20.0, 200, 1) == PATIENCE_CALLS / 20.0
    assert cruise_seconds(measured(), 20.0, 200, 2) == 2 * PATIENCE_CALLS / 20.0


def test_a_rate_that_has_changed_or_is_known_from_few_calls_is_soon_measured_again() -> None:
    assert cruise_seconds(measured(), 10.0, 200, 9) == PATIENCE_KNOWN
    assert cruise_seconds(measured(), 0.0, 200, 2) == PATIENCE_KNOWN
    assert cruise_seconds(measured(), 0.0, 200, 2, precise=True) > PATIENCE_KNOWN


def test_far_under_the_best_rate_it_is_soonest() -> None:
    gauge = measured()
    gauge.best = 40.0
    assert cruise_seconds(gauge, 20.0, 200, 9) == PATIENCE_SECONDS


def test_where_a_bucket_keeps_nothing_a_rise_costs_one_refusal_whatever_it_cost_before() -> None:
    gauge = measured(burst=2.0)
    assert shallow(gauge)
    assert cruise_seconds(gauge, 20.0, 200, 5) == PATIENCE_SHALLOW / 20.0


@pytest.mark.parametrize(("rate", "burst", "expected"), [(2.0, 3.0, False), (2.0, 2.0, True), (20.0, 9.0, True)])
def test_a_bucket_is_shallow_that_holds_few_calls_or_little_time(rate: float, burst: float, expected: bool) -> None:
    assert shallow(measured(rate, burst)) is expected
