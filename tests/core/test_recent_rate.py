"""The rate of late: burst, steady work, and a pause, in virtual time."""

from __future__ import annotations

import pytest

from tidegate.core.wait_text import RecentRate


def noted(done: dict[float, int]) -> RecentRate:
    rate = RecentRate()
    for now, number in done.items():
        rate.note(number, now)
    return rate


def test_an_opening_burst_is_forgotten_within_seconds() -> None:
    rate = RecentRate()
    for quarter in range(13):
        now = quarter / 4
        rate.note(60 + min(10, 40 * quarter) + int(2 * now), now)
    assert rate.seconds(160) == pytest.approx(80.0, rel=0.2)


def test_a_change_of_speed_shows_within_a_minute() -> None:
    rate = noted({float(now): 10 * min(now, 100) + max(0, now - 100) for now in range(161)})
    assert rate.seconds(40) == pytest.approx(40.0)


def test_rare_results_are_told_by_all_of_them() -> None:
    assert noted({0.0: 0, 5.0: 1, 11.0: 1}).seconds(2) == pytest.approx(22.0)


def test_without_results_there_is_no_rate() -> None:
    assert noted({}).seconds(3) is None
    assert noted({0.0: 5}).seconds(3) is None
    assert noted({0.0: 5, 100.0: 5}).seconds(3) is None
