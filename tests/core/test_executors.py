"""Event loops and threads that do not run, in virtual time: they are passed over, and keep their places."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from tests.core.scene import Scene
from tests.core.values import KEY, OK, PricedWaiter, answer, bucket, refusal
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

pytestmark = pytest.mark.constants(START_CONCURRENCY=8)


class Loop:
    """An event loop, or a thread; `blocks` is the thread's own where it blocks its loop."""

    def __init__(self, thread: int, *, blocks: bool = False, own: bool = True) -> None:
        self.loop: object = self if own else None
        self.thread = thread
        self.blocks = blocks
        self.rung = 0
        self.armed = 0
        self.closed = False
        self.callbacks: list[Callable[[], object]] = []

    def wake(self) -> bool:
        self.rung += 1
        return True

    def arm(self, until: float) -> bool:
        self.armed += 1
        return True

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.callbacks.append(callback)

    def run(self) -> int:
        """Run what was scheduled; return how many callbacks that were."""
        callbacks, self.callbacks = self.callbacks, []
        for each in callbacks:
            each()
        return len(callbacks)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> RateLimitRegistry:
    return make(clock, 1)


def make(clock: VirtualClock, slots: int) -> RateLimitRegistry:
    settings = Settings(max_concurrency=slots)
    return RateLimitRegistry(settings, clock=clock, draw=lambda: 0.5)


def taken(registry: RateLimitRegistry) -> Permit:
    permit = registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    return permit


def come(registry: RateLimitRegistry, loop: Loop, deadline: float = 3600.0, priority: int = 0) -> Waiter:
    made = PricedWaiter(lambda: loop, priority, lambda estimate: Cost())
    made.deadline = deadline
    made.permit = registry.enqueue(made, KEY, 60.0)
    return made


def stood(registry: RateLimitRegistry, loop: Loop, **facts: float) -> Waiter:
    made = come(registry, loop, **facts)  # type: ignore[arg-type]
    assert made.permit is None
    return made


def thread(number: int, blocks: bool = False) -> Loop:
    return Loop(number, blocks=blocks, own=False)


def patience() -> float:
    """Seconds after which another executor looks whether a permit was taken."""
    registry = make(VirtualClock(), 1)
    first = taken(registry)
    stood(registry, thread(1))
    other = stood(registry, thread(2))
    registry.settle(first, OK)
    return other.until - registry.clock()


PATIENCE = patience()


