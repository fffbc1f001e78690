from __future__ import annotations

import pytest

from tests.core.values import fixed
from tidegate.core.fixed_window import (
    BOUNDARY_GUARD,
    PROBE_FIRST,
    PROBE_LAST,
    STEP_FIRST,
    FixedWindowMirror,
    ResetSchedule,
)
from tidegate.core.values import QuotaReading, ResetInstant


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


def test_it_tells_whether_it_can_pace(mirror: FixedWindowMirror, bounded: FixedWindowMirror) -> None:
    assert FixedWindowMirror(fixed(10.0), 0.0).is_predictable is False
    assert bounded.is_predictable is True


def test_everything_is_back_after_the_boundary(bounded: FixedWindowMirror) -> None:
    assert [bounded.level(now) for now in (39.9, 40.0, 99.0)] == [4.0, 10.0, 10.0]


def test_boundaries_come_back_every_window(bounded: FixedWindowMirror) -> None:
    spend(bounded, 10, 50.0, first=2)
    assert bounded.ready_at(1.0, 0.0, 50.0) == 100.0 + BOUNDARY_GUARD
    assert bounded.level(100.0) == 10.0
    spend(bounded, 10, 100.5, first=12)
    assert bounded.ready_at(1.0, 0.0, 100.5) == 160.0 + BOUNDARY_GUARD


def test_boundaries_that_nobody_saw_are_passed_all_at_once(bounded: FixedWindowMirror) -> None:
    assert bounded.level(1000.0) == 10.0
    spend(bounded, 10, 1000.0, first=2)
    assert bounded.ready_at(1.0, 0.0, 1000.0) == pytest.approx(1000.0 + BOUNDARY_GUARD, abs=60.0)


def test_an_amount_that_does_not_fit_waits_for_the_boundary(bounded: FixedWindowMirror) -> None:
    assert bounded.ready_at(4.0, 0.0, 5.0) == 5.0
    assert bounded.ready_at(5.0, 0.0, 5.0) == 40.0 + BOUNDARY_GUARD


def test_nothing_always_fits(bounded: FixedWindowMirror) -> None:
    assert bounded.ready_at(0.0, 0.0, 5.0) == 5.0


def test_an_amount_above_the_limit_goes_alone_into_a_fresh_window(bounded: FixedWindowMirror) -> None:
    assert bounded.ready_at(500.0, 0.0, 5.0) == 40.0 + BOUNDARY_GUARD
    assert bounded.ready_at(500.0, 0.0, 41.0) == 41.0


def test_each_hint_narrows_the_boundary_and_a_trial_goes_to_its_middle(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, now=4.0, remaining=0.0, reset_after=40.0)
    assert mirror.ready_at(1.0, 0.0, 4.0) == 42.0
    observe(mirror, 2, 10.0, now=11.0, remaining=0.0, reset_after=30.0)
    assert mirror.ready_at(1.0, 0.0, 11.0) == 40.5


def tried(mirror: FixedWindowMirror) -> None:
    """Send a trial in the middle of the interval from 40 s to 44 s."""
    observe(mirror, 1, 0.0, now=4.0, remaining=0.0, reset_after=40.0)
    mirror.debit(1.0, 0.0, 2, 42.0)


def test_a_trial_without_an_answer_opens_the_window_for_a_few_calls(mirror: FixedWindowMirror) -> None:
    tried(mirror)
    assert mirror.level(42.1) <= 0.0, "its refusal may be under way"
    assert mirror.ready_at(1.0, 0.0, 42.1) == 42.0 + STEP_FIRST
    assert mirror.level(42.0 + STEP_FIRST) == 1.0, "its refusal may be late"


def test_an_answer_to_the_trial_opens_the_whole_window(mirror: FixedWindowMirror) -> None:
    tried(mirror)
    mirror.debit(1.0, 0.0, 3, 42.0 + STEP_FIRST)
    observe(mirror, 3, 42.0 + STEP_FIRST, now=43.0, remaining=8.0, reset_after=59.0)
    assert mirror.level(43.0) == 8.0


def test_a_late_refusal_of_the_trial_takes_the_opened_window_back(mirror: FixedWindowMirror) -> None:
    tried(mirror)
    mirror.debit(1.0, 0.0, 3, 42.0 + STEP_FIRST)
    for charge in list(mirror.ledger.entries):
        mirror.refund(charge, 0.0)
        mirror.on_refused(charge.charged_at, 43.0, None)
    assert mirror.level(43.0) <= 0.0
    assert mirror.ready_at(1.0, 0.0, 43.0) == 44.0 + BOUNDARY_GUARD
    assert mirror.level(44.1) == mirror.limit


