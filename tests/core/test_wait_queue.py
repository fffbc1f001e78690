"""The line of one key: who is next, who leaves, whose deadline comes first."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.wait_queue import Waiter, WaitQueue, Waker


def silent() -> Waker:
    raise NotImplementedError


class WeakRefWaiter(Waiter):
    """One that can be watched for its end."""


def waiter(priority: int = 0, deadline: float = 3600.0) -> Waiter:
    made = WeakRefWaiter(silent, priority)
    made.deadline = deadline
    return made


def join(line: WaitQueue, count: int, priority: int = 0) -> list[Waiter]:
    made = [waiter(priority) for _ in range(count)]
    for each in made:
        line.enqueue(each)
    return made


def drain(line: WaitQueue) -> list[Waiter]:
    order = []
    while (head := line.head()) is not None:
        assert line.dequeue(head)
        order.append(head)
    return order


def earliest(line: WaitQueue) -> Waiter | None:
    """Return the call whose deadline comes first; without executors there is at most one group."""
    (group,) = line.groups.values() or [None]
    return group.earliest() if group is not None else None


def deadlines(line: WaitQueue) -> int:
    return sum(len(group._deadlines) for group in line.groups.values())


@pytest.fixture
def line() -> WaitQueue:
    return WaitQueue()


def test_nobody_is_the_head_of_an_empty_line(line: WaitQueue) -> None:
    assert (line.head(), earliest(line), line.count) == (None, None, 0)


def test_first_come_first_served(line: WaitQueue) -> None:
    made = join(line, 5)
    assert line.count == 5
    assert drain(line) == made


def test_a_higher_priority_goes_first_and_each_is_in_order(line: WaitQueue) -> None:
    low, high = join(line, 3, 0), join(line, 3, 5)
    lowest = join(line, 1, -1)
    assert drain(line) == high + low + lowest


def test_refused_calls_return_to_the_head_in_order_of_arrival(line: WaitQueue) -> None:
    first, second, third, fourth = join(line, 4)
    for each in (first, second, third):
        line.dequeue(each)
    for each in (third, first, second):
        line.enqueue(each)
    assert drain(line) == [first, second, third, fourth]


def test_a_call_that_passed_without_standing_returns_to_its_place(line: WaitQueue) -> None:
    passing = waiter()
    passing.place = line.next_place()
    (standing,) = join(line, 1)
    line.enqueue(passing)
    assert drain(line) == [passing, standing]


@pytest.mark.parametrize("at", range(5))
def test_one_can_leave_from_any_place_once(line: WaitQueue, at: int) -> None:
    made = join(line, 5)
    assert line.dequeue(made[at]) is True
    assert line.dequeue(made[at]) is False
    assert drain(line) == made[:at] + made[at + 1 :]


@pytest.mark.parametrize("at", range(3))
def test_one_can_leave_from_any_place_after_returning(line: WaitQueue, at: int) -> None:
    made = join(line, 3)
    for each in made:
        line.dequeue(each)
    for each in made:
        line.enqueue(each)
    assert line.dequeue(made[at]) is True
    assert line.dequeue(made[at]) is False
    assert drain(line) == made[:at] + made[at + 1 :]


def test_one_who_never_stood_cannot_leave(line: WaitQueue) -> None:
    assert line.dequeue(waiter()) is False
    join(line, 1)
    assert line.dequeue(waiter()) is False


def test_the_earliest_deadline_is_found_wherever_it_stands(line: WaitQueue) -> None:
    deadlines = [50.0, 30.0, 70.0, 10.0, 40.0]
    made = [waiter(priority, deadline) for priority, deadline in zip([0, 1, 0, 0, 2], deadlines, strict=True)]
    for each in made:
        line.enqueue(each)
    found = []
    while (first := earliest(line)) is not None:
        line.dequeue(first)
        found.append(first.deadline)
    assert found == sorted(deadlines)


def test_the_earliest_of_one_who_left_and_returned_is_found(line: WaitQueue) -> None:
    early, late = waiter(deadline=10.0), waiter(deadline=20.0)
    line.enqueue(early)
    line.enqueue(late)
    line.dequeue(early)
    assert earliest(line) is late
    line.enqueue(early)
    assert earliest(line) is early


def test_the_line_remembers_nobody_who_left(line: WaitQueue) -> None:
    for _ in range(5000):
        passing = waiter()
        line.enqueue(passing)
        line.dequeue(passing)
    assert deadlines(line) < 200


def test_the_line_remembers_one_who_returns_often_once(line: WaitQueue) -> None:
    stubborn = waiter()
    for _ in range(5000):
        line.enqueue(stubborn)
        line.dequeue(stubborn)
    line.enqueue(stubborn)
    assert deadlines(line) < 200


def test_a_cleared_line_is_empty_for_everybody(line: WaitQueue) -> None:
    (standing,) = join(line, 1)
    line.clear()
    assert (line.head(), earliest(line), line.count) == (None, None, 0)
    assert line.dequeue(standing) is False


def test_a_deadline_is_not_hidden_behind_a_patient_call_that_returned(line: WaitQueue) -> None:
    patient, hasty = waiter(deadline=1e6), waiter(deadline=5.0)
    line.enqueue(patient)
    line.dequeue(patient)
    line.enqueue(patient)
    line.enqueue(hasty)
    assert earliest(line) is hasty


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 2), st.integers(0, 9)), max_size=40))
def test_the_earliest_deadline_is_that_of_somebody_who_stands(
    moves: list[tuple[int, bool, int, int]],
) -> None:
    line, everybody = WaitQueue(), []
    for at, joins, priority, deadline in moves:
        if joins or not everybody:
            everybody.append(waiter(priority, float(deadline)))
            line.enqueue(everybody[-1])
        elif not line.dequeue(everybody[at % len(everybody)]):
            line.enqueue(everybody[at % len(everybody)])
        standing = [each.deadline for each in everybody if each.is_queued]
        first = earliest(line)
        assert (first.deadline if first is not None else None) == min(standing, default=None)


def test_who_has_left_is_not_kept_for_the_sake_of_its_deadline(line: WaitQueue) -> None:
    made = [waiter(deadline=deadline) for deadline in (30.0, 20.0, 10.0)]
    for each in made:
        line.enqueue(each)
    for each in made:
        line.dequeue(each)
    gone = [weakref.ref(each) for each in made]
    del made, each
    assert [each() for each in gone] == [None, None, None]
    assert earliest(line) is None


def test_who_comes_back_to_its_place_has_its_deadline_again(line: WaitQueue) -> None:
    late, early = waiter(deadline=30.0), waiter(deadline=20.0)
    for each in (late, early):
        line.enqueue(each)
    line.dequeue(early)
    assert earliest(line) is late
    line.enqueue(early)
    assert earliest(line) is early
    line.dequeue(early)
    line.enqueue(early)
    assert (earliest(line), line.count) == (early, 2)
