from __future__ import annotations

import pytest

from tests.core.values import KEY, OK, PricedWaiter
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost
from tidegate.settings import Settings


class StubWaker:
    """A waker that nobody hears."""

    def wake(self) -> bool:
        return True

    def arm(self, until: float) -> bool:
        return True


def waiter(priority: int = 0, deadline: float = 3600.0, cost: Cost | None = None) -> Waiter:
    made = PricedWaiter(StubWaker, priority, lambda estimate: cost or Cost())
    made.deadline = deadline
    return made


@pytest.fixture
def slots() -> KeyQueue:
    return KeyQueue(AdmissionController(KEY, Settings(max_concurrency=1), 60.0, 0.0))


@pytest.fixture
def taken(slots: KeyQueue) -> Permit:
    return slots.admission.admit(Cost(), 0.0, 0.0, None)


def free(slots: KeyQueue, permit: Permit, now: float = 0.0) -> list[Waiter]:
    slots.admission.settle(permit, OK, now, 0.5, None)
    return slots.pump(now, None)


def test_nobody_passes_one_who_stands(slots: KeyQueue) -> None:
    big, small = waiter(cost=Cost(tokens=900.0)), waiter(cost=Cost(tokens=0.0))
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    slots.enqueue(big, 0.0, None)
    slots.admission.pause.until = 0.0
    slots.enqueue(small, 1.0, None)
    assert big.permit is not None
    assert small.permit is None


def test_a_freed_slot_wakes_exactly_the_one_who_may_go(slots: KeyQueue, taken: Permit) -> None:
    made = [waiter() for _ in range(3)]
    for each in made:
        slots.enqueue(each, 0.0, None)
    woken = free(slots, taken)
    assert [each for each in woken if each.permit is not None] == made[:1]
    assert slots.waiting.count == 2


def test_the_head_alone_holds_the_clock(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    made = [waiter() for _ in range(3)]
    for each in made:
        slots.enqueue(each, 0.0, None)
    assert [each.until for each in made] == [5.0, None, None]


def test_the_clock_goes_on_when_its_holder_leaves(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    first, second = waiter(), waiter()
    slots.enqueue(first, 0.0, None)
    slots.enqueue(second, 0.0, None)
    assert slots.dequeue(first, 1.0, None) == [second]
    assert second.until == 5.0


@pytest.mark.parametrize("at", range(3))
def test_the_earliest_deadline_expires_wherever_it_stands(slots: KeyQueue, taken: Permit, at: int) -> None:
    made = [waiter(deadline=10.0 if number == at else 3600.0) for number in range(3)]
    for each in made:
        slots.enqueue(each, 0.0, None)
    assert slots.pump(9.9, None) == []
    assert made[at] in slots.pump(10.0, None)
    assert made[at].permit is None
    assert slots.waiting.count == 2


def test_all_who_are_past_their_deadline_step_out_at_once(slots: KeyQueue, taken: Permit) -> None:
    made = [waiter(deadline=10.0) for _ in range(5)]
    for each in made:
        slots.enqueue(each, 0.0, None)
    assert set(slots.pump(11.0, None)) == set(made)
    assert slots.waiting.count == 0


def test_a_price_that_fails_is_nobody_elses_failure(slots: KeyQueue, taken: Permit) -> None:
    def failing(estimate: object) -> Cost:
        raise ZeroDivisionError

    broken = PricedWaiter(StubWaker, 0, failing)
    slots.enqueue(broken, 0.0, None)
    slots.admission.settle(taken, OK, 0.0, 0.5, None)
    slots.pump(0.0, None)
    assert broken.permit is not None
    slots.admission.settle(broken.permit, OK, 0.0, 0.5, None)
    assert RateLimitRegistry().enter(PricedWaiter(StubWaker, 0, failing), KEY, 60.0) is not None
