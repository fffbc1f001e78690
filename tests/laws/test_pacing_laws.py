"""What holds where no header paces: nothing grows idle, one cut a wave, a trial is alone, and everybody is served."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.effort import effort, some
from tests.laws.strategies import Caller, buckets, slots, world, worlds
from tests.laws.world import KEY, World
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.concurrency_limit import RAMP_DOUBLING_SECONDS
from tidegate.core.exchange import Ending
from tidegate.core.pacer import Pacer
from tidegate.core.pacer_phases import LEAST_CALLS_PER_SECOND
from tidegate.core.rate_meter import Burst, PacingBucket
from tidegate.core.values import INFINITY, Cause
from tidegate.settings import Settings
from tidegate.testing import Limit

quick = worlds.map(lambda facts: {**facts, "slowest": 0.5})
crowds = st.integers(60, 300).map(lambda count: [Caller(at=0.0) for _ in range(count)])
hidden = st.one_of(
    buckets(lowest=5),
    slots(),
    st.tuples(st.integers(5, 40), st.floats(0.0, 5.0), st.floats(0.0, 0.5)).map(
        lambda facts: Limit(limit=facts[0], window=1.0, shares=((facts[1], facts[2]), (facts[1] + 4.0, 1.0)))
    ),
)
generous = st.one_of(slots(5), st.integers(20, 60).map(lambda rate: Limit(limit=rate, window=1.0)))


def admission_of(played: World) -> AdmissionController:
    return played.registry._queues[KEY].admission


def silent(limit: Limit, made: list[Caller], facts: dict[str, float], **more: object) -> World:
    return world((limit,), made, facts, headers=False, hints=False, **more)


@given(hidden, crowds, quick)
def test_the_limit_and_the_pace_stay_in_their_bounds(limit: Limit, made: list[Caller], facts: dict[str, float]) -> None:
    played = silent(limit, made, facts, settings=Settings(max_concurrency=50))

    def watch(played: World) -> None:
        admission = admission_of(played)
        assert 1 <= admission.concurrency.limit <= 50
        assert admission.in_flight <= 50
        if admission.pacer.active:
            assert LEAST_CALLS_PER_SECOND <= admission.pacer.rate < 1e6

    played.watch = lambda played: watch(played) if KEY in played.registry._queues else None
    played.run()


@given(hidden, crowds, quick)
def test_everybody_is_served_whatever_became_of_the_capacity_meanwhile(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    played = silent(limit, made, facts)
    played.run()
    assert len(played.ended) == len(made)
    assert {ended.ending for ended in played.ended.values()} == {Ending.ANSWERED}


@given(st.integers(10, 50), st.floats(1.0, 3.0), st.floats(1.0, 30.0), quick)
@example(40, 2.0, 2.0, {"seed": 22, "network": 0.05, "slowest": 0.5})
@example(10, 1.0, 1.5, {"seed": 1, "network": 0.05, "slowest": 0.5})
@example(20, 2.0, 20.0, {"seed": 1, "network": 0.05, "slowest": 0.5})
@example(10, 1.5, 6.0, {"seed": 2, "network": 0.05, "slowest": 0.5})
@example(10, 1.5, 7.0, {"seed": 135, "network": 0.05, "slowest": 0.5})
@example(10, 1.5, 23.0, {"seed": 21, "network": 0.05, "slowest": 0.5})
def test_capacity_that_collapsed_is_in_use_again_soon_after_it_came_back(
    rate: int, at: float, lasts: float, facts: dict[str, float]
) -> None:
    limit = Limit(limit=rate, window=1.0, shares=((at, 0.0), (at + lasts, 1.0)))
    count = int(rate * (at + 10))
    played = silent(limit, [Caller(at=0.0) for _ in range(count)], facts)
    played.run()
    # What is left by the collapse takes ten seconds at the full rate. The silence may be taken for that of a window, or
    # of a limit on growth, which is refuted after two such silences.
    assert played.makespan <= at + lasts + 10.0 + 2.0 * lasts + 10.0


@given(
    st.one_of(slots(5), st.integers(20, 60).map(lambda rate: Limit(limit=rate, window=1.0))), quick, st.integers(1, 3)
)
def test_a_client_that_asks_for_little_makes_nothing_grow(limit: Limit, facts: dict[str, float], at_once: int) -> None:
    busy = [Caller(at=0.0) for _ in range(100)]
    calm = [Caller(at=200.0 + number) for number in range(60) for _ in range(at_once)]
    played = silent(limit, busy + calm, facts)
    played.run(until=199.0)
    admission = admission_of(played)
    before = (admission.concurrency.limit, admission.pacer.rate, admission.latency_knee.useful)
    played.run()
    refused = any(not attempt.admitted for attempt in played.attempts if attempt.at > 199.0)
    assume(not refused)
    after = (admission.concurrency.limit, admission.pacer.rate, admission.latency_knee.useful)
    assert all(now <= then for now, then in zip(after, before, strict=True))


@given(slots(), crowds, quick)
def test_one_more_than_the_ceiling_is_tried_by_one_attempt_at_a_time(
    limit: Limit, made: list[Caller], facts: dict[str, float]
) -> None:
    played = silent(limit, made, facts)
    tried: list[float] = []
    seen, ceiling, changed_at = 0, INFINITY, 0.0

    def watch(played: World) -> None:
        nonlocal seen, ceiling, changed_at
        if ceiling != admission_of(played).concurrency.ceiling:
            ceiling, changed_at = admission_of(played).concurrency.ceiling, played.now
        # Those admitted at the instant of the change may have come before it.
        new = [each for each in played.sends[seen:] if each.permit.sent_at > changed_at]
        tried.extend(each.at for each in new if each.permit.in_flight > ceiling)
        seen = len(played.sends)

    played.watch = watch
    played.run()
    assert all(later - earlier >= RAMP_DOUBLING_SECONDS - 1e-9 for earlier, later in pairwise(tried))


@pytest.mark.parametrize("network", some([0.001, 0.05], [0.005]))
@pytest.mark.parametrize("held", some([2, 12, 40], [5, 25]))
def test_a_server_with_so_many_slots_is_filled_and_seldom_overrun(held: int, network: float) -> None:
    """The median of several seeds: by chance, answers in the first round are taken for other numbers of slots."""
    more = []
    for seed in range(effort(4, 8)):
        made = [Caller(at=0.0) for _ in range(60 + 30 * seed)]
        facts = {"seed": seed, "network": network, "slowest": 0.5}
        played = silent(Limit(kind="slots", limit=held), made, facts)
        played.run()
        assert played.peak == held
        more.append(sum(not attempt.admitted for attempt in played.attempts) - played.makespan)
    assert median(more) <= 12 + 600.0 * network


rates = st.floats(LEAST_CALLS_PER_SECOND, 1000.0)
waits = st.floats(0.0, 60.0)
bucket_steps = st.lists(
    st.one_of(
        st.tuples(st.just("pace"), rates),
        st.tuples(st.just("refused"), st.just(0.0)),
        st.tuples(st.just("alone"), waits),
        st.tuples(st.just("held"), waits),
        st.tuples(st.just("sent"), st.floats(0.0, 2.0)),
        st.tuples(st.just("time"), waits),
    ),
    max_size=30,
)


@given(rates, bucket_steps)
@example(200.0, [("alone", 1.0), ("pace", LEAST_CALLS_PER_SECOND)])
def test_no_call_waits_longer_than_the_pace_and_the_waits_that_were_asked_for(
    rate: float, steps: list[tuple[str, float]]
) -> None:
    spacing, now, asked = PacingBucket(), 0.0, 0.0
    spacing.set_rate(rate, now)
    spacing.ready(1.0, now)
    for step, value in steps:
        if step == "pace":
            spacing.set_rate(value, now)
        elif step == "time":
            now += value
        elif step == "sent":
            now = spacing.opens_at(now)
            spacing.grace = value
            asked = max(asked, now + value)
            spacing.sent(INFINITY, now)
        else:
            spacing.emptied(now)
            if step != "refused":
                (spacing.wait_alone if step == "alone" else spacing.hold_off)(value)
                asked = max(asked, now + value)
        assert spacing.opens_at(now) <= max(now, asked) + 1.0 / spacing.rate + 1e-6


@given(st.integers(0, 100_000))
@example(323)
@example(2310)
def test_no_call_waits_for_more_than_a_minute_and_one_call_at_the_pace(seed: int) -> None:
    """A minute is the most that the pacer asks for. The limit counts units; some calls cost many of them."""
    draw = random.Random(seed)
    rate, size = draw.uniform(0.1, 20.0), draw.uniform(1.0, 300.0)
    costs = [(draw.choice([1, 30, 100]) if draw.random() < 0.2 else 1) for _ in range(300)]
    pacer, now, level, at = Pacer(), 0.01, 0.0, 0.0
    pacer.begin(Burst(draw.randint(1, 60), 0.2), 0.0, now, Cause.RATE, 0.03)
    for cost in costs:
        opens = pacer.spacing.opens_at(now)
        assert opens - now <= 1.0 / LEAST_CALLS_PER_SECOND + 1.0 / pacer.rate + 1e-6
        mark = pacer.mark
        pacer.sent(opens)
        level, at, now = min(size, level + rate * (opens - at)), opens, opens
        if level >= cost:
            level -= cost
        else:
            now += 0.01
            pacer.refused(mark, opens, now, True, Cause.RATE, 0.03)
