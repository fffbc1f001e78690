from __future__ import annotations

import pytest

from tidegate.core.pacer_phases import NAMED_PROOFS, PROOFS, PaceFloor


@pytest.fixture
def floor() -> PaceFloor:
    floor = PaceFloor()
    floor.know(0.5)
    return floor


def gaps(floor: PaceFloor, count: int) -> list[int]:
    """Fail so many trials; return the calls between each and the next one."""
    found, let_in, now = [], 0, 0.0
    for _ in range(count):
        floor.begin(0.1, let_in, now)
        assert floor.judge(let_in, False, now + 0.5)
        before = let_in
        while not floor.due(0.1, let_in):
            let_in += 1
        found.append(let_in - before)
        now += 10.0
    return found


def test_the_first_failed_trials_follow_each_other_and_then_come_apart(floor: PaceFloor) -> None:
    assert gaps(floor, PROOFS + 2) == [1] * PROOFS + [2, 4]


def test_failed_trials_come_apart_at_once_where_a_rate_explains_the_refusals(floor: PaceFloor) -> None:
    floor.proofs = PROOFS
    assert gaps(floor, 3) == [2, 4, 8]


def test_failed_trials_are_far_apart_where_refusals_name_a_time(floor: PaceFloor) -> None:
    floor.proofs = NAMED_PROOFS
    assert gaps(floor, 4) == [16, 32, 64, 64]


def test_each_second_trial_of_a_bucket_of_one_call_is_between_the_paces(floor: PaceFloor) -> None:
    assert floor.begin(0.25, 0, 0.0, True) == floor.pace
    assert floor.judge(0, False, 1.0)
    between = floor.begin(0.25, 1, 2.0, True)
    assert between == pytest.approx((0.25 * floor.pace) ** 0.5)
    # It admits nearly all of its calls, which are less than twice what the slow pace does.
    seconds = 40.0
    count = round(min(between, 0.45) * seconds)
    assert not floor.judge(1 + count, False, 2.0 + seconds)
    assert floor.due(0.25, 1 + count)


def test_a_trial_holds_where_it_admits_more_than_a_full_bucket_of_the_slow_pace(floor: PaceFloor) -> None:
    floor.begin(0.1, 10, 0.0)
    assert not floor.holds(15, 5.0, 1.0)
    assert floor.holds(16, 5.0, 1.0)
