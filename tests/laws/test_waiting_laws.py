"""What a snapshot says of those who wait comes true, where nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import KEY as HERE
from tests.core.values import OK, PricedWaiter, StubWaker, answer, bucket, fixed, refusal
from tests.laws.strategies import Caller, buckets, callers, slots, world, worlds
from tests.laws.world import KEY, World
from tidegate.admission.key_queue import KeyQueue
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.snapshot import KeySnapshot
from tidegate.core.values import Cost, Outcome
from tidegate.settings import Settings
from tidegate.testing import Limit, Scenario

units = st.integers(0, 50).map(float)
teachings = st.one_of(
    st.builds(lambda left: answer(bucket(50.0, left)), units),
    st.builds(lambda left, reset: answer(fixed(50.0, left, reset_after=reset)), units, st.integers(1, 60).map(float)),
    st.builds(lambda hint: refusal(hint), st.integers(1, 30).map(float)),
    st.builds(lambda left, hint: refusal(hint, bucket(50.0, left)), units, st.integers(1, 30).map(float)),
    st.just(OK),
)


@given(st.lists(teachings, min_size=1, max_size=6), st.integers(1, 60).map(float), st.integers(0, 40).map(float))
def test_the_head_goes_when_the_snapshot_said_and_not_before(
    taught: list[Outcome], amount: float, later: float
) -> None:
    place = KeyQueue(AdmissionController(HERE, Settings(), 60.0, 0.0))
    for number, outcome in enumerate(taught):
        permit = place.admission.admit(Cost(), float(number), 0.0, None)
        place.admission.settle(permit, outcome, number + 0.5, 0.5, None)
    now = len(taught) + later
    head = PricedWaiter(StubWaker, price=lambda estimate: Cost(requests=amount))
    head.bind_queue(place)
    place.enqueue(head, now, None)
    seen = place.snapshot(now)
    if head.permit is not None:
        assert (seen.waiting, seen.eta) == (0, 0.0)
        return
    assert seen.gate
    place.pump(seen.ready_at - 0.03, None)  # a window's boundary is guarded by 20 ms
    assert seen.ready_in <= 0.03 or head.permit is None
    place.pump(seen.ready_at + 1e-6, None)
    assert head.permit is not None


@given(st.lists(st.integers(1, 400), min_size=1, max_size=80), st.integers(0, 2))
def test_the_mean_cost_is_that_of_those_who_wait(tokens: list[int], priority: int) -> None:
    place = KeyQueue(AdmissionController(HERE, Settings(max_concurrency=1), 60.0, 0.0))
    place.admission.admit(Cost(), 0.0, 0.0, None)
    for number, weight in enumerate(tokens):
        waiter = PricedWaiter(StubWaker, number % (priority + 1), _weighing(weight))
        waiter.bind_queue(place)
        place.enqueue(waiter, 0.0, None)
    assert abs(place.mean_cost().tokens - sum(tokens) / len(tokens)) < 1e-6


def _weighing(tokens: int):
    def price(estimate: CostEstimator) -> Cost:
        return Cost(tokens=tokens)

    return price


def foreseen(world: World, at: float) -> tuple[KeySnapshot, float]:
    """What is seen at an instant, and when the last of those who waited then was let through."""
    seen: list[tuple[KeySnapshot, set[int]]] = []

    def look() -> None:
        waiting = {row for row, call in world.calls.items() if call.standing}
        seen.append((world.registry.snapshot().keys[KEY], waiting))

    world.after(at, look)
    world.run()
    state, waiting = seen[0]
    return state, max((each.at for each in world.sends if each.row in waiting and each.at >= at), default=at)


@given(buckets(lowest=10), st.integers(20, 150), st.sampled_from([0.1, 0.5, 2.0]), st.integers(1, 10))
def test_the_end_of_a_queue_at_an_announced_quota_is_foreseen(
    limit: Limit, count: int, latency: float, moment: int
) -> None:
    world = World(Scenario(limiters=(limit,)), latency=lambda draw: latency)
    for row in range(count):
        world.call(row)
    at = latency + 0.02 + moment * limit.window / 10
    state, last = foreseen(world, at)
    assert state.eta is not None
    interval = limit.window / limit.limit
    # Of a first round a few are in doubt: they may have been overtaken, and stay charged until later answers tell.
    assert abs(at + state.eta - last) <= 0.05 * (last - at) + 6 * interval + latency


@given(st.integers(1000, 5000), st.lists(st.integers(10, 400), min_size=60, max_size=150), st.sampled_from([1.0, 10.0]))
def test_the_end_of_a_queue_at_a_token_quota_is_foreseen(limit: int, tokens: list[int], window: float) -> None:
    world = World(Scenario(limiters=(Limit(limit=limit, window=window, unit="tokens"),)), latency=lambda draw: 0.2)
    for row, weight in enumerate(tokens):
        world.call(row, tokens=weight)
    at = 0.3 + window / 10
    state, last = foreseen(world, at)
    assert state.eta is not None
    assert abs(at + state.eta - last) <= 0.1 * (last - at) + 1000 * window / limit


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(slots(), st.integers(2, 150), st.sampled_from([0.2, 1.0]))
def test_the_end_of_a_queue_at_a_fixed_number_of_slots_is_foreseen(limit: Limit, count: int, latency: float) -> None:
    most = int(limit.limit)
    world = World(
        Scenario(limiters=(limit,)),
        latency=lambda draw: latency,
        settings=Settings(max_concurrency=most),
    )
    for row in range(count):
        world.call(row)
    at = latency + 0.05
    state, last = foreseen(world, at)
    assert state.eta is not None
    assert abs(at + state.eta - last) <= latency + 0.05


@pytest.mark.parametrize("rate", [5.0, 20.0])
@pytest.mark.parametrize("latency", [0.1, 0.5])
def test_the_end_of_a_queue_at_a_rate_nobody_announced_is_foreseen(rate: float, latency: float) -> None:
    """A pace binds; without it the snapshot would say what the slots alone allow, a half or less of the time."""
    limit = Limit(limit=rate, window=1.0, burst=5)
    world = World(Scenario(limiters=(limit,)), latency=lambda draw: latency, headers=False, hints=False)
    for row in range(int(rate * 60)):
        world.call(row)
    state, last = foreseen(world, 30.0)
    assert (state.gate, state.eta_gate) == ("pace", "pace")
    assert state.eta is not None
    assert abs(30.0 + state.eta - last) <= 0.2 * (last - 30.0)


@given(st.one_of(buckets(), slots()), callers(patient=False), worlds)
def test_permits_are_conserved_and_the_snapshot_counts_them(
    limit: Limit, made: list[Caller], given: dict[str, float]
) -> None:
    def look(played: World) -> None:
        state = played.registry.snapshot().keys.get(KEY)
        if state is None:
            return
        ended = state.answered + state.refused + state.failed + state.abandoned
        assert state.in_flight == state.attempts - ended >= 0
        assert (state.eta == 0.0) if not state.waiting else (state.eta is None or state.eta >= 0.0)
        assert state.eta_gate or state.eta == 0.0

    played = world((limit,), made, given, watch=look)
    played.run()
    look(played)
    left = played.registry.snapshot()
    assert (left.in_flight, left.waiting) == (0, 0)
