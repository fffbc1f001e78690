from __future__ import annotations

import pytest

from tidegate.core.pacer_phases import (
    ANNOUNCED_PATIENCE,
    KEPT_SHARE,
    MARGIN,
    PATIENCE_CALLS,
    PATIENCE_KNOWN,
    PATIENCE_SECONDS,
    PATIENCE_SHALLOW,
    cruise_seconds,
    shallow,
)
from tidegate.core.rate_meter import Burst, RateMeter

INFINITY = float("inf")


def measured(rate: float = 20.0, burst: float = 200.0) -> RateMeter:
    """A gauge that has just measured `rate`, of a bucket that holds `burst`."""
    gauge = RateMeter()
    gauge.note(Burst(int(burst), 0.0, INFINITY))
    gauge.measured(int(10 * rate), 10.0)
    return gauge


def test_the_same_rate_again_is_held_until_calls_have_paid_for_each_refusal() -> None:
    assert cruise_seconds(measured(), 20.0, 200, 1, INFINITY) == PATIENCE_CALLS / 20.0
    assert cruise_seconds(measured(), 20.0, 200, 2, INFINITY) == 2 * PATIENCE_CALLS / 20.0


def test_a_rate_that_has_changed_or_is_known_from_few_calls_is_soon_measured_again() -> None:
    assert cruise_seconds(measured(), 10.0, 200, 9, INFINITY) == PATIENCE_KNOWN
    assert cruise_seconds(measured(), 0.0, 200, 2, INFINITY) == PATIENCE_KNOWN
    assert cruise_seconds(measured(), 0.0, 200, 2, INFINITY, precise=True) > PATIENCE_KNOWN


def test_far_under_the_best_rate_it_is_soonest() -> None:
    gauge = measured()
    gauge.best = 40.0
    assert cruise_seconds(gauge, 20.0, 200, 9, INFINITY) == PATIENCE_SECONDS


def test_nothing_is_held_for_so_long_that_what_is_left_unused_would_run_over() -> None:
    gauge = measured(burst=20.0)
    unused = (1.0 - MARGIN) * 20.0 * cruise_seconds(gauge, 20.0, 200, 99, INFINITY)
    assert unused == pytest.approx(KEPT_SHARE * gauge.burst)


def test_where_a_bucket_keeps_nothing_a_rise_costs_one_refusal_whatever_it_cost_before() -> None:
    gauge = measured(burst=2.0)
    assert shallow(gauge)
    assert cruise_seconds(gauge, 20.0, 200, 5, INFINITY) == PATIENCE_SHALLOW / 20.0


@pytest.mark.parametrize(("rate", "burst", "expected"), [(2.0, 3.0, False), (2.0, 2.0, True), (20.0, 9.0, True)])
def test_a_bucket_is_shallow_that_holds_few_calls_or_little_time(rate: float, burst: float, expected: bool) -> None:
    assert shallow(measured(rate, burst)) is expected


def test_near_an_announced_rate_it_is_held_for_long() -> None:
    assert cruise_seconds(measured(), 10.0, 200, 1, 21.0) == ANNOUNCED_PATIENCE
    assert cruise_seconds(measured(), 10.0, 200, 1, 200.0) == PATIENCE_KNOWN
