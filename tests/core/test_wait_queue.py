"""The line of one key remembers nobody who left it."""

from __future__ import annotations

import pytest

from tidegate.admission.wait_queue import Waiter, WaitQueue, Waker


def silent() -> Waker:
    raise NotImplementedError


def waiter() -> Waiter:
    made = Waiter(silent, 0)
    made.deadline = 3600.0
    return made


def deadlines(line: WaitQueue) -> int:
    return sum(len(group._deadlines) for group in line.groups.values())


@pytest.fixture
def line() -> WaitQueue:
    return WaitQueue()


def test_the_line_remembers_nobody_who_left(line: WaitQueue) -> None:
    for _ in range(5000):
        passing = waiter()
        line.enqueue(passing)
        line.dequeue(passing)
    assert deadlines(line) < 200
