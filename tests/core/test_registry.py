"""The registry's own duties, in virtual time: waking, finalizers, closed loops, forks, forgetting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.values import ABANDONED, KEY, OK, PricedWaiter, answer, bucket, refusal
from tidegate.admission.call import FunctionCall
from tidegate.admission.handoff import hand_off
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core import events
from tidegate.core.exchange import Ending, ExchangeResult, Resume, WaitUntil
from tidegate.core.values import Cost, Key, QuotaReading
from tidegate.errors import PermitMisuse
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

pytestmark = pytest.mark.constants(START_CONCURRENCY=2)


class StubWaker:
    """Rings, unless its loop is closed."""

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive
        self.rung = 0

    def wake(self) -> bool:
        self.rung += 1
        return self.alive

    def arm(self, until: float) -> bool:
        return self.wake()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> RateLimitRegistry:
    return RateLimitRegistry(Settings(max_concurrency=1), clock=clock, draw=lambda: 0.5)


def stand(registry: RateLimitRegistry, waker: StubWaker, cost: Cost | None = None, deadline: float = 3600.0) -> Waiter:
    made = PricedWaiter(lambda: waker, 0, lambda estimate: cost or Cost())
    made.deadline = deadline
    assert registry.enqueue(made, KEY, 60.0) is None
    return made


def in_flight(registry: RateLimitRegistry) -> int:
    return registry.snapshot().keys[KEY].in_flight


def test_permit_of_another_registry_is_refused_and_stays_its_own(registry: RateLimitRegistry) -> None:
    other = RateLimitRegistry(Settings())
    permit = other.try_admit(KEY)
    registry.try_admit(KEY)
    for step in (
        registry.withdraw,
        lambda permit: registry.settle(permit, OK),
        lambda permit: hand_off(registry, permit),
    ):
        with pytest.raises(PermitMisuse, match="another registry"):
            step(permit)
    assert in_flight(other) == 1
    other.settle(permit, OK)
    assert in_flight(other) == 0


@pytest.mark.constants(MAX_REGISTRY_KEYS=1)
def test_permit_of_a_key_that_was_forgotten_after_a_fork_is_settled_silently() -> None:
    registry = RateLimitRegistry(Settings())
    permit = registry.try_admit(KEY)
    registry.before_fork()
    registry.after_fork_in_child()
    registry.settle(registry.try_admit(KEY._replace(scope="other")), OK)
    assert KEY not in registry.snapshot().keys
    registry.settle(permit, OK)
    assert permit.settled


def started(clock: VirtualClock, calls: int) -> tuple[RateLimitRegistry, list[Waiter]]:
    """A busy program: in 10 ms each, so many calls come after the first two, and none of them runs."""
    registry = RateLimitRegistry(Settings(), clock=clock, draw=lambda: 0.5)
    assert all(registry.try_admit(KEY) for _ in range(2))
    waiting = []
    for _ in range(calls):
        waiting.append(stand(registry, StubWaker()))
        clock.advance(0.01)
    return registry, waiting


def test_a_round_hardly_opens_by_silence_while_whom_it_let_in_has_not_run(clock: VirtualClock) -> None:
    """A loop that is busy starting calls reads no refusals: that none came means nothing."""
    registry, waiting = started(clock, 100)
    held = in_flight(registry)
    taken = [registry.poll(each) for each in waiting if each.permit is not None]
    for _ in range(10):
        clock.advance(0.05)
        taken += [registry.poll(each) for each in waiting if each.is_queued or each.permit is not None]
    assert in_flight(registry) >= max(10, 2 * held), "once they run, it opens as always"


def test_one_that_never_runs_holds_up_the_others_for_a_moment_only(clock: VirtualClock) -> None:
    registry, waiting = started(clock, 20)
    assert [each.permit is not None for each in waiting].count(True) == 1
    assert clock() < waiting[1].until < clock() + 2.0
    clock.advance(waiting[1].until - clock())
    assert registry.poll(waiting[1]) is not None


def test_as_soon_as_one_has_run_the_round_opens_again(clock: VirtualClock) -> None:
    registry, waiting = started(clock, 20)
    assert registry.poll(waiting[0]) is not None
    assert waiting[1].until is None or waiting[1].until < clock() + 0.1
    clock.advance(0.1)
    assert registry.poll(waiting[1]) is not None


def test_a_call_that_leaves_with_what_it_was_given_holds_up_nobody(clock: VirtualClock) -> None:
    registry, waiting = started(clock, 20)
    registry.dequeue(waiting[0])
    clock.advance(0.1)
    assert registry.poll(waiting[1]) is not None


def test_asking_does_not_pass_one_who_stands_and_is_told_to_wait_as_long(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    registry.settle(registry.try_admit(KEY), answer(bucket(60.0, 0.0)))
    stand(registry, StubWaker(), Cost(requests=30.0))
    asked = registry.try_admit(KEY, Cost(requests=0.0))
    assert isinstance(asked, NotReady)
    assert asked.ready_at == pytest.approx(30.25)


def test_a_settled_permit_wakes_the_next(registry: RateLimitRegistry) -> None:
    permit, waker = registry.try_admit(KEY), StubWaker()
    waiting = stand(registry, waker)
    before = waker.rung
    registry.settle(permit, OK)
    assert waker.rung == before + 1
    assert registry.poll(waiting) is not None


def test_a_refused_call_stands_again_before_its_slot_is_given_to_anybody(registry: RateLimitRegistry) -> None:
    """What refused it need not hold up a smaller call: only its place does."""

    def told(remaining: float) -> QuotaReading:
        return QuotaReading("tokens", "tokens", "continuous", limit=1000.0, remaining=remaining, window=60.0)

    registry.settle(registry.try_admit(KEY), answer(told(1000.0)))
    refused = PricedWaiter(StubWaker, 0, lambda estimate: Cost(tokens=900.0))
    permit = registry.enqueue(refused, KEY, 60.0)
    assert permit is not None
    small = stand(registry, StubWaker(), Cost(tokens=1.0))
    registry.settle(permit, refusal(None, told(500.0)), refused)
    assert (refused.permit, small.permit) == (None, None)
    assert registry.snapshot().keys[KEY].gate == "quota tokens"


def test_a_place_given_up_with_its_permit_goes_to_the_next(registry: RateLimitRegistry) -> None:
    permit = registry.try_admit(KEY)
    first, second = stand(registry, StubWaker()), stand(registry, StubWaker())
    registry.settle(permit, OK)
    registry.dequeue(first)
    registry.catch_up()
    assert second.permit is not None or first.permit is None
    registry.dequeue(second)
    registry.dequeue(second)
    assert in_flight(registry) == 0


def test_calls_past_their_deadlines_leave_with_the_next_step(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    registry.try_admit(KEY)
    late = [stand(registry, StubWaker(), deadline=10.0) for _ in range(3)]
    clock.advance(11.0)
    stand(registry, StubWaker())
    assert registry.snapshot().waiting == 1
    assert not any(each.is_queued or each.permit for each in late)


def test_waiters_of_a_closed_loop_are_passed_over_however_many(registry: RateLimitRegistry) -> None:
    permit = registry.try_admit(KEY)
    for _ in range(2000):
        stand(registry, StubWaker(alive=False))
    alive = stand(registry, StubWaker())
    registry.settle(permit, OK)
    assert (registry.snapshot().waiting, in_flight(registry)) == (0, 1)
    assert registry.poll(alive) is not None


def in_the_snapshot(registry: RateLimitRegistry) -> None:
    registry.snapshot()


def in_asking(registry: RateLimitRegistry) -> None:
    registry.try_admit(KEY)


def in_standing(registry: RateLimitRegistry) -> None:
    registry.enqueue(Waiter(StubWaker, -1), KEY, 60.0)


@pytest.mark.constants(START_CONCURRENCY=1)
@pytest.mark.parametrize("busy", [in_the_snapshot, in_asking, in_standing])
def test_a_permit_dropped_while_the_registry_is_busy_comes_back(busy: Callable[[RateLimitRegistry], None]) -> None:
    """A garbage collection may run at any point, also with the lock held."""
    dropped: list[object] = []

    def clock() -> float:
        if dropping and not dropped:
            dropped.append(permit)
            registry.drop(permit)
        return 0.0

    dropping = False
    registry = RateLimitRegistry(Settings(), clock=clock, draw=lambda: 0.5)
    permit = registry.try_admit(KEY)
    waiting = stand(registry, StubWaker())
    dropping = True
    busy(registry)
    assert dropped
    assert waiting.permit is not None


def test_a_permit_dropped_by_nobody_in_particular_comes_back_at_once(registry: RateLimitRegistry) -> None:
    registry.drop(registry.try_admit(KEY))
    assert in_flight(registry) == 0


def test_a_permit_dropped_after_it_was_settled_changes_nothing(registry: RateLimitRegistry) -> None:
    permit = registry.try_admit(KEY)
    registry.settle(permit, OK)
    registry.drop(permit)
    assert (in_flight(registry), registry.snapshot().keys[KEY].abandoned) == (0, 0)


@pytest.mark.parametrize("ahead", [0.0, 0.002])
def test_a_call_whose_deadline_passes_between_two_looks_at_the_clock_ends(
    registry: RateLimitRegistry, clock: VirtualClock, ahead: float
) -> None:
    registry.try_admit(KEY)
    governed = FunctionCall(registry, KEY, lambda: None, None, None, None, None, 0.001, 0)
    assert governed.try_start() is None
    clock.advance(ahead)
    flow = governed.exchange(StubWaker, None, None)
    effect = next(flow)
    assert isinstance(effect, WaitUntil)
    assert effect.until is not None
    with pytest.raises(StopIteration) as stopped:
        flow.send(Resume(max(effect.until, clock.now)))
    ended: ExchangeResult = stopped.value.value
    assert ended.ending is Ending.EXPIRED


def test_after_a_fork_the_childs_slots_are_free_and_its_line_empty(registry: RateLimitRegistry) -> None:
    permit = registry.try_admit(KEY)
    parents = stand(registry, StubWaker())
    registry.after_fork_in_child()
    assert (in_flight(registry), registry.snapshot().waiting) == (0, 0)
    registry.settle(permit, OK)
    registry.dequeue(parents)
    assert in_flight(registry) == 0
    assert registry.try_admit(KEY)


@pytest.mark.constants(KEY_IDLE_SECONDS=10.0)
def test_idle_keys_are_forgotten_and_busy_ones_never(clock: VirtualClock) -> None:
    registry = RateLimitRegistry(Settings(), clock=clock)
    busy = registry.try_admit(Key("busy", "https://x"))
    registry.settle(registry.try_admit(Key("idle", "https://x")), OK)
    clock.advance(11.0)
    for number in range(3):
        registry.settle(registry.try_admit(Key(f"new{number}", "https://x")), OK)
    assert {key.provider for key in registry.snapshot().keys} == {"busy", "new0", "new1", "new2"}
    registry.settle(busy, OK)


def test_a_listener_that_fails_is_logged_and_goes_on(
    registry: RateLimitRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[events.Event] = []

    def failing(event: events.Event) -> None:
        heard.append(event)
        raise ValueError

    unsubscribe = registry.subscribe(failing)
    registry.settle(registry.try_admit(KEY), ABANDONED)
    assert [type(event) for event in heard] == [events.SlotAcquired, events.AttemptEnded, events.SlotReleased]
    assert "listener failed at SlotAcquired: ValueError was raised" in caplog.text
    unsubscribe()
    registry.settle(registry.try_admit(KEY), ABANDONED)
    assert len(heard) == 3


def test_a_price_that_fails_is_nobody_elses_failure(registry: RateLimitRegistry) -> None:
    def failing(estimate: object) -> Cost:
        raise ZeroDivisionError

    permit = registry.try_admit(KEY)
    broken = PricedWaiter(StubWaker, 0, failing)
    broken.deadline = 3600.0
    assert registry.enqueue(broken, KEY, 60.0) is None
    registry.settle(permit, OK)
    assert registry.poll(broken) is not None
    assert RateLimitRegistry().enter(PricedWaiter(StubWaker, 0, failing), KEY, 60.0) is not None
