"""What an earlier run learned is never worse than knowing nothing by more than one round, whatever has changed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import buckets, slots, windows
from tests.laws.world import KEY, World
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.saved_state import LearnedKey, LearnedState
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.core.saved_state import SavedQuota
from tidegate.settings import Settings
from tidegate.testing import Limit, Scenario

TODAY = datetime(2026, 11, 21, tzinfo=UTC)
LATENCY = 0.2
ROUND = LATENCY + 0.05 + 0.5
"""Seconds from the sending of a call to its answer, a little for the network, and as long as a first round opens."""


def played(limit: Limit, calls: int, state: LearnedState | None, age: float = 0.0, headers: bool = True) -> World:
    """A run of so many calls at once, which begins with a state, `age` seconds after it was taken."""
    world = World(Scenario(limiters=(limit,)), latency=lambda draw: LATENCY, seed=1, headers=headers, hints=headers)
    world.registry = RateLimitRegistry(
        Settings(initial_state=state),
        clock=lambda: world.now,
        draw=world.random.random,
        calendar=lambda: TODAY + timedelta(seconds=age),
    )
    for row in range(calls):
        world.call(row)
    world.run()
    assert len(world.ended) == calls
    return world


def refusals(world: World) -> int:
    return sum(1 for attempt in world.attempts if not attempt.admitted)


def at_first(state: LearnedState) -> float:
    """How many may be under way in a first round, with what the state knows or without it."""
    known = [each.gates.get("concurrency", {}).get("slots", 0.0) for each in state.keys]
    return max(float(START_CONCURRENCY), *known, 0.0)


def never_worse(limit: Limit, calls: int, state: LearnedState, age: float = 0.0) -> None:
    fresh, seeded = played(limit, calls, None), played(limit, calls, state, age)
    latest = 1.05 * fresh.makespan + ROUND + 2 * limit.window / max(1.0, limit.limit)
    if limit.kind == "fixed":
        # What goes a round later may miss its window: then it goes at the next boundary.
        latest = limit.offset + math.ceil((latest - limit.offset) / limit.window) * limit.window + LATENCY + 0.05
    assert seeded.makespan <= latest
    assert refusals(seeded) <= 1.05 * refusals(fresh) + min(calls, at_first(state)) + 2


@given(st.one_of(buckets(lowest=5), windows(lowest=5)), st.integers(5, 120), st.integers(0, 100).map(float))
def test_a_second_run_in_the_same_world_is_no_worse(limit: Limit, calls: int, age: float) -> None:
    first = played(limit, calls, None)
    never_worse(limit, calls, first.registry.export_state(), age)


@given(
    st.one_of(buckets(lowest=5), windows(lowest=5)),
    st.one_of(buckets(lowest=5), windows(lowest=5)),
    st.integers(5, 120),
    st.integers(0, 100).map(float),
)
def test_a_second_run_in_another_world_is_worse_by_a_round_at_most(
    before: Limit, now: Limit, calls: int, age: float
) -> None:
    never_worse(now, calls, played(before, calls, None).registry.export_state(), age)


@given(slots(), slots(), st.integers(5, 120))
def test_a_second_run_at_other_slots_is_worse_by_a_round_at_most(before: Limit, now: Limit, calls: int) -> None:
    never_worse(now, calls, played(before, calls, None).registry.export_state())


quotas = st.builds(
    SavedQuota,
    name=st.sampled_from(["requests", "day", "tokens"]),
    unit=st.sampled_from(["requests", "tokens"]),
    refill=st.sampled_from(["continuous", "fixed"]),
    limit=st.sampled_from([1.0, 10.0, 1e6]),
    window=st.sampled_from([1.0, 60.0, 86_400.0]),
    level=st.sampled_from([0.0, 1.0, 1e6]),
    back_in=st.sampled_from([None, 0.0, 86_400.0]),
    stated=st.booleans(),
    said=st.sampled_from(["continuous", "fixed"]),
)


@given(
    st.lists(quotas, max_size=3),
    st.sampled_from([None, 1.0, 7.0, 1000.0]),
    st.one_of(buckets(lowest=5), windows(lowest=5), slots()),
    st.integers(5, 80),
)
def test_whatever_a_state_says_it_costs_a_round_at_most(
    known: list[SavedQuota], allowed: float | None, limit: Limit, calls: int
) -> None:
    gates = {} if allowed is None else {"concurrency": {"slots": allowed}}
    plain = [quota._replace(level=min(quota.level, quota.limit))._asdict() for quota in known]
    key = LearnedKey(
        provider=KEY.provider, base_url=KEY.base_url, scope=KEY.scope, taken_on=TODAY, quotas=plain, gates=gates
    )
    never_worse(limit, calls, LearnedState(keys=(key,)))


@given(st.integers(10, 60), st.sampled_from([0.5, 1.0, 2.0]), st.integers(60, 200))
def test_a_pace_that_was_found_is_no_worse_where_the_rate_is_another(rate: int, times: float, calls: int) -> None:
    limit = Limit(limit=rate, window=1.0, burst=1.0)
    now = Limit(limit=max(1, int(rate * times)), window=1.0, burst=1.0)
    state = played(limit, calls, None, headers=False).registry.export_state()
    fresh, seeded = (played(now, calls, each, headers=False) for each in (None, state))
    # The pace is measured anew by its first rise: a second of holding, and what the rise takes.
    assert seeded.makespan <= 1.1 * fresh.makespan + 2.0
    assert refusals(seeded) <= 1.1 * refusals(fresh) + 6
    if times == 1.0:
        assert seeded.makespan <= fresh.makespan + 0.5
