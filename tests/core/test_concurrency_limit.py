from __future__ import annotations

import pytest

from tidegate.core.backoff import FIRST_GRACE_SECONDS
from tidegate.core.concurrency_limit import (
    MAX_TRIAL_SECONDS,
    RAMP_DOUBLING_SECONDS,
    RAMP_SLOTS_PER_SECOND,
    TRIAL_WAIT_GROWTH,
    ConcurrencyLimit,
)

INFINITY = float("inf")
GRACE = 0.05


@pytest.fixture
def limit() -> ConcurrencyLimit:
    """4 slots at first, 100 at most, halved at a cut."""
    return ConcurrencyLimit(100)


def a_round(limit: ConcurrencyLimit) -> None:
    for _ in range(limit.limit):
        limit.succeeded(limit.limit)


def open_until(limit: ConcurrencyLimit, end: float, now: float = 0.0) -> float:
    """Somebody always waits for a slot: takes what opens until `end`; returns when the last one did."""
    in_flight = limit.limit
    limit.filled(in_flight, now)
    while (opens := limit.opens_at(now)) <= end:
        now, in_flight = opens, in_flight + 1
        limit.filled(in_flight, now)
    return now


def capped(limit: ConcurrencyLimit, in_flight: int, now: float = 0.0, confirmed: bool = False) -> None:
    """The attempt that made it `in_flight` was refused, and as many as before it were let in."""
    assert limit.refused(in_flight, in_flight - 1, now, now, True, GRACE, confirmed)


def test_a_start_above_the_highest_is_the_highest() -> None:
    assert ConcurrencyLimit(2).limit == 2


def test_new_key_opens_no_more_slots_while_it_is_listened_to(limit: ConcurrencyLimit) -> None:
    """A key that rejects every call says so soon: until then it is sent no more than it was at first."""
    limit.filled(4, 10.0)
    assert limit.opens_at(10.0 + RAMP_DOUBLING_SECONDS / 2) == 10.0 + RAMP_DOUBLING_SECONDS
    assert open_until(limit, 10.0 + RAMP_DOUBLING_SECONDS / 2, 10.0) == 10.0
    assert limit.limit == 4


def test_a_first_round_is_bounded(limit: ConcurrencyLimit) -> None:
    open_until(limit, 0.25)
    assert limit.limit <= 4 + 0.25 * RAMP_SLOTS_PER_SECOND


def test_a_slot_opens_only_to_a_call_that_waits_for_it(limit: ConcurrencyLimit) -> None:
    limit.filled(4, 0.0)
    assert limit.opens_at(10.0) == 10.0
    assert limit.limit == 4


def test_slots_that_a_late_event_loop_missed_open_at_once_within_one_doubling(limit: ConcurrencyLimit) -> None:
    limit.note_accepted()
    limit.filled(4, 0.0)
    in_flight, now = 4, 10.0
    while limit.opens_at(now) <= now:
        in_flight += 1
        limit.filled(in_flight, now, waited=10.0)
    assert 8 <= limit.limit <= 9


def test_late_event_loop_opens_no_more_slots_before_the_first_answer(limit: ConcurrencyLimit) -> None:
    """The refusal of what was sent last waits for the same machine."""
    limit.filled(4, 0.0)
    limit.filled(5, 10.0, waited=10.0)
    assert limit.opens_at(10.0) > 10.0


def test_the_limit_never_passes_the_highest(limit: ConcurrencyLimit) -> None:
    for _ in range(10):
        a_round(limit)
    open_until(limit, 60.0)
    assert limit.limit == 100
    assert limit.succeeded(100) is False


def test_a_client_that_does_not_use_its_slots_earns_none(limit: ConcurrencyLimit) -> None:
    assert not any(limit.succeeded(3) for _ in range(1000))
    assert limit.limit == 4


def test_a_refusal_under_the_ceiling_lowers_it(limit: ConcurrencyLimit) -> None:
    capped(limit, 33)
    assert limit.refused(20, 19, 1.0, 1.0, True, GRACE)
    assert limit.limit == 19


def test_no_number_of_cuts_leaves_less_than_one_slot(limit: ConcurrencyLimit) -> None:
    for at in range(20):
        limit.cut_to(1, float(at))
    assert limit.limit == 1


@pytest.mark.parametrize(
    ("confirmed", "expected"),
    [
        (False, [FIRST_GRACE_SECONDS, FIRST_GRACE_SECONDS * TRIAL_WAIT_GROWTH, MAX_TRIAL_SECONDS]),
        (True, [FIRST_GRACE_SECONDS, MAX_TRIAL_SECONDS]),
    ],
)
def test_one_more_than_the_ceiling_is_tried_alone_and_ever_more_rarely(
    limit: ConcurrencyLimit, confirmed: bool, expected: list[float]
) -> None:
    capped(limit, 33)
    now, delays = 0.0, []
    for _ in range(9):
        limit.filled(32, now)
        opens = limit.opens_at(now)
        delays.append(opens - now)
        now = opens
        limit.filled(33, now)
        assert limit.opens_at(now) == now + GRACE
        capped(limit, 33, now, confirmed)
    assert delays[: len(expected)] == pytest.approx(expected)
    assert delays[-1] == MAX_TRIAL_SECONDS


def test_refusal_of_an_attempt_that_went_before_a_single_slot_does_not_confirm_it(limit: ConcurrencyLimit) -> None:
    """Attempts that were in flight together are refused one after another; a bucket of one call does so too."""
    capped(limit, 2, 5.0, confirmed=True)
    assert limit.refused(2, 1, 4.999, 5.001, True, GRACE, True)
    assert limit.opens_at(5.001) < 5.0 + MAX_TRIAL_SECONDS / 2.0


def test_a_header_never_lowers_the_limit_nor_lifts_it_past_the_highest(limit: ConcurrencyLimit) -> None:
    limit.set_headroom_hint(1e9)
    open_until(limit, 10.0)
    assert limit.limit == 100
    lower = ConcurrencyLimit(100)
    lower.set_headroom_hint(3.0)
    assert lower.limit == 4


def test_after_a_refusal_no_header_lifts_the_limit(limit: ConcurrencyLimit) -> None:
    capped(limit, 4)
    limit.set_headroom_hint(90.0)
    assert limit.limit == 3


def test_what_is_of_no_use_is_not_given_out_and_comes_back_when_it_is(limit: ConcurrencyLimit) -> None:
    open_until(limit, 0.2)
    before = limit.limit
    limit.set_useful_max(10.0)
    a_round(limit)
    assert (limit.limit, limit.opens_at(5.0)) == (10, INFINITY)
    limit.set_useful_max(INFINITY)
    assert limit.limit == before