def test_a_refused_trial_halves_the_interval_and_the_next_call_waits_for_its_end(mirror: FixedWindowMirror) -> None:
    tried(mirror)
    mirror.refund(mirror.ledger.entries[-1], 0.0)
    mirror.on_refused(42.0, 42.01, None)
    assert mirror.ready_at(1.0, 0.0, 42.01) == 44.0 + BOUNDARY_GUARD
    assert mirror.level(44.1) == mirror.limit
    spend(mirror, 10, 44.1)
    assert mirror.ready_at(1.0, 0.0, 45.0) == 103.0, "the next boundary is known to two seconds"


def test_instants_of_whole_seconds_tell_the_period_exactly() -> None:
    schedule = ResetSchedule(60.0, False)
    for number in range(4):
        instant = ResetInstant(1000.0 + 7.0 * number, 1.0, 0.0)
        schedule.lies(7.0 * number, 7.0 * number + 2.0, told=True, instant=instant)
    assert (schedule.period, schedule.known) == (7.0, True)


def test_instant_by_the_local_clock_is_the_boundary_at_once() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0)
    # The answer took 0.3 s, which says nothing of the time left: it counts from the receipt.
    observe(mirror, 1, 0.0, 0.3, remaining=0.0, window=None, reset_after=5.7, from_receipt=True)
    assert mirror.ready_at(1.0, 0.0, 0.5) == pytest.approx(6.0 + BOUNDARY_GUARD, abs=0.002)
    observe(mirror, 2, 6.1, 6.5, remaining=0.0, window=None, reset_after=5.5, from_receipt=True)
    assert mirror.window == pytest.approx(6.0, abs=0.002)


def test_a_hint_of_whole_seconds_may_be_wrong_by_one(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, remaining=0.0, reset_after=40.0, resolution=1.0)
    assert mirror.resets_at(0.0) == 41.0 + BOUNDARY_GUARD


def test_hints_that_contradict_follow_the_newest(bounded: FixedWindowMirror) -> None:
    observe(bounded, 2, 1.0, remaining=0.0, reset_after=10.0)
    assert bounded.ready_at(1.0, 0.0, 1.0) == 11.0 + BOUNDARY_GUARD


def test_an_answer_to_an_older_request_changes_nothing(bounded: FixedWindowMirror) -> None:
    observe(bounded, 3, 5.0, remaining=2.0)
    observe(bounded, 2, 4.0, now=6.0, remaining=9.0)
    assert bounded.level(6.0) == 2.0


def test_an_answer_of_the_last_window_says_nothing_of_this_one(bounded: FixedWindowMirror) -> None:
    assert bounded.level(41.0) == 10.0
    observe(bounded, 2, 39.0, now=42.0, remaining=0.0)
    assert bounded.level(42.0) == 10.0


def test_what_was_sent_after_the_anchor_is_already_charged(mirror: FixedWindowMirror) -> None:
    spend(mirror, 3, 1.0, first=2)
    observe(mirror, 2, 1.0, now=5.0, remaining=6.0)
    assert mirror.level(5.0) == 4.0


def test_what_was_sent_before_the_boundary_is_not_charged_after_it(bounded: FixedWindowMirror) -> None:
    spend(bounded, 2, 39.0, first=2)
    assert bounded.level(40.0) == 10.0


def test_an_unknown_boundary_is_tried_carefully_until_a_refusal_comes(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, remaining=0.0)
    went, now = [], 0.0
    for order in range(2, 6):
        now = mirror.ready_at(1.0, 0.0, now)
        mirror.debit(1.0, 0.0, order, now)
        went.append(now)
    assert went == [0.0, STEP_FIRST, STEP_FIRST, 2 * STEP_FIRST]
    mirror.on_refused(1.0, 1.1, None)
    assert mirror.ready_at(1.0, 0.0, 1.1) == 1.1 + PROBE_FIRST


def test_more_go_out_in_each_careful_step_up_to_an_eighth() -> None:
    mirror = FixedWindowMirror(fixed(80.0), 0.0)
    mirror.observe(fixed(80.0, 0.0), 1, 0.0, 0.0, None)
    now, went = 0.0, []
    for order in range(2, 30):
        now = mirror.ready_at(1.0, 0.0, now)
        mirror.debit(1.0, 0.0, order, now)
        went.append(now)
    assert [went.count(step * STEP_FIRST) for step in range(5)] == [1, 2, 4, 8, 10]


