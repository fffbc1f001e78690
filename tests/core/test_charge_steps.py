"""The charges of single calls are read off the answers, in whatever order they come."""

from __future__ import annotations

import pytest

from tidegate.core.charge_steps import MOST_STEPS, ChargeSteps, FoundLevel
from tidegate.core.values import INFINITY, ResetInstant

RATE = 10.0


def found(level: float, at: float = 0.0, rounding: float = 0.0, reset: float | None = None) -> FoundLevel:
    """Return the level that an answer states, and the instant of its reset, exact to a microsecond."""
    instant = None if reset is None else ResetInstant(reset, 1e-6, 0.0)
    return FoundLevel(level, rounding, 1000.0, at, instant)


def sent(steps: ChargeSteps, *charges: float) -> list[int]:
    """Send calls with these charges by the first rule, and twice as much by the second; return their numbers."""
    return [steps.sent((charge, 2.0 * charge), 0.0) for charge in charges]


def test_an_answer_that_comes_late_gives_a_step_to_each_side() -> None:
    steps = ChargeSteps(2)
    first, second, third = sent(steps, 100.0, 200.0, 300.0)
    steps.answered(third, found(400.0), RATE, 0.0, 0)
    steps.answered(first, found(900.0), RATE, 0.0, 0)
    steps.answered(second, found(700.0), RATE, 0.0, 0)
    assert [(step.fall, step.charged(0)) for step in steps.steps] == [(500.0, 500.0), (200.0, 200.0), (300.0, 300.0)]


def test_the_refill_between_two_calls_is_no_charge() -> None:
    steps = ChargeSteps(2)
    first, second = sent(steps, 100.0, 200.0)
    steps.answered(first, found(900.0, 1.0), RATE, 0.0, 0)
    steps.answered(second, found(720.0, 3.0), RATE, 0.0, 0)
    assert steps.steps[0].fall == pytest.approx(200.0)


def test_a_quota_that_may_have_been_full_meanwhile_gives_no_step() -> None:
    steps = ChargeSteps(2)
    first, second = sent(steps, 100.0, 200.0)
    steps.answered(first, found(900.0, 1.0)._replace(full_in=1.5), RATE, 0.0, 0)
    steps.answered(second, found(720.0, 3.0), RATE, 0.0, 0)
    assert not steps.steps


def test_the_instant_of_a_reset_tells_the_fall_where_the_level_is_rounded() -> None:
    steps = ChargeSteps(2)
    first, second = sent(steps, 100.0, 200.0)
    steps.answered(first, found(1000.0, 0.0, 1000.0, reset=50.0), RATE, 0.0, 0)
    steps.answered(second, found(1000.0, 0.3, 1000.0, reset=70.0), RATE, 0.0, 0)
    assert steps.steps[0].fall == pytest.approx(200.0)
    assert steps.steps[0].rounding == 1.0


def test_a_step_outweighs_the_rounding_of_the_level() -> None:
    steps = ChargeSteps(2)
    numbers = sent(steps, *[100.0] * 10)
    for count, number in enumerate(numbers):
        steps.answered(number, found(5000.0 - 100.0 * count, 0.0, 300.0), RATE, 0.0, 0)
    assert min(step.charged(0) for step in steps.steps) >= 600.0


def test_a_rate_that_is_hardly_known_makes_the_fall_unsure() -> None:
    steps = ChargeSteps(2)
    first, second = sent(steps, 100.0, 200.0)
    steps.answered(first, found(900.0, 1.0), RATE, 50.0, 0)
    steps.answered(second, found(720.0, 3.0), RATE, 50.0, 0)
    assert steps.steps[0].error(300.0) == 0.0, "the refill of two seconds is known to 100"
    assert steps.steps[0].error(400.0) > 0.0


def test_a_charge_at_the_end_of_an_answer_is_in_the_step_of_its_time() -> None:
    steps = ChargeSteps(2)
    (first,) = sent(steps, 100.0)
    steps.ended((0.0, -50.0))
    (second,) = sent(steps, 200.0)
    steps.answered(first, found(900.0), RATE, 0.0, 0)
    steps.answered(second, found(550.0), RATE, 0.0, 0)
    assert [steps.steps[0].charged(rule) for rule in (0, 1)] == [200.0, 350.0]
    assert [steps.steps[0].error(steps.steps[0].charged(rule)) > 0.0 for rule in (0, 1)] == [True, False]


def test_a_refused_call_is_charged_nothing() -> None:
    steps = ChargeSteps(2)
    first, second, third = sent(steps, 100.0, 200.0, 300.0)
    steps.refund(second)
    steps.answered(first, found(900.0), RATE, 0.0, 0)
    steps.answered(third, found(600.0), RATE, 0.0, 0)
    assert (steps.steps[0].fall, steps.steps[0].charged(0)) == (300.0, 300.0)


def test_a_charge_that_stands_for_several_calls_is_in_no_step() -> None:
    steps = ChargeSteps(2)
    first, _, third = (steps.sent((charge, charge), 0.0) for charge in (100.0, INFINITY, 300.0))
    steps.answered(first, found(900.0), RATE, 0.0, 0)
    steps.answered(third, found(600.0), RATE, 0.0, 0)
    assert not steps.steps


def test_calls_are_left_out_once_enough_steps_have_confirmed_what_is_known() -> None:
    steps = ChargeSteps(1)
    for count in range(MOST_STEPS):
        steps.rest()
        number = steps.sent((10.0,), 0.0)
        assert number, "a rest begins with enough steps only"
        steps.answered(number, found(5000.0 - 10.0 * count), RATE, 0.0, 0)
    number = steps.sent((10.0,), 0.0)
    steps.answered(number, found(1000.0), RATE, 0.0, 0)
    steps.rest()
    assert steps.sent((10.0,), 0.0) == 0
    steps.wake()
    assert steps.sent((10.0,), 0.0) > number
    assert not steps.steps
