from __future__ import annotations

import pytest

from tidegate.core.reset_schedule import ResetSchedule


@pytest.fixture
def unknown() -> ResetSchedule:
    """A minute by the provider's habit; nothing is known."""
    return ResetSchedule(60.0, declared=False)


def test_a_boundary_that_was_told_is_the_next_one(unknown: ResetSchedule) -> None:
    unknown.lies(9.0, 10.0, told=True)
    assert (unknown.low, unknown.high, unknown.certain, unknown.known) == (9.0, 10.0, True, False)


def test_a_boundary_that_was_seen_is_one_period_from_the_next(unknown: ResetSchedule) -> None:
    unknown.lies(9.0, 10.0, told=False)
    assert (unknown.low, unknown.high, unknown.certain) == (69.0, 70.0, False)


def test_signs_of_one_boundary_are_intersected(unknown: ResetSchedule) -> None:
    unknown.lies(9.0, 10.0, told=True)
    unknown.lies(9.5, 10.5, told=True)
    assert (unknown.low, unknown.high) == (9.5, 10.0)


def test_where_they_contradict_the_newer_holds(unknown: ResetSchedule) -> None:
    unknown.lies(9.0, 9.1, told=True)
    unknown.lies(9.2, 9.3, told=True)
    assert (unknown.low, unknown.high) == (9.2, 9.3)


def test_what_follows_a_boundary_that_was_passed_is_not_certain_while_the_period_is_not_known(
    unknown: ResetSchedule,
) -> None:
    unknown.lies(9.0, 10.0, told=True)
    assert unknown.passed(9.5) is None
    assert unknown.passed(10.0) == (9.0, 10.0)
    assert (unknown.high, unknown.certain) == (70.0, False)


def test_two_signs_a_natural_window_apart_give_the_period(unknown: ResetSchedule) -> None:
    unknown.lies(9.9, 10.0, told=True)
    unknown.lies(19.95, 20.0, told=True)
    assert (unknown.period, unknown.known) == (10.0, True)


def test_an_unnatural_distance_must_be_measured_twice(unknown: ResetSchedule) -> None:
    unknown.lies(2.49, 2.5, told=True)
    unknown.lies(8.49, 8.5, told=True)
    assert (unknown.period, unknown.known) == (pytest.approx(6.0), False)
    unknown.lies(14.49, 14.5, told=True)
    assert unknown.known


def test_a_declared_period_stays_whatever_is_seen() -> None:
    declared = ResetSchedule(60.0, declared=True)
    declared.lies(9.9, 10.0, told=True)
    declared.lies(19.9, 20.0, told=True)
    assert (declared.period, declared.high) == (60.0, 20.0)


def test_a_sign_narrows_the_boundaries_that_follow() -> None:
    declared = ResetSchedule(60.0, declared=True)
    declared.lies(9.0, 10.0, told=True)
    declared.lies(69.5, 70.5, told=True)
    assert (declared.low, declared.high) == (69.5, 70.0)


def test_boundaries_that_nobody_saw_are_passed_all_at_once() -> None:
    declared = ResetSchedule(60.0, declared=True)
    declared.lies(9.0, 10.0, told=True)
    assert declared.passed(200.0) == (189.0, 190.0)
    assert declared.high == 250.0