def test_an_answer_that_finds_something_left_ends_the_care(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, remaining=0.0)
    mirror.debit(1.0, 0.0, 2, 1.0)
    assert mirror.ready_at(1.0, 0.0, 1.0) > 1.0
    observe(mirror, 2, 1.0, remaining=9.0)
    assert mirror.level(1.0) == 9.0


def test_probes_come_at_least_every_quarter_of_a_minute(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, remaining=0.0)
    now = 0.0
    for order in range(2, 30):
        now = mirror.ready_at(1.0, 0.0, now)
        mirror.debit(1.0, 0.0, order, now)
        mirror.on_refused(now, now, None)
    assert mirror.ready_at(1.0, 0.0, now) - now == pytest.approx(PROBE_LAST)


def test_the_first_refusal_tells_the_boundary(mirror: FixedWindowMirror) -> None:
    mirror.on_refused(4.9, 5.0, 12.5)
    assert mirror.ready_at(1.0, 0.0, 5.0) == 17.5 + BOUNDARY_GUARD
    assert mirror.level(17.6) == 10.0


def test_a_refusal_empties_the_window_whatever_was_counted(bounded: FixedWindowMirror) -> None:
    spend(bounded, 2, 1.0, first=2)
    bounded.on_refused(1.0, 2.0, None)
    assert bounded.level(2.0) <= 0.0
    assert bounded.ready_at(1.0, 0.0, 2.0) == 40.0 + BOUNDARY_GUARD


def test_two_boundaries_give_the_period() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0)
    mirror.on_refused(0.1, 0.1, 2.4)
    assert mirror.ready_at(1.0, 0.0, 0.2) == 2.5 + BOUNDARY_GUARD
    spend(mirror, 10, 2.6)
    assert mirror.ready_at(1.0, 0.0, 2.7) == 2.7, "whether the next one is a minute away nobody knows: one tries"
    mirror.on_refused(2.7, 2.7, 9.8)
    assert mirror.window == 10.0
    spend(mirror, 10, 12.6, first=12)
    assert mirror.ready_at(1.0, 0.0, 12.7) == 22.5 + BOUNDARY_GUARD


def test_a_period_that_no_provider_uses_is_believed_when_it_was_seen_twice() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0)
    for boundary in (2.5, 8.5):
        mirror.on_refused(boundary - 0.5, boundary - 0.5, 0.5)
        spend(mirror, 10, boundary + 0.1)
        assert mirror.ready_at(1.0, 0.0, boundary + 0.2) == boundary + 0.2
    mirror.on_refused(14.3, 14.3, 0.2)
    spend(mirror, 10, 14.6)
    assert mirror.ready_at(1.0, 0.0, 14.7) == 20.5 + BOUNDARY_GUARD


def test_what_is_only_supposed_to_be_a_window_is_tried_carefully_after_its_boundary() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0, supposed=True)
    mirror.on_refused(0.1, 0.1, 2.4)
    mirror.debit(1.0, 0.0, 2, 2.6)
    assert mirror.ready_at(1.0, 0.0, 2.6) > 2.6
    observe(mirror, 2, 2.6, remaining=9.0, window=None)
    spend(mirror, 9, 2.7, first=3)
    assert mirror.turned is None


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


def test_what_lets_its_whole_limit_out_unrefused_is_a_window() -> None:
    mirror = FixedWindowMirror(
        QuotaReading("requests-1s", "requests", "fixed", 50.0, 0.0, None, 1.0), 0.0, supposed=True
    )
    mirror.on_refused(0.0, 0.02, 0.5)
    spent_by(mirror, 1.52, 0.02)
    assert spent_by(mirror, 1.56, 1.52) == 50, "no care is left"


def test_where_little_is_back_after_a_boundary_the_quota_refills_continuously() -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=None), 0.0, 60.0, supposed=True)
    mirror.on_refused(0.1, 0.1, 0.4)
    mirror.debit(1.0, 0.0, 2, 0.6)
    mirror.on_refused(0.62, 0.62, 0.4)
    assert mirror.turned == "continuous"


def test_of_requests_that_overtake_each_other_none_shows_a_boundary(mirror: FixedWindowMirror) -> None:
    spend(mirror, 9, 0.0)
    observe(mirror, 5, 0.0, remaining=1.0)
    observe(mirror, 9, 0.0, remaining=8.0)
    assert not mirror.is_predictable
    assert mirror.level(0.0) == 1.0, "nine of ten went out, whichever came first"


