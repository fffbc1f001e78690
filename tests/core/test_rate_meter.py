from __future__ import annotations

import pytest

from tidegate.core.rate_meter import BEST_FADES, Burst, RateMeter

INFINITY = float("inf")


def sent(gauge: RateMeter, count: int) -> int:
    """So many calls go out; returns the mark of the next one."""
    gauge.sent += count
    return gauge.sent


@pytest.fixture
def gauge() -> RateMeter:
    """Began at 10, when the hidden quota was empty."""
    gauge = RateMeter()
    gauge.begin(10.0)
    return gauge


def test_what_was_sent_before_a_refused_attempt_was_let_in_but_for_what_was_refused(gauge: RateMeter) -> None:
    marks = [sent(gauge, 5), sent(gauge, 1), sent(gauge, 1)]
    assert [gauge.refused(mark) for mark in marks] == [5, 5, 5]
    assert gauge.refused(sent(gauge, 4)) == 8


def test_calls_and_seconds_are_counted_from_the_zero(gauge: RateMeter) -> None:
    let_in = gauge.refused(sent(gauge, 20))
    assert gauge.since_zero(let_in, 12.0) == (20, 2.0)
    gauge.zero(let_in, 12.0)
    assert gauge.since_zero(gauge.refused(sent(gauge, 7)), 13.0) == (6, 1.0)


def test_the_pace_is_what_was_let_in_since_the_zero_as_far_as_it_is_known(gauge: RateMeter) -> None:
    assert gauge.pace(10.0) == 0.0
    gauge.sent += 6
    assert gauge.pace(12.0) == 3.0
    gauge.refused(gauge.sent)
    assert gauge.pace(12.0) == 2.5


def test_stated_instants_bound_the_rate_closely_after_a_few_calls() -> None:
    gauge = RateMeter()
    gauge.burst = 10.0
    gauge.stated = (10.9, 11.0)
    gauge.begin(10.0)
    for at in (11.0, 13.0, 15.0):
        gauge.went(at)
    gauge.stated = (16.9, 17.0)
    mark = gauge.sent
    gauge.refused(mark)
    low, high = gauge.bounds(mark, 16.0)
    # Three calls came back in 5.9 to 6.1 seconds.
    assert low >= 3.0 / 6.1
    assert high == pytest.approx(3.0 / 5.9)
    gauge.stated = None
    low, high = gauge.bounds(mark, 16.0)
    assert high > 0.6


def test_a_stated_wait_bounds_the_rate_though_no_call_came_back(gauge: RateMeter) -> None:
    gauge.stated = (12.0, 13.0)
    gauge.refused(sent(gauge, 0))
    assert gauge.bounds(gauge.sent, 10.5)[1] <= 1.0 / (12.0 - 10.5)


def test_it_can_begin_anew_in_the_middle(gauge: RateMeter) -> None:
    gauge.refused(sent(gauge, 20))
    gauge.begin(50.0)
    assert gauge.since_zero(gauge.refused(sent(gauge, 3)), 51.0) == (3, 1.0)


def test_it_knows_whether_anything_was_let_in_since_the_last_refusal(gauge: RateMeter) -> None:
    assert gauge.nothing_new(gauge.refused(sent(gauge, 0)))
    let_in = gauge.refused(sent(gauge, 3))
    assert not gauge.nothing_new(let_in)
    assert gauge.nothing_new(let_in)


def test_a_measurement_is_paid_by_the_refusals_before_it(gauge: RateMeter) -> None:
    for _ in range(3):
        gauge.refused(sent(gauge, 2))
    assert gauge.price == 3
    gauge.measured(20, 2.0)
    assert (gauge.rate, gauge.last, gauge.price) == (10.0, (20, 2.0), 0)


def test_the_best_rate_is_forgotten_slowly(gauge: RateMeter) -> None:
    gauge.measured(20, 1.0)
    gauge.measured(5, 1.0)
    assert gauge.best == pytest.approx(20.0 * BEST_FADES)
    for _ in range(30):
        gauge.measured(5, 1.0)
    assert gauge.best == 5.0


def test_the_bucket_held_what_was_let_in_at_first_but_for_what_came_back(gauge: RateMeter) -> None:
    gauge.note(Burst(60, 2.0))
    gauge.note(Burst(1000, 3.0))
    gauge.measured(20, 2.0)
    assert gauge.burst == 40.0
    assert gauge.deep(10.0)
    assert not gauge.deep(20.0)


def test_a_bucket_holds_one_call_at_least(gauge: RateMeter) -> None:
    gauge.note(Burst(5, 10.0))
    gauge.measured(20, 2.0)
    assert gauge.burst == 1.0


def went(gauge: RateMeter, *instants: float) -> int:
    """Sends at these instants; returns the mark of the next one."""
    for at in instants:
        gauge.went(at)
    return gauge.sent


def test_the_rate_lies_between_the_bounds_where_the_bucket_ran_over(gauge: RateMeter) -> None:
    gauge.note(Burst(4, 0.0))
    mark = went(gauge, *(20.0 + 0.05 * number for number in range(9)))
    least, highest = gauge.bounds(mark, 20.45)
    assert least <= 13.0 <= highest
    assert highest < 20.0


def test_without_a_known_content_the_calls_since_the_zero_decide(gauge: RateMeter) -> None:
    gauge.note(Burst(1, 0.0), 10.0, alone=True)
    assert not gauge.informed
    assert gauge.bounds(went(gauge, 11.0, 12.0, 13.0), 14.0) == (pytest.approx(2.0 / 3.0), 1.0)


def test_bounds_are_narrowed_until_a_change_replaces_them(gauge: RateMeter) -> None:
    gauge.believe(8.0, 12.0)
    gauge.believe(9.0, 15.0)
    assert (gauge.low, gauge.high) == (9.0, 12.0)
    gauge.believe(2.0, 3.0)
    assert (gauge.low, gauge.high) == (2.0, 3.0)


def test_calls_that_no_rate_explains_show_nothing_of_the_bucket(gauge: RateMeter) -> None:
    """Five calls came back within 10 ms, and none in the ten seconds after them: no bucket of any content does that."""
    gauge.note(Burst(4, 0.0))
    gauge.bounds(went(gauge, 20.0, 20.001, 20.002, 20.003, 20.01), 30.0)
    gauge.zero(5, 20.0)
    least, highest = gauge.bounds(went(gauge, 20.001, 20.002, 20.003, 20.004), 30.0)
    assert least <= highest
    assert not gauge.informed
    assert gauge.content == 4.0