def test_permit_not_taken_in_time_is_taken_back_before_another_is_given(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    first = taken(registry)
    stopped, other = stood(registry, thread(1)), stood(registry, thread(2))
    registry.settle(first, OK)
    given = stopped.permit
    assert given is not None
    assert 0.0 < PATIENCE <= 1.0
    clock.advance(PATIENCE)
    permit = registry.poll(other)
    assert permit is not None
    assert given.settled
    assert (registry.snapshot().in_flight, registry.snapshot().waiting) == (1, 1)


def test_permit_is_left_where_nobody_else_waits_who_runs(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    first = taken(registry)
    loop = Loop(1)
    slow, behind = stood(registry, loop), stood(registry, loop)
    registry.settle(first, OK)
    clock.advance(60.0)
    assert registry.poll(behind) is None
    assert registry.poll(slow) is not None


def test_thread_that_goes_on_as_it_is_passed_over_holds_a_permit_or_stands(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    """Whichever of the two comes first under the lock, each permit is used once."""
    for early in (True, False):
        first = taken(registry)
        stopped, other = stood(registry, thread(1)), stood(registry, thread(2))
        registry.settle(first, OK)
        clock.advance(PATIENCE)
        order = [stopped, other] if early else [other, stopped]
        permits = [registry.poll(each) for each in order]
        assert [permit is not None for permit in permits] == [True, False]
        assert order[1].is_queued
        registry.settle(permits[0], OK)  # type: ignore[arg-type]
        last = registry.poll(order[1])
        assert last is not None
        registry.settle(last, OK)
    assert (registry.snapshot().in_flight, registry.snapshot().waiting) == (0, 0)


def test_stopped_head_keeps_its_place_and_goes_first_when_it_runs_again(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    first = taken(registry)
    stopped, other, last = (stood(registry, thread(number)) for number in (1, 2, 3))
    registry.settle(first, OK)
    clock.advance(PATIENCE)
    permit = registry.poll(other)
    assert permit is not None
    assert registry.poll(stopped) is None
    registry.settle(permit, OK)
    assert stopped.permit is not None
    assert last.permit is None


def test_clock_of_a_head_that_does_not_look_is_kept_by_another(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    """The debugger has stopped the thread that holds the timer: the next one looks, and the permit is not taken."""
    registry.settle(taken(registry), refusal(5.0))
    stopped, other = stood(registry, thread(1)), stood(registry, thread(2))
    assert looked(registry, clock, other, seconds=5.0 + 3 * PATIENCE) is other
    assert 5.0 <= clock() <= 5.5 + 2 * PATIENCE
    assert stopped.permit is None


def test_stalled_loop_of_many_calls_is_passed_over_once(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    """Ten thousand calls of a blocked loop stand first: others lose a second once, and no time per call."""
    first, loop, running = taken(registry), Loop(1), Loop(2)
    for _ in range(10_000):
        stood(registry, loop)
    others = [stood(registry, running) for _ in range(50)]
    registry.settle(first, OK)
    clock.advance(PATIENCE)
    rung = loop.rung
    for each in others:
        permit = registry.poll(each)
        assert permit is not None
        registry.settle(permit, OK)
    assert loop.rung - rung <= 2
    assert registry.snapshot().waiting >= 9_999


def test_all_permits_of_a_stalled_loop_are_taken_back_and_charge_nothing(clock: VirtualClock) -> None:
    registry = make(clock, 5)
    permits = [taken(registry) for _ in range(5)]
    stalled, running = Loop(1), Loop(2)
    waiting = [stood(registry, stalled) for _ in range(5)]
    others = [stood(registry, running) for _ in range(5)]
    for permit in permits:
        registry.settle(permit, OK)
    assert all(each.permit is not None for each in waiting)
    attempts = registry.snapshot().attempts
    clock.advance(PATIENCE)
    assert registry.poll(others[0]) is not None
    assert all(each.permit is None and each.is_queued for each in waiting)
    assert all(each.permit is not None for each in others[1:])
    assert registry.snapshot().attempts == attempts


def test_loop_busy_for_less_than_the_patience_loses_no_turn(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    first = taken(registry)
    busy, other = stood(registry, Loop(1)), stood(registry, Loop(2))
    registry.settle(first, OK)
    clock.advance(0.2)
    assert registry.poll(other) is None
    assert registry.poll(busy) is not None


def test_call_that_comes_passes_a_line_of_stalled_calls(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    first = taken(registry)
    stalled, other = Loop(1), stood(registry, Loop(2))
    for _ in range(3):
        stood(registry, stalled)
    registry.settle(first, OK)
    permit = registry.poll(other)
    assert permit is not None
    registry.settle(permit, OK)
    clock.advance(PATIENCE)
    assert come(registry, thread(9)).permit is not None


def test_runner_that_asks_gets_what_a_stalled_loop_does_not_take(
    registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    first = taken(registry)
    stood(registry, Loop(1))
    registry.settle(first, OK)
    answer = registry.try_admit(KEY)
    assert isinstance(answer, NotReady)
    assert answer.ready_at == pytest.approx(PATIENCE)
    clock.advance(PATIENCE)
    assert isinstance(registry.try_admit(KEY), Permit)


@pytest.mark.parametrize("first", [False, True], ids=["behind a thread", "behind its loop"])
def test_blocking_call_on_a_loop_goes_beyond_full_slots_at_once(registry: RateLimitRegistry, first: bool) -> None:
    held = taken(registry)
    earlier = stood(registry, Loop(7) if first else thread(8))
    blocking = come(registry, thread(7, blocks=True))
    assert blocking.permit is not None
    assert registry.snapshot().in_flight == 2
    registry.settle(blocking.permit, OK)
    assert earlier.permit is None
    registry.settle(held, OK)
    assert registry.poll(earlier) is not None


def test_loop_that_a_call_blocks_is_told_to_look_when_it_runs_again(registry: RateLimitRegistry) -> None:
    registry.settle(taken(registry), refusal(5.0))
    loop = Loop(7)
    for _ in range(3):
        stood(registry, loop)
    rung = loop.rung
    stood(registry, thread(7, blocks=True))
    assert loop.rung == rung + 1


def test_blocking_call_on_a_loop_respects_the_pause(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    registry.settle(taken(registry), refusal(5.0))
    stood(registry, Loop(7))
    blocking = stood(registry, thread(7, blocks=True))
    assert looked(registry, clock, blocking, seconds=5.5) is blocking
    assert clock() >= 5.0


def test_pace_of_a_permit_taken_back_is_returned(clock: VirtualClock) -> None:
    registry = make(clock, 8)
    admission = registry._queue_of(KEY, 60.0, 0.0).admission
    registry.settle(taken(registry), refusal())
    assert admission.pacer.active
    clock.advance(600.0)
    opened = admission.ready_at(Cost(), clock())
    permit = taken(registry)
    assert admission.ready_at(Cost(), clock()) > opened
    registry.withdraw(permit)
    assert admission.ready_at(Cost(), clock()) == opened


def test_fork_forgets_permits_that_were_given_and_not_taken(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    first = taken(registry)
    stood(registry, Loop(1))
    stood(registry, Loop(2))
    registry.settle(first, OK)
    registry.before_fork()
    registry.after_fork_in_child()
    clock.advance(60.0)
    assert come(registry, thread(3)).permit is not None
    assert registry.snapshot().waiting == 0


def test_calls_of_one_loop_set_no_timers_for_each_other(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    """Nobody watches where only one executor waits: the timers are those of the head alone."""
    permit, loop = taken(registry), Loop(1)
    waiting = [stood(registry, loop) for _ in range(20)]
    armed = loop.armed
    for each in waiting:
        registry.settle(permit, OK)
        permit = registry.poll(each)  # type: ignore[assignment]
        assert permit is not None
    assert loop.armed - armed <= len(waiting)


def test_threads_that_run_seldom_look_for_the_sake_of_others(clock: VirtualClock) -> None:
    """A slot is freed each 10 ms for a second: the waiting threads are woken once each, and a few times to watch."""
    registry = make(clock, 1)
    permit, threads = taken(registry), [thread(number) for number in range(1, 201)]
    waiting = [stood(registry, each) for each in threads]
    looks = 0
    for number, each in enumerate(waiting[:100]):
        clock.advance(0.01)
        for other in waiting[number + 1 :]:
            if other.until is not None and other.until <= clock():
                looks += 1
                registry.poll(other)
        registry.settle(permit, OK)
        permit = registry.poll(each)  # type: ignore[assignment]
        assert permit is not None
    assert sum(each.rung for each in threads) == 100
    assert sum(each.armed for each in threads) + looks <= 30


def test_call_behind_an_expensive_one_of_a_loop_that_is_blocked_goes_at_once(clock: VirtualClock) -> None:
    """The expensive call waits for its tokens; who blocks its loop lets the cheap one pass."""
    registry, blocked, running = make(clock, 2), Loop(1), Loop(2)
    registry.settle(taken(registry), answer(bucket(100_000.0, 1000.0, name="tokens", unit="tokens")))
    expensive = PricedWaiter(lambda: blocked, 0, lambda estimate: Cost(tokens=50_000.0))
    cheap = PricedWaiter(lambda: running, 0, lambda estimate: Cost(tokens=10.0))
    for each in (expensive, cheap):
        each.deadline = 3600.0
        assert registry.enqueue(each, KEY, 60.0) is None
    blocking = PricedWaiter(lambda: thread(1, blocks=True), 0, lambda estimate: Cost(tokens=90_000.0))
    blocking.deadline = 3600.0
    registry.enqueue(blocking, KEY, 60.0)
    assert looked(registry, clock, cheap, seconds=0.0) is cheap or cheap.permit is not None


def sent_by(registry: RateLimitRegistry, loop: Loop) -> Permit:
    """The permit of an attempt that an event loop has under way."""
    permit = taken(registry)
    permit.thread, permit.loop = loop.thread, loop
    return permit


def looked(registry: RateLimitRegistry, clock: VirtualClock, *waiters: Waiter, seconds: float = 2.0) -> Waiter | None:
    """Let those that wait look when their time has come; return the first that has a permit within `seconds`."""
    end = clock() + seconds
    while (due := min((each.until for each in waiters if each.until is not None), default=end + 1.0)) <= end:
        clock.advance(max(0.0, due - clock()))
        for each in waiters:
            if each.until is not None and each.until <= clock() and registry.poll(each) is not None:
                return each
    clock.advance(max(0.0, end - clock()))
    return None


@pytest.mark.parametrize("queued", [0, 2], ids=["alone", "before it"])
@pytest.mark.parametrize("closed", [False, True], ids=["blocked", "closed"])
def test_slot_of_a_loop_that_does_not_run_is_not_waited_for(
    registry: RateLimitRegistry, clock: VirtualClock, queued: int, closed: bool
) -> None:
    """As where a loop's own thread waits for a worker thread, whose call has to wait for the loop's attempts."""
    loop, began = Loop(1), clock()
    held = sent_by(registry, loop)
    own = [stood(registry, loop) for _ in range(queued)]
    loop.closed = closed
    other = stood(registry, thread(2))
    assert looked(registry, clock, other) is other
    assert clock() - began <= 3 * PATIENCE
    assert [each.permit for each in own] == [None] * queued
    # It runs again: its attempt ends, and its calls go, each in its turn.
    loop.run()
    assert registry.snapshot().in_flight == 2
    registry.settle(held, OK)
    later = stood(registry, thread(3))
    assert registry.poll(later) is None


@pytest.mark.parametrize("other", [thread, Loop], ids=["threads", "loops"])
def test_calls_beyond_the_slots_of_a_blocked_loop_go_one_at_a_time(
    registry: RateLimitRegistry, clock: VirtualClock, other: Callable[[int], Loop]
) -> None:
    """The first waits until the loop is known not to run, and the second only for the first."""
    held = sent_by(registry, Loop(1))
    executor = other(2)
    first, second = stood(registry, executor), stood(registry, executor if executor.loop else other(3))
    assert looked(registry, clock, first, second) is first
    permit = taken_by(first)
    permit.loop = executor.loop
    assert looked(registry, clock, second) is None
    registry.settle(permit, OK)
    assert registry.poll(second) is not None
    registry.settle(held, OK)
    assert registry.snapshot().in_flight == 1


def test_slot_of_a_loop_that_runs_is_waited_for(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    loop = Loop(1)
    sent_by(registry, loop)
    other, asked = stood(registry, thread(2)), 0
    for _ in range(40):
        assert looked(registry, clock, other, seconds=0.1) is None
        asked += loop.run()
    # It is asked now and then, not at each look.
    assert 0 < asked <= 4.0 / PATIENCE


def test_loop_that_runs_again_has_its_attempts_counted(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    loop = Loop(1)
    held = sent_by(registry, loop)
    other = stood(registry, thread(2))
    assert looked(registry, clock, other) is other
    registry.settle(taken_by(other), OK)
    loop.run()
    assert stood(registry, thread(3)).is_queued
    registry.settle(held, OK)


@pytest.mark.parametrize("closed", [False, True], ids=["blocked", "closed"])
def test_loop_is_let_go_when_its_attempts_have_ended(
    registry: RateLimitRegistry, clock: VirtualClock, closed: bool
) -> None:
    """A ledger holds the charges of ended attempts for a window, and a loop that was closed never answers a probe."""
    loop = Loop(1)
    loop.closed = closed
    held = sent_by(registry, loop)
    other = stood(registry, thread(2))
    assert looked(registry, clock, other) is other
    registry.settle(held, OK)
    registry.settle(taken_by(other), OK)
    freed = weakref.ref(loop)
    loop.callbacks.clear()
    del loop
    gc.collect()
    assert freed() is None
    assert held.settled


def taken_by(waiter: Waiter) -> Permit:
    """The newest permit of a key: that of a call that has just looked."""
    permit: Permit = list(waiter.queue.admission.permits_in_flight.values())[-1]
    return permit


def test_attempts_of_threads_are_waited_for_without_a_timer(registry: RateLimitRegistry) -> None:
    """A thread that sends is blocked by its attempt alone, which has a time limit of its own."""
    taken(registry)
    assert stood(registry, thread(2)).until == 3600.0


def test_attempts_of_their_own_loop_are_waited_for_without_a_timer(registry: RateLimitRegistry) -> None:
    loop = Loop(1)
    sent_by(registry, loop)
    waiting = [stood(registry, loop) for _ in range(2)]
    assert [each.until for each in waiting] == [3600.0, None]
    assert loop.callbacks == []


def test_refusal_beyond_the_slots_of_a_blocked_loop_is_waited_out_and_teaches_nothing(clock: VirtualClock) -> None:
    """The provider works on that loop's attempts yet: the call that blocks the loop waits a while."""
    registry, loop = make(clock, 2), Loop(1)
    held = [sent_by(registry, loop), sent_by(registry, loop)]
    call = come(registry, thread(1, blocks=True))
    assert call.permit is not None
    for _ in range(3):
        call.permit, call.is_unsent = None, False
        registry.settle(taken_by(call), refusal(None), rejoin=call)
        refused_at = clock()
        assert call.permit is None
        assert looked(registry, clock, call, seconds=4 * PATIENCE) is call
        assert clock() >= refused_at + PATIENCE
    registry.settle(taken_by(call), OK)
    for permit in held:
        registry.settle(permit, OK)
    (key,) = registry.snapshot().keys.values()
    assert (key.limit, key.refused, key.paused_for) == (2, 3, 0.0)
    assert not held[0].state.pacer.active


def interrupt(registry: RateLimitRegistry) -> None:
    """An interrupt of the program cuts a step of another key off; the next step finds out what the calls hold."""

    def cut(event: object) -> None:
        raise KeyboardInterrupt

    end = registry.subscribe(cut)
    with pytest.raises(KeyboardInterrupt):
        registry.execute(KEY._replace(scope="other"), lambda: None)
    end()
    registry.catch_up()


@pytest.mark.constants(START_CONCURRENCY=1)
def test_interrupt_takes_back_no_permit_under_which_an_attempt_runs() -> None:
    scene = Scene()
    first, late = scene.call(), scene.call(max_wait=1.0)
    scene.clock.advance(1.0)
    assert (first.state, late.poll()) == ("sent", "sent")
    interrupt(scene.registry)
    assert (first.reply(OK), late.reply(OK)) == ("ended", "ended")


def test_interrupt_loses_no_call_whose_permit_was_taken_back(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    first = taken(registry)
    stopped, other = stood(registry, thread(1)), stood(registry, thread(2))
    registry.settle(first, OK)
    clock.advance(PATIENCE)
    permit = registry.poll(other)
    assert permit is not None
    interrupt(registry)
    registry.settle(permit, OK)
    assert registry.poll(stopped) is not None