def test_a_jump_tells_where_the_next_boundary_is(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 10.0, remaining=0.0)
    observe(mirror, 2, 14.0, remaining=9.0)
    observe(mirror, 3, 15.0, remaining=0.0)
    assert mirror.is_predictable
    assert mirror.ready_at(1.0, 0.0, 15.0) == 72.0, "the middle of the four seconds in which it lies"
    assert mirror.resets_at(15.0) == 74.0 + BOUNDARY_GUARD


def test_a_refused_request_was_not_charged(mirror: FixedWindowMirror) -> None:
    mirror.refund(mirror.debit(3.0, 0.0, 1, 0.0), 0.0)
    assert mirror.level(0.0) == 10.0


def test_output_is_reserved_until_it_is_charged(mirror: FixedWindowMirror) -> None:
    mirror.debit(1.0, 4.0, 1, 0.0)
    assert mirror.level(0.0) == 5.0
    mirror.settle(4.0, 2.0, 2, 0.0, 0.0)
    assert mirror.level(0.0) == 7.0
    mirror.settle(4.0, 0.0, 3, 0.0, 0.0)
    assert mirror.level(0.0) == 7.0


def test_a_refund_releases_its_reservation(mirror: FixedWindowMirror) -> None:
    mirror.refund(mirror.debit(1.0, 4.0, 1, 0.0), 4.0)
    assert mirror.level(0.0) == 10.0


def test_a_limit_that_changed_is_taken_over(mirror: FixedWindowMirror) -> None:
    observe(mirror, 1, 0.0, limit=20.0, remaining=15.0)
    assert (mirror.limit, mirror.level(0.0)) == (20.0, 15.0)


def test_without_a_limit_the_most_that_ever_remained_is_it() -> None:
    mirror = FixedWindowMirror(fixed(None, 4.0), 0.0)
    observe(mirror, 1, 0.0, limit=None, remaining=8.0)
    assert mirror.limit == 8.0


def test_a_reading_without_a_remaining_still_tells_the_boundary(mirror: FixedWindowMirror) -> None:
    spend(mirror, 10, 0.0)
    observe(mirror, 11, 0.0, limit=None, remaining=None, reset_after=7.0)
    assert mirror.ready_at(1.0, 0.0, 0.0) == pytest.approx(7.0 + BOUNDARY_GUARD)


@pytest.mark.parametrize("window", [0.0, -5.0, 1e12])
def test_an_unusable_window_is_not_believed(window: float) -> None:
    mirror = FixedWindowMirror(fixed(10.0, window=window), 0.0)
    observe(mirror, 1, 0.0, remaining=0.0, reset_after=1.0, window=window)
    assert mirror.window == 60.0
    assert mirror.level(2.0) == 10.0


@pytest.mark.parametrize(("retry_after", "turned"), [(1.0, "continuous"), (2.0, None)])
def test_quota_whose_refusals_state_a_time_before_its_reset_and_return_a_part_is_continuous(
    retry_after: float, turned: str | None
) -> None:
    mirror = FixedWindowMirror(fixed(12.0, window=None), 0.0)
    order = 0
    for window in range(4):
        at = window * (retry_after + 0.1)
        sent = [mirror.debit(1.0, 0.0, order + number, at) for number in range(1, 13)]
        order += 12
        for debit in sent[8:]:
            mirror.refund(debit, 0.0)
        observe(mirror, order, at, at + 0.01, limit=12.0, remaining=0.0, window=None, reset_after=2.0, resolution=1.0)
        mirror.on_refused(at, at + 0.01, retry_after)
        mirror.level(at + retry_after + 0.05)
    assert mirror.turned == turned


def test_window_after_one_that_admitted_little_begins_with_a_single_call(bounded: FixedWindowMirror) -> None:
    sent = [bounded.debit(1.0, 0.0, order, 40.1) for order in range(2, 12)]
    for debit in sent[1:]:
        bounded.refund(debit, 0.0)
    bounded.on_refused(40.1, 40.12, 1.0)
    assert bounded.level(41.2) == 1.0
    assert bounded.level(41.2 + 60.0) == 10.0, "the window in between was not refused"


@pytest.mark.parametrize("absurd", [1e300, 1e308, float("inf"), float("-inf")])
def test_boundary_beyond_all_numbers_teaches_nothing_and_breaks_nothing(absurd: float) -> None:
    schedule = ResetSchedule(60.0, declared=True)
    for _ in range(2):
        schedule.lies(absurd, absurd, told=True)
        schedule.passed(1.0)
    schedule.lies(99.0, 101.0, told=True)
    assert (schedule.low, schedule.high) == (99.0, 101.0)
