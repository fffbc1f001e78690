"""What bound a run: the time in which calls waited, by the gate of the first of them, and the rest is the program's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.world import KEY, World
from tidegate.core.held_time import PROGRAM
from tidegate.core.snapshot import KeySnapshot
from tidegate.settings import Settings
from tidegate.testing import Limit, Scenario

LATENCY = 0.5


def played(scenario: Scenario, arrivals: list[float], settings: Settings | None = None) -> tuple[World, KeySnapshot]:
    world = World(scenario, settings, latency=lambda draw: LATENCY)
    for row, at in enumerate(arrivals):
        world.call(row, at=at)
    world.run()
    return world, world.registry.snapshot().keys[KEY]


def waited(world: World, arrivals: list[float]) -> float:
    """Return the seconds in which at least one call waited, by the provider's log of what was sent."""
    sent = {attempt.row: attempt.sent_at for attempt in world.attempts}
    total, covered = 0.0, 0.0
    for at, row in sorted((at, row) for row, at in enumerate(arrivals)):
        total += max(0.0, sent[row] - max(at, covered))
        covered = max(covered, sent[row])
    return total


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60), st.sampled_from([3.0, 20.0]))
def test_held_time_is_that_in_which_a_call_waited(arrivals: list[float], burst: float) -> None:
    first = min(arrivals)
    arrivals = [at - first for at in arrivals]
    world, state = played(Scenario(limiters=(Limit(kind="bucket", limit=120.0, window=60.0, burst=burst),)), arrivals)
    assert all(attempt.admitted for attempt in world.attempts)
    assert sum(state.held.values()) == pytest.approx(waited(world, arrivals), abs=1e-6)
    assert sum(each.share for each in state.binding) == pytest.approx(1.0)


def test_quota_binds_where_more_calls_wait_than_it_admits() -> None:
    _, state = played(Scenario(limiters=(Limit(kind="bucket", limit=120.0, window=60.0, burst=5.0),)), [0.0] * 60)
    assert state.binding[0].gate == "quota requests"
    assert state.binding[0].share > 0.9


def test_calls_at_once_bind_where_the_program_allows_two() -> None:
    _, state = played(Scenario(limiters=()), [0.0] * 30, Settings(max_concurrency=2))
    assert state.binding[0].gate == "concurrency"
    assert state.binding[0].share > 0.9


def test_program_binds_where_no_call_waits() -> None:
    _, state = played(Scenario(limiters=()), [2.0 * number for number in range(10)])
    assert (state.held, state.binding[0].gate, state.binding[0].share) == ({}, PROGRAM, 1.0)
