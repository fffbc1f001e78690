"""Event loops that stand still hold nobody up for long, keep their places, and leak nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.values import KEY, OK
from tests.laws.loops import LoopWorld
from tidegate.admission.wait_queue import UNTAKEN_SECONDS
from tidegate.core.exchange import Ending
from tidegate.core.limiter_state import Permit

pytestmark = pytest.mark.constants(START_CONCURRENCY=1000)

LOOPS = 5
HAIR = 1e-3

rows = st.integers(1, 30).flatmap(lambda count: st.lists(st.integers(0, LOOPS - 1), min_size=count, max_size=count))
spans = st.tuples(st.integers(0, 80), st.integers(1, 80)).map(lambda span: (span[0] / 10, (span[0] + span[1]) / 10))


def occupied(world: LoopWorld) -> Permit:
    permit = world.registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    return permit


def leaves_nothing(world: LoopWorld) -> None:
    key = world.registry.snapshot().keys[KEY]
    assert (key.in_flight, key.waiting) == (0, 0)
    assert world.registry._queues[KEY].admission.untaken == 0
    assert all(sending.permit.settled for sending in world.sends)


@example([1, 0, 1], {0}, 2, False)  # the only group that waits was given the first permit, and another the second
@given(rows, st.sets(st.integers(0, LOOPS - 1), max_size=LOOPS - 1), st.integers(1, 3), st.booleans())
def test_calls_of_running_loops_pass_stalled_loops_within_a_second_each(
    made: list[int], stalled: set[int], slots: int, paused: bool
) -> None:
    """All stand before the first may go; then those that run are admitted one after the other, in their order."""
    world = LoopWorld(LOOPS, slots)
    permits = [occupied(world) for _ in range(slots)]
    for row, loop in enumerate(made):
        world.call(row, loop)
    for loop in stalled:
        world.loops[loop].stops.append((1.0, math.inf))
    if paused:
        world.registry._queues[KEY].admission.pause.close(0.0, 2.0, False, 0.0, True)
        world.after(1.5, lambda: [world.registry.settle(permit, OK) for permit in permits])
    else:
        world.after(2.0, lambda: [world.registry.settle(permit, OK) for permit in permits])
    world.run()
    running = [row for row, loop in enumerate(made) if loop not in stalled]
    sends = sorted(world.sends, key=lambda sending: sending.permit.order)
    assert [sending.row for sending in sends] == running
    late = 2.0 + UNTAKEN_SECONDS * len(stalled) + HAIR
    for number, sending in enumerate(sends):
        assert sending.at <= late + (number // slots) * world.latency
    assert all(world.ended[row].ending is Ending.ANSWERED for row in running)
    left = world.registry._queues[KEY]
    assert left.waiting.count + left.admission.untaken == len(made) - len(running)


@given(rows, st.lists(st.tuples(st.integers(0, LOOPS - 1), spans), max_size=8), st.integers(1, 3))
def test_every_call_is_answered_when_its_loop_runs_again_and_nothing_is_left(
    made: list[int], stops: list[tuple[int, tuple[float, float]]], slots: int
) -> None:
    world = LoopWorld(LOOPS, slots, latency=0.4)
    for row, loop in enumerate(made):
        world.call(row, loop, at=row * 0.1)
    for loop, span in stops:
        world.loops[loop].stops.append(span)
    world.run()
    assert {row: ended.ending for row, ended in world.ended.items()} == dict.fromkeys(range(len(made)), Ending.ANSWERED)
    leaves_nothing(world)


@given(rows, st.integers(0, LOOPS - 1), st.integers(1, 30))
def test_a_stalled_loop_keeps_its_places_and_goes_first_when_it_runs_again(
    made: list[int], stalled: int, later: int
) -> None:
    """It comes back while the slot is taken: whatever of it still waits goes before those that came after it."""
    world = LoopWorld(LOOPS)
    permit = occupied(world)
    for row, loop in enumerate(made):
        world.call(row, loop)
    back = 3.0 + later
    world.loops[stalled].stops.append((1.0, back))
    world.after(2.0, lambda: world.registry.settle(permit, OK))
    world.run()
    sends = sorted(world.sends, key=lambda sending: sending.permit.order)
    after = [sending.row for sending in sends if sending.at > back + world.latency + HAIR]
    assert after == sorted(after)
    assert len(world.sends) == len(made)
    leaves_nothing(world)


@given(rows, st.sets(st.integers(0, LOOPS - 1), max_size=LOOPS - 1), st.lists(st.integers(1, 40), min_size=30))
def test_deadlines_of_running_loops_are_met_behind_stalled_ones(
    made: list[int], stalled: set[int], waits: list[int]
) -> None:
    """The slot is never free: each call of a loop that runs ends at its own deadline."""
    world = LoopWorld(LOOPS)
    occupied(world)
    for row, loop in enumerate(made):
        world.call(row, loop, max_wait=1.5 + waits[row] / 10)
    for loop in stalled:
        world.loops[loop].stops.append((1.0, math.inf))
    ended_at: dict[int, float] = {}
    world.finish_fast = lambda call: ended_at.setdefault(call.row, world.now)  # type: ignore[method-assign]
    world.run()
    for row, loop in enumerate(made):
        if loop not in stalled:
            assert world.ended[row].ending is Ending.EXPIRED
            assert abs(ended_at[row] - (1.5 + waits[row] / 10)) <= HAIR
