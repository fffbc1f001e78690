from __future__ import annotations

import pytest

from tidegate.core.rate_meter import PacingBucket


@pytest.fixture
def spacing() -> PacingBucket:
    """Ten calls a second, nothing ready at 0."""
    spacing = PacingBucket()
    spacing.grace = 0.03
    spacing.set_rate(10.0, 0.0)
    spacing.ready(0.0, 0.0)
    return spacing


def test_calls_go_one_after_the_other(spacing: PacingBucket) -> None:
    instants, now = [], 0.0
    for _ in range(4):
        now = spacing.opens_at(now)
        spacing.sent(100.0, now)
        instants.append(now)
    assert instants == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_what_a_late_event_loop_missed_is_caught_up(spacing: PacingBucket) -> None:
    for _ in range(5):
        assert spacing.opens_at(0.55) == 0.55
        assert spacing.sent(100.0, 0.55, 0.55) == (False, 0.0)
    assert spacing.opens_at(0.55) == pytest.approx(0.6)


def test_no_more_is_caught_up_than_the_bucket_of_the_provider_keeps(spacing: PacingBucket) -> None:
    for _ in range(2):
        assert spacing.opens_at(0.55) == 0.55
        spacing.sent(2.0, 0.55, 0.55)
    assert spacing.opens_at(0.55) == pytest.approx(0.65)


def test_where_the_bucket_keeps_nothing_nothing_is_caught_up(spacing: PacingBucket) -> None:
    spacing.sent(1.0, 0.15)
    assert spacing.opens_at(0.15) == pytest.approx(0.25)


def test_a_pace_that_was_left_unused_is_saved_as_far_as_the_bucket_of_the_provider_keeps_it(
    spacing: PacingBucket,
) -> None:
    assert spacing.sent(3.0, 0.1) == (False, 0.0)
    assert spacing.sent(3.0, 3600.0) == (False, pytest.approx(3599.8))
    for _ in range(2):
        assert spacing.opens_at(3600.0) == 3600.0
        spacing.sent(3.0, 3600.0)
    assert spacing.opens_at(3600.0) == pytest.approx(3600.1)


def test_a_refusal_leaves_nothing(spacing: PacingBucket) -> None:
    spacing.emptied(5.0)
    assert spacing.opens_at(5.0) == pytest.approx(5.1)


def test_after_a_wait_one_goes_alone_until_it_must_have_been_let_in(spacing: PacingBucket) -> None:
    spacing.set_rate(1000.0, 5.0)
    spacing.emptied(5.0)
    spacing.wait_alone(0.5)
    assert spacing.opens_at(5.0) == pytest.approx(5.5)
    assert spacing.sent(100.0, 5.5) == (True, False)
    assert spacing.alone(5.51)
    assert spacing.opens_at(5.5) >= 5.53
    assert not spacing.proven(5.52)
    assert spacing.proven(5.54)
    assert not spacing.alone(5.54)


def test_a_refusal_of_the_lone_one_ends_its_judgement(spacing: PacingBucket) -> None:
    spacing.wait_alone(0.5)
    spacing.sent(100.0, 0.5)
    spacing.emptied(0.51)
    assert not spacing.alone(0.515)


def test_waits_are_counted_until_it_goes_on(spacing: PacingBucket) -> None:
    spacing.wait_alone(0.5)
    spacing.wait_alone(0.8)
    assert (spacing.waits, spacing.wait) == (2, 0.8)
    spacing.reset_backoff()
    assert (spacing.waits, spacing.wait) == (0, 0.0)


def test_holding_off_never_shortens_a_wait(spacing: PacingBucket) -> None:
    spacing.wait_alone(2.0)
    spacing.hold_off(0.5)
    assert spacing.opens_at(0.0) == pytest.approx(2.0)
    spacing.hold_off(3.0)
    assert spacing.opens_at(0.0) == pytest.approx(3.0)


def test_a_pause_saves_what_comes_back_at_the_measured_rate(spacing: PacingBucket) -> None:
    """The pace may be on trial: then it says nothing of what the provider has after the pause."""
    spacing.emptied(5.0)
    spacing.paused(2.0, 2.0)
    instants = []
    for _ in range(5):
        instants.append(max(7.0, spacing.opens_at(7.0)))
        spacing.sent(100.0, instants[-1], 2.0)
    assert instants == pytest.approx([7.0, 7.0, 7.0, 7.0, 7.1])


def test_a_pause_at_an_unknown_rate_saves_one_call(spacing: PacingBucket) -> None:
    spacing.emptied(5.0)
    spacing.paused(2.0, 0.0)
    assert spacing.opens_at(5.0) == pytest.approx(7.0)
    spacing.sent(100.0, 7.0, 2.0)
    assert spacing.opens_at(7.0) == pytest.approx(7.1)


def test_a_slower_pace_does_not_stretch_a_wait(spacing: PacingBucket) -> None:
    """A wait of many calls at a fast pace is the same wait at a slow one."""
    spacing.set_rate(100.0, 0.0)
    spacing.ready(-59.0, 0.0)
    assert spacing.opens_at(0.0) == pytest.approx(0.6)
    spacing.set_rate(1.0, 0.1)
    assert spacing.opens_at(0.1) <= 0.6 + 1.0


def test_a_faster_pace_does_not_shorten_a_wait(spacing: PacingBucket) -> None:
    spacing.wait_alone(0.5)
    spacing.set_rate(1000.0, 0.0)
    assert spacing.opens_at(0.0) >= 0.4


def test_what_came_back_at_the_former_pace_stays(spacing: PacingBucket) -> None:
    spacing.set_rate(1.0, 0.05)
    assert spacing.opens_at(0.05) == pytest.approx(0.55)
