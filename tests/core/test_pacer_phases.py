"""The rooms of the pacer that hold a step each: seek, rise, climb, aftermath, waits."""

from __future__ import annotations

import pytest

from tidegate.core.pacer_phases import (
    AFTERMATH_FIRST,
    AFTERMATH_MOST,
    AFTERMATH_SHARE,
    CLIMB_WAIT,
    FIRST_WAIT_MOST,
    FIRST_WAIT_SHARE,
    OUTAGE_SECONDS,
    PATIENCE_SECONDS,
    RISE_MOST,
    SEEK_STEP,
    SLOWEST,
    STEP,
    STEP_MOST,
    STEP_SECONDS,
    DrainDelay,
    ProbeUpPhase,
    StartupPhase,
    first_wait,
    next_wait,
)
from tidegate.core.rate_meter import Burst, PacingBucket
from tidegate.core.values import Cause

INFINITY = float("inf")


def test_a_sought_pace_grows_while_it_is_not_far_ahead_of_what_was_let_in() -> None:
    seek = StartupPhase()
    seek.begin(0.0)
    assert seek.step(10.0, 9.0, 0.5) == SEEK_STEP * 10.0
    assert seek.step(15.0, 9.0, 0.6) == 15.0


def test_a_pace_that_is_far_ahead_grows_when_it_has_held_for_a_while() -> None:
    seek = StartupPhase()
    seek.begin(0.0)
    assert seek.step(10.0, 1.0, 0.9 * PATIENCE_SECONDS) == 10.0
    assert seek.step(10.0, 1.0, PATIENCE_SECONDS) == SEEK_STEP * 10.0


def test_a_refusal_of_a_sought_pace_halves_it_at_most() -> None:
    seek = StartupPhase()
    assert seek.back(10.0, 0, 100.0) == 5.0
    assert seek.back(10.0, 3, 0.5) == 7.0
    assert seek.back(10.0, 3, 0.1) == 10.0


def test_each_step_of_a_rise_is_the_square_of_the_one_before_up_to_double() -> None:
    rise = ProbeUpPhase()
    rise.prepare(100.0, 1000.0)
    assert rise.step(100.0) == (STEP_MOST * 100.0, STEP_SECONDS)
    rise.prepare(1000.0, 1000.0)
    first, _ = rise.step(1000.0)
    second, _ = rise.step(first)
    assert (first, second) == (STEP * 1000.0, STEP * STEP * first)


def test_beyond_twice_the_best_a_step_has_to_hold_for_long() -> None:
    rise = ProbeUpPhase()
    rise.prepare(10.0, 10.0)
    pace, seconds = 10.0, STEP_SECONDS
    while seconds == STEP_SECONDS:
        pace, seconds = rise.step(pace)
    assert (pace, seconds) == (RISE_MOST * 10.0, PATIENCE_SECONDS)
    assert rise.step(pace) == (RISE_MOST * pace, PATIENCE_SECONDS)


def test_an_aftermath_is_first_guessed_and_then_known_and_then_forgotten() -> None:
    aftermath = DrainDelay()
    assert aftermath.seconds(10.0, 10.0) == AFTERMATH_SHARE
    assert aftermath.seconds(1000.0, 10.0) == AFTERMATH_FIRST
    aftermath.drained(5.0)
    aftermath.refused(0.1, 5.4)
    assert aftermath.seconds(1000.0, 10.0) == pytest.approx(0.5)
    assert aftermath.seconds(1000.0, 10.0) == pytest.approx(0.35)


def test_a_refusal_long_after_is_of_no_aftermath() -> None:
    aftermath = DrainDelay()
    aftermath.drained(5.0)
    aftermath.refused(0.1, 5.0 + AFTERMATH_MOST)
    assert aftermath.seconds(10.0, 10.0) == AFTERMATH_SHARE


@pytest.mark.parametrize(
    ("cause", "seconds", "expected"),
    [
        (Cause.RATE, 0.5, FIRST_WAIT_SHARE * 0.5),
        (Cause.RATE, 60.0, FIRST_WAIT_MOST),
        (Cause.RATE, 0.0, 0.03),
        (Cause.OVERLOAD, 60.0, OUTAGE_SECONDS),
        (Cause.SLOPE, 60.0, CLIMB_WAIT),
    ],
)
def test_the_first_wait_is_in_proportion_to_what_went_before(cause: Cause, seconds: float, expected: float) -> None:
    assert first_wait(Burst(10, seconds), cause, 0.03) == expected


def test_no_wait_is_longer_than_the_slowest_pace() -> None:
    spacing = PacingBucket()
    spacing.set_rate(10.0, 0.0)
    for cause in (Cause.RATE, Cause.OVERLOAD, Cause.SLOPE):
        for _ in range(200):
            spacing.wait_alone(next_wait(spacing, cause))
        assert spacing.wait <= 1.0 / SLOWEST
        spacing.reset_backoff()
