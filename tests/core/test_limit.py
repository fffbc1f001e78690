from __future__ import annotations

import pytest

from tidegate.core.limit import ConcurrencyLimit


@pytest.fixture
def limit() -> ConcurrencyLimit:
    """20 slots, 100 at most, halved at a cut."""
    return ConcurrencyLimit(20, 100, 0.5)


def a_round(limit: ConcurrencyLimit) -> None:
    """Every slot is taken and answers."""
    for _ in range(limit.slots):
        limit.succeeded(limit.slots)


def test_a_start_above_the_highest_is_the_highest() -> None:
    assert ConcurrencyLimit(20, 5, 0.5).slots == 5


def test_slow_start_doubles_each_saturated_round(limit: ConcurrencyLimit) -> None:
    a_round(limit)
    assert limit.slots == 40


def test_the_limit_never_passes_the_highest(limit: ConcurrencyLimit) -> None:
    for _ in range(10):
        a_round(limit)
    assert limit.slots == 100
    assert limit.succeeded(100) is False


def test_a_client_that_does_not_use_its_slots_earns_none(limit: ConcurrencyLimit) -> None:
    assert not any(limit.succeeded(15) for _ in range(1000))
    assert limit.slots == 20


def test_four_fifths_of_the_slots_are_saturation(limit: ConcurrencyLimit) -> None:
    assert limit.succeeded(16) is True
    assert limit.slots == 21


def test_a_cut_halves_what_was_in_flight(limit: ConcurrencyLimit) -> None:
    limit.refused(12)
    assert limit.slots == 6


def test_a_cut_never_starts_above_the_limit(limit: ConcurrencyLimit) -> None:
    limit.refused(500)
    assert limit.slots == 10


def test_no_number_of_cuts_leaves_less_than_one_slot(limit: ConcurrencyLimit) -> None:
    for _ in range(20):
        limit.refused(0)
    assert limit.slots == 1


def test_after_a_cut_slow_start_ends_just_under_the_refused_level(limit: ConcurrencyLimit) -> None:
    limit.refused(20)
    a_round(limit)
    assert (limit.slots, limit.growing_fast) == (18, False)
    a_round(limit)
    assert limit.slots == 19


def test_a_success_that_wins_no_whole_slot_says_so(limit: ConcurrencyLimit) -> None:
    limit.refused(20)
    while limit.growing_fast:
        limit.succeeded(limit.slots)
    assert limit.succeeded(limit.slots) is False


def test_a_large_limit_grows_by_a_share_of_itself() -> None:
    limit = ConcurrencyLimit(400, 1000, 0.5)
    limit.refused(400)
    while limit.growing_fast:
        limit.succeeded(limit.slots)
    before = limit.slots
    a_round(limit)
    assert before + 16 <= limit.slots <= before + 20


def test_the_first_header_lifts_the_limit_to_what_stands_ready(limit: ConcurrencyLimit) -> None:
    limit.announced(60.0)
    assert limit.slots == 60
    limit.announced(90.0)
    assert limit.slots == 60


def test_a_header_never_lowers_the_limit_nor_lifts_it_past_the_highest(limit: ConcurrencyLimit) -> None:
    limit.announced(1e9)
    assert limit.slots == 100
    lower = ConcurrencyLimit(20, 100, 0.5)
    lower.announced(3.0)
    assert lower.slots == 20


def test_after_a_cut_no_header_lifts_the_limit(limit: ConcurrencyLimit) -> None:
    limit.refused(20)
    limit.announced(90.0)
    assert limit.slots == 10


@pytest.mark.parametrize(("share", "slots"), [(1.0, 20), (0.1, 20), (0.05, 8), (0.0, 4), (-1.0, 4)])
def test_a_scarce_quota_holds_back_a_part_of_the_slots(limit: ConcurrencyLimit, share: float, slots: int) -> None:
    limit.scarce(share)
    assert limit.slots == slots


def test_one_slot_remains_however_scarce_the_quota_is() -> None:
    limit = ConcurrencyLimit(1, 100, 0.5)
    limit.scarce(0.0)
    assert limit.slots == 1


@pytest.mark.parametrize("level", range(1, 41))
def test_wherever_it_was_cut_it_grows_again_while_it_is_what_holds_calls_back(level: int) -> None:
    limit = ConcurrencyLimit(40, 1000, 0.5)
    limit.refused(level)
    for _ in range(2000):
        limit.succeeded(limit.slots)
    assert limit.slots > level + 5
