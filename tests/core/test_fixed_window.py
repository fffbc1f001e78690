from __future__ import annotations

import pytest

from tests.core.values import fixed
from tidegate.core.fixed_window import FixedWindowMirror
from tidegate.core.quota_base import RETURN_GUARD_SECONDS
from tidegate.core.reset_schedule import ResetSchedule
from tidegate.core.values import QuotaReading


def observe(
    mirror: FixedWindowMirror, order: int, sent_at: float, now: float | None = None, **facts: float | None
) -> None:
    given = {"limit": 10.0, "remaining": 10.0, "window": 60.0, **facts}
    mirror.observe(fixed(given.pop("limit"), **given), order, sent_at, sent_at if now is None else now, None)


def spend(mirror: FixedWindowMirror, count: int, now: float, first: int = 1) -> None:
    for order in range(first, first + count):
        mirror.debit(1.0, 0.0, order, now)


@pytest.fixture
def mirror() -> FixedWindowMirror:
    """10 a minute, boundary unknown."""
    return FixedWindowMirror(fixed(10.0), 0.0)


@pytest.fixture
def bounded(mirror: FixedWindowMirror) -> FixedWindowMirror:
    """10 a minute, next boundary at instant 40; 4 left."""
    observe(mirror, 1, 0.0, remaining=4.0, reset_after=40.0)
    return mirror


def test_it_starts_full_and_does_not_refill_meanwhile(mirror: FixedWindowMirror) -> None:
    spend(mirror, 3, 0.0)
    assert [mirror.level(now) for now in (0.0, 30.0, 1000.0)] == [7.0, 7.0, 7.0]


def test_everything_is_back_after_the_boundary(bounded: FixedWindowMirror) -> None:
    assert [bounded.level(now) for now in (39.9, 40.0, 99.0)] == [4.0, 10.0, 10.0]


def test_an_amount_that_does_not_fit_waits_for_the_boundary(bounded: FixedWindowMirror) -> None:
    assert bounded.ready_at(4.0, 0.0, 5.0) == 5.0
    assert bounded.ready_at(5.0, 0.0, 5.0) == 40.0 + RETURN_GUARD_SECONDS


def test_an_amount_above_the_limit_goes_alone_into_a_fresh_window(bounded: FixedWindowMirror) -> None:
    assert bounded.ready_at(500.0, 0.0, 5.0) == 40.0 + RETURN_GUARD_SECONDS
    assert bounded.ready_at(500.0, 0.0, 41.0) == 41.0


def test_an_answer_of_the_last_window_says_nothing_of_this_one(bounded: FixedWindowMirror) -> None:
    assert bounded.level(41.0) == 10.0
    observe(bounded, 2, 39.0, now=42.0, remaining=0.0)
    assert bounded.level(42.0) == 10.0


def test_two_boundaries_give_the_period() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0)
    mirror.on_refused(0.1, 0.1, 2.4)
    assert mirror.ready_at(1.0, 0.0, 0.2) == 2.5 + RETURN_GUARD_SECONDS
    spend(mirror, 10, 2.6)
    assert mirror.ready_at(1.0, 0.0, 2.7) == 2.7, "whether the next one is a minute away nobody knows: one tries"
    mirror.on_refused(2.7, 2.7, 9.8)
    assert mirror.window == 10.0
    spend(mirror, 10, 12.6, first=12)
    assert mirror.ready_at(1.0, 0.0, 12.7) == 22.5 + RETURN_GUARD_SECONDS


def spent_by(mirror: FixedWindowMirror, until: float, now: float) -> float:
    """Spends one by one, as soon as each may go; returns how many by `until`."""
    count = 0
    while (now := mirror.ready_at(1.0, 0.0, now)) < until:
        mirror.debit(1.0, 0.0, 1000 + count, now)
        count += 1
    return count


def test_care_lets_the_whole_limit_out_within_a_window_however_late_refusals_come() -> None:
    """A refusal that took a second to come back once left one request a second for ever."""
    mirror = FixedWindowMirror(
        QuotaReading("requests-1s", "requests", "fixed", 50.0, 0.0, None, 1.0), 0.0, supposed=True
    )
    mirror.on_refused(0.0, 1.2, 0.5)
    assert spent_by(mirror, 2.72, 1.72) >= 50


def test_where_little_is_back_after_a_boundary_the_quota_refills_continuously() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0, supposed=True)
    mirror.on_refused(0.1, 0.1, 0.4)
    mirror.debit(1.0, 0.0, 2, 0.6)
    mirror.on_refused(0.62, 0.62, 0.4)
    assert mirror.turned == "continuous"


def test_a_limit_that_changed_is_taken_over(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, limit=20.0, remaining=15.0)
    assert (mirror.limit, mirror.level(0.0)) == (20.0, 15.0)


@pytest.mark.parametrize("window", [0.0, -5.0, 1e12])
def test_an_unusable_window_is_not_believed(window: float) -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=window), 0.0)
    observe(mirror, 1, 0.0, remaining=0.0, reset_after=1.0, window=window)
    assert mirror.window == 60.0
    assert mirror.level(2.0) == 10.0


@pytest.mark.parametrize("absurd", [1e300, 1e308, float("inf"), float("-inf")])
def test_boundary_beyond_all_numbers_teaches_nothing_and_breaks_nothing(absurd: float) -> None:
    schedule = ResetSchedule(60.0, declared=True)
    for _ in range(2):
        schedule.lies(absurd, absurd, told=True)
        schedule.passed(1.0)
    schedule.lies(99.0, 101.0, told=True)
    assert (schedule.low, schedule.high) == (99.0, 101.0)
