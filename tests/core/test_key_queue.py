from __future__ import annotations

import pytest

from tests.core.values import KEY, OK, PricedWaiter
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import Waiter
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cost, RequestFacts, Usage
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


def test_a_call_passes_where_nobody_stands_and_the_gates_are_open(slots: KeyQueue) -> None:
    passing = waiter()
    assert slots.enqueue(passing, 5.0, None) == []
    assert passing.permit is not None
    assert (slots.waiting.count, slots.idle) == (0, False)


def test_a_call_stands_where_a_gate_is_closed(slots: KeyQueue, taken: Permit) -> None:
    standing = waiter()
    assert slots.enqueue(standing, 0.0, None) == []
    assert (standing.permit, slots.waiting.count, slots.gate) == (None, 1, "concurrency")


def test_nobody_passes_one_who_stands(slots: KeyQueue) -> None:
    big, small = waiter(cost=Cost(tokens=900.0)), waiter(cost=Cost(tokens=0.0))
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    slots.enqueue(big, 0.0, None)
    slots.admission.pause.until = 0.0
    slots.enqueue(small, 1.0, None)
    assert big.permit is not None
    assert small.permit is None


def test_a_higher_priority_that_may_go_goes_without_being_woken(slots: KeyQueue, taken: Permit) -> None:
    low, high = waiter(0), waiter(1)
    slots.enqueue(low, 0.0, None)
    slots.admission.settle(taken, OK, 0.0, 0.5, None)
    assert slots.enqueue(high, 0.0, None) == []
    assert high.permit is not None
    assert low.permit is None


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


def test_the_clock_goes_to_a_new_head_of_higher_priority(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    low, high = waiter(0), waiter(1)
    slots.enqueue(low, 0.0, None)
    slots.enqueue(high, 0.0, None)
    assert (low.until, high.until) == (None, 5.0)


def test_the_clock_goes_on_when_its_holder_leaves(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    first, second = waiter(), waiter()
    slots.enqueue(first, 0.0, None)
    slots.enqueue(second, 0.0, None)
    assert slots.dequeue(first, 1.0, None) == [second]
    assert second.until == 5.0


def test_one_who_does_not_hold_the_clock_leaves_without_waking_anybody(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 5.0, False, 0.0, True)
    first, second = waiter(), waiter()
    slots.enqueue(first, 0.0, None)
    slots.enqueue(second, 0.0, None)
    assert slots.dequeue(second, 1.0, None) == []
    assert slots.dequeue(second, 1.0, None) == []
    assert slots.gate == "pause"


def test_the_holder_is_woken_when_it_must_look_sooner_and_only_then(slots: KeyQueue) -> None:
    slots.admission.pause.close(0.0, 50.0, False, 0.0, True)
    first = waiter()
    slots.enqueue(first, 0.0, None)
    assert slots.enqueue(waiter(deadline=9000.0), 0.0, None) == []
    assert slots.enqueue(waiter(deadline=20.0), 0.0, None) == [first]
    assert first.until == 20.0


def test_behind_a_gate_that_opens_at_no_known_instant_the_head_waits_for_the_first_deadline(
    slots: KeyQueue, taken: Permit
) -> None:
    first = waiter(deadline=INFINITY)
    slots.enqueue(first, 0.0, None)
    assert first.until is None
    assert slots.enqueue(waiter(deadline=7.0), 0.0, None) == [first]
    assert first.until == 7.0


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


def test_one_who_returns_stands_before_anybody_is_let_in(slots: KeyQueue, taken: Permit) -> None:
    refused, fresh = waiter(), waiter()
    refused.place = slots.waiting.next_place()
    slots.enqueue(fresh, 0.0, None)
    slots.admission.settle(taken, OK, 0.0, 0.5, None)
    slots.rejoin(refused, 0.0, None)
    slots.pump(0.0, None)
    assert refused.permit is not None
    assert fresh.permit is None


def test_a_call_is_priced_when_it_comes_to_the_head_by_what_was_learned_until_then(
    slots: KeyQueue, taken: Permit
) -> None:
    priced: list[float] = []

    def price(estimate: CostEstimator) -> Cost:
        priced.append(estimate.mean_output)
        return Cost()

    first, second = waiter(), PricedWaiter(StubWaker, 0, price)
    second.deadline = 3600.0
    slots.enqueue(first, 0.0, None)
    slots.enqueue(second, 0.0, None)
    assert priced == []
    slots.admission.estimate.learn(RequestFacts(), Usage(output_tokens=5000))
    free(slots, taken)
    slots.pump(0.0, None)
    assert priced == [slots.admission.estimate.mean_output]


def test_a_call_that_never_waits_makes_no_waker(slots: KeyQueue) -> None:
    passing = waiter()
    slots.enqueue(passing, 0.0, None)
    assert passing.waker is None
    standing = waiter()
    slots.enqueue(standing, 0.0, None)
    assert isinstance(standing.waker, StubWaker)


def test_a_call_that_passed_and_was_refused_has_a_waker_when_it_returns(slots: KeyQueue) -> None:
    passing = waiter()
    slots.enqueue(passing, 0.0, None)
    slots.rejoin(passing, 0.0, None)
    assert isinstance(passing.waker, StubWaker)


def test_a_price_that_fails_is_nobody_elses_failure(slots: KeyQueue, taken: Permit) -> None:
    def failing(estimate: object) -> Cost:
        raise ZeroDivisionError

    broken = PricedWaiter(StubWaker, 0, failing)
    slots.enqueue(broken, 0.0, None)
    slots.admission.settle(taken, OK, 0.0, 0.5, None)
    slots.pump(0.0, None)
    assert broken.permit is not None
    slots.admission.settle(broken.permit, OK, 0.0, 0.5, None)
    assert slots.enter(failing, 0.0) is not None
