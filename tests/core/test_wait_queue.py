"""The line of one key: who is next, who leaves, whose deadline comes first."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("at", range(5))
def test_one_can_leave_from_any_place_once(line: WaitQueue, at: int) -> None:
    made = join(line, 5)
    assert line.dequeue(made[at]) is True
    assert line.dequeue(made[at]) is False
    assert drain(line) == made[:at] + made[at + 1 :]


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


def test_the_line_remembers_nobody_who_left(line: WaitQueue) -> None:
    for _ in range(5000):
        passing = waiter()
        line.enqueue(passing)
        line.dequeue(passing)
    assert deadlines(line) < 200


def test_a_cleared_line_is_empty_for_everybody(line: WaitQueue) -> None:
    (standing,) = join(line, 1)
    line.clear()
    assert (line.head(), earliest(line), line.count) == (None, None, 0)
    assert line.dequeue(standing) is False
