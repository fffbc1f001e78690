"""What one experiment does next: ranks, ageing, heads of queues."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tidegate.experiments.engine import queues
from tidegate.experiments.engine.queues import AGEING_TURNS, TASK, Item, Place, WorkQueue

JUDGE = 1


def item(stage: int, ordinal: int, attempts: int = 0) -> Item:
    made = Item(stage, Place(ordinal, 1), {"row": ordinal})
    made.attempts = attempts
    return made


def work_queue(*gates: str) -> WorkQueue:
    made = WorkQueue(len(gates))
    for stage, gate in enumerate(gates):
        made.set_gate(stage, gate)
    return made


def retry(work: WorkQueue, ordinal: int) -> None:
    """Let a retry of a task become ready."""
    delayed = item(TASK, ordinal, attempts=1)
    work.delay(delayed, Mock())
    work.retry(delayed)


def order(work: WorkQueue, gate: str, count: int) -> list[tuple[int, int]]:
    taken = [work.take(gate) for _ in range(count)]
    return [(each.stage, each.place.ordinal) for each in taken if each is not None]


def test_evaluations_go_before_ready_retries_and_those_before_tasks() -> None:
    work = work_queue("key", "key")
    work.add([item(TASK, 1), item(TASK, 2), item(JUDGE, 3)])
    retry(work, 4)
    assert order(work, "key", 5) == [(JUDGE, 3), (TASK, 4), (TASK, 1), (TASK, 2)]


def test_tasks_that_were_passed_over_often_enough_go_next() -> None:
    work = work_queue("key", "key")
    work.add([item(TASK, ordinal) for ordinal in range(3)])
    work.add([item(JUDGE, ordinal) for ordinal in range(10, 39)])
    stages = [stage for stage, _ in order(work, "key", 18)]
    assert stages == ([JUDGE] * AGEING_TURNS + [TASK]) * 2


def test_an_item_that_is_put_back_goes_next() -> None:
    work = work_queue("key")
    work.add([item(TASK, 1), item(TASK, 2)])
    retry(work, 3)
    taken = work.take("key"), work.take("key")
    for each in taken:
        assert each is not None
        work.put_back(each)
    assert order(work, "key", 3) == [(TASK, 3), (TASK, 1), (TASK, 2)]


def test_retries_and_new_items_take_turns_and_leave_no_slot_empty() -> None:
    work = work_queue("key")
    work.add([item(TASK, ordinal) for ordinal in (1, 2)])
    for ordinal in range(5, 10):
        retry(work, ordinal)
    assert [ordinal for _, ordinal in order(work, "key", 7)] == [5, 1, 6, 2, 7, 8, 9]


def test_retries_take_no_room_of_new_items() -> None:
    work = work_queue("key")
    room = work.room(TASK)
    for ordinal in range(2 * room):
        retry(work, ordinal)
    assert (work.room(TASK), work.runs_low(TASK)) == (room, True)


def test_stages_behind_different_gates_do_not_hold_each_other_up() -> None:
    work = work_queue("tasks", "judge")
    work.add([item(TASK, 1), item(JUDGE, 2)])
    assert set(work.gates()) == {"tasks", "judge"}
    assert work.rank("judge") < work.rank("tasks")
    assert order(work, "tasks", 2) == [(TASK, 1)]
    assert (work.has("tasks"), work.has("judge")) == (False, True)


def test_a_gate_that_is_passed_over_becomes_urgent() -> None:
    work = work_queue("tasks", "judge")
    work.add([item(TASK, 1)])
    work.add([item(JUDGE, ordinal) for ordinal in range(2 * AGEING_TURNS)])
    order(work, "judge", AGEING_TURNS)
    assert work.rank("tasks") < work.rank("judge")


def test_evaluators_of_one_gate_take_turns() -> None:
    work = work_queue("tasks", "judge", "judge")
    work.add([item(stage, ordinal) for stage in (1, 2) for ordinal in range(3)])
    assert [stage for stage, _ in order(work, "judge", 6)] == [1, 2, 1, 2, 1, 2]


def test_the_water_marks_say_when_a_page_is_wanted_and_how_much_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PAGE_ITEMS", 10)
    work = work_queue("key")
    assert (work.runs_low(TASK), work.room(TASK)) == (True, 10)
    work.add([item(TASK, ordinal) for ordinal in range(10)])
    assert (work.runs_low(TASK), work.room(TASK)) == (False, 0)
    order(work, "key", 4)
    assert not work.runs_low(TASK)
    order(work, "key", 1)
    assert (work.runs_low(TASK), work.room(TASK)) == (True, 5)


def test_what_waits_is_forgotten_wherever_it_waits() -> None:
    work, timer = work_queue("key", "key"), Mock()
    work.add([item(TASK, 1), item(JUDGE, 2)])
    work.delay(item(TASK, 3, attempts=1), timer)
    work.clear()
    assert (list(work.gates()), work.take("key"), work.items(TASK)) == ([], None, [])
    timer.cancel.assert_called_once()
