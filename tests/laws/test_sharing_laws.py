"""Several processes that share the log of a key are one: they hold one state, and what one process holds to."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.replica_play import REGIMES, Play, Regime, plain, replica_of
from tests.effort import effort, some
from tests.laws.sharing import SharedWorld, shared_world
from tests.laws.strategies import Caller, buckets, callers, slots, windows, worlds
from tests.laws.test_quota_laws import gone_unknown, refused_knowingly
from tests.laws.world import KEY
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.core.exchange import Ending
from tidegate.core.turns import PASSED_ROUNDS
from tidegate.core.values import Cost
from tidegate.shared_log.carrier import Entry
from tidegate.testing import Limit, Scenario

members = st.integers(2, 5)

limiters = st.one_of(
    st.tuples(),
    st.tuples(buckets()),
    st.tuples(windows()),
    st.tuples(slots()),
    st.tuples(buckets("tokens", 500, 5000), buckets()),
)


@given(st.sampled_from(REGIMES), st.integers(0, 2**16), members, st.integers(1, 400))
def test_any_interleaving_of_members_is_one_controller_fed_the_same_log(
    regime: Regime, seed: int, count: int, steps: int
) -> None:
    play = Play(regime, seed, members=count)
    play.run(steps)
    one = replica_of(99)
    for who, at, payload in play.log:
        one.replay(who, at, payload)
    found = []
    for each in [*play.replicas, one]:
        play.catch_up(each)
        each.controllers[""].ready_at(Cost(), play.clock)
        found.append(plain(each, play.clock))
    assert all(each == found[-1] for each in found)


def settled_everywhere(played: SharedWorld) -> None:
    """No live process holds a place, a slot or a reservation of an attempt that is over."""
    for admission in played.controllers():
        assert admission.permits_in_flight == {}
        assert admission.held == {}
        assert all(mirror.reserved == 0.0 for mirror in admission.quotas.mirrors.values())
    live = [each for each in played.sends if played.member_of(each.row) not in played.killed]
    assert all(sending.permit.settled for sending in live)


@given(limiters, callers(tokens=400, priorities=2), worlds, members, st.sampled_from([0.0, 0.01, 0.5]))
def test_every_call_that_stays_is_answered_at_any_member(
    limits: tuple[Limit, ...], made: list[Caller], facts: dict[str, float], count: int, lag: float
) -> None:
    played = shared_world(limits, made, facts, count, lag=lag)
    played.run()
    staying = {row for row, caller in enumerate(made) if caller.gone_after is None}
    assert staying <= set(played.ended)
    assert {played.ended[row].ending for row in staying} <= {Ending.ANSWERED}
    settled_everywhere(played)


@given(
    limiters,
    callers(tokens=400, stays=True),
    worlds,
    st.integers(3, 5),
    st.lists(st.floats(0.0, 10.0), max_size=2),
    st.booleans(),
)
def test_calls_of_live_members_are_answered_and_the_slots_of_the_dead_come_back(
    limits: tuple[Limit, ...],
    made: list[Caller],
    facts: dict[str, float],
    count: int,
    kills: list[float],
    headers: bool,
) -> None:
    played = shared_world(limits, made, facts, count, headers=headers, hints=headers)
    for member, at in enumerate(kills):
        played.kill(member, at)
    played.run()
    staying = {row for row in range(len(made)) if played.member_of(row) not in played.killed}
    assert staying <= set(played.ended)
    assert {played.ended[row].ending for row in staying} <= {Ending.ANSWERED}
    settled_everywhere(played)


def test_no_call_is_taken_for_one_that_never_fits_because_others_were_before_it_in_each_window() -> None:
    for seed in range(effort(2, 5)):
        drawn = random.Random(seed)
        made = [Caller(at=0.0 if drawn.random() < 0.6 else 20.0 * drawn.random()) for _ in range(19)]
        facts = {"seed": seed, "slowest": 0.5, "network": 0.001}
        played = shared_world((Limit(limit=4, window=60.0),), made, facts, 4, headers=False, hints=False)
        played.run()
        assert {each.ending for each in played.ended.values()} == {Ending.ANSWERED}


@given(
    st.one_of(buckets(), windows()),
    callers(stays=True),
    worlds,
    st.integers(2, 5),
    st.floats(0.0, 10.0),
    st.booleans(),
)
def test_a_member_that_is_stopped_stops_no_other(
    limit: Limit, made: list[Caller], facts: dict[str, float], count: int, at: float, headers: bool
) -> None:
    played = shared_world((limit,), made, facts, count, headers=headers, hints=headers)
    played.stop(0, at)
    played.run()
    staying = {row for row in range(len(made)) if played.member_of(row)}
    assert staying <= set(played.ended)
    assert {played.ended[row].ending for row in staying} <= {Ending.ANSWERED}


@given(buckets(), callers(stays=True), worlds, members, st.lists(st.tuples(st.floats(0, 10), st.floats(0, 0.2))))
def test_a_locked_log_holds_no_call_for_ever(
    limit: Limit, made: list[Caller], facts: dict[str, float], count: int, holds: list[tuple[float, float]]
) -> None:
    played = shared_world((limit,), made, facts, count)
    for at, seconds in holds:
        played.hold(at, seconds)
    played.run()
    assert {played.ended[row].ending for row in range(len(made))} <= {Ending.ANSWERED}


@given(
    st.one_of(buckets(), windows()),
    callers(stays=True),
    worlds,
    members,
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 100)), max_size=3),
    st.booleans(),
)
def test_a_log_that_is_lost_holds_no_call_for_ever(
    limit: Limit,
    made: list[Caller],
    facts: dict[str, float],
    count: int,
    losses: list[tuple[float, float]],
    headers: bool,
) -> None:
    played = shared_world((limit,), made, facts, count, headers=headers, hints=headers)
    for at, seconds in losses:
        played.lose(at, seconds)
    played.run()
    assert {played.ended[row].ending for row in range(len(made))} <= {Ending.ANSWERED}
    for controller in played.controllers():
        assert not controller.replica.flights, "an attempt that ended would hold a slot for ever"
        assert not controller.permits_in_flight


@given(buckets(), callers(), worlds, members)
def test_no_member_overdraws_a_bucket_once_one_of_them_knows_it(
    limit: Limit, made: list[Caller], facts: dict[str, float], count: int
) -> None:
    played = shared_world((limit,), made, facts, count)
    played.run()
    # A member that joins may send before it has the state: it waits for that no longer than 50 ms.
    joined = count - 1
    assert len(refused_knowingly(played)) <= gone_unknown(played, made) + joined
    alone = shared_world((limit,), made, facts, 1)
    alone.run()
    found = sum(not attempt.admitted for attempt in alone.attempts)
    refused = sum(not attempt.admitted for attempt in played.attempts)
    assert refused <= max(START_CONCURRENCY, found) + joined


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("seed", range(effort(1, 3)))
def test_a_head_goes_though_only_other_members_learn_that_its_quota_is_back(members: int, seed: int) -> None:
    made = [Caller(0.0, 0, 0, 1e6, None)] * 7
    facts = {"seed": float(seed), "network": 0.05, "slowest": 0.05}
    # Nothing states that the window is a second: answers to the members that send first show it.
    played = shared_world((Limit(limit=1, window=1.0),), made, facts, members)
    played.run()
    assert max(attempt.sent_at for attempt in played.attempts) < 10.0


@given(windows(), callers(), worlds, members)
def test_no_member_overdraws_a_window_once_one_of_them_knows_it(
    limit: Limit, made: list[Caller], facts: dict[str, float], count: int
) -> None:
    played = shared_world((limit,), made, facts, count)
    played.run()
    assert len(refused_knowingly(played)) <= gone_unknown(played, made) + count - 1


@pytest.mark.parametrize("seed", range(effort(2, 4)))
def test_members_before_a_locked_log_do_not_each_spend_a_new_window(seed: int) -> None:
    limit = Limit(kind="fixed", limit=40, window=10.0)
    played = SharedWorld(Scenario(limiters=(limit,)), 4, seed=seed, latency=lambda draw: draw.uniform(0.1, 1.0))
    for row in range(160):
        played.call(row)
    # The second window begins at 10 s, while no member can lock the log.
    played.hold(9.0, 6.0)
    played.run()
    assert {each.ending for each in played.ended.values()} == {Ending.ANSWERED}
    late = [attempt for attempt in played.attempts if 10.0 <= attempt.sent_at < 15.0]
    assert sum(attempt.admitted for attempt in late) >= 20, "each member uses its part"
    assert sum(not attempt.admitted for attempt in late) <= 4


LATE = {
    "one a second": (0.05, 4, Limit(limit=60, window=60.0, burst=1), 20.0, 60, 6, 61.0),
    "seventeen a second, one by one": (0.05, 4, Limit(limit=1000, window=60.0, burst=1), 40.0, 300, 130, 120.0),
    "windows": (0.05, 8, Limit(kind="fixed", limit=40, window=4.0), 40.0, 300, 4, 30.0),
    "few slots, heard very late": (0.05, 4, Limit(kind="slots", limit=8), 100.0, 200, 34, 10.0),
    "small windows": (0.02, 8, Limit(kind="fixed", limit=12, window=6.0), 40.0, 100, 5, 49.0),
}
"""Seconds in which an event is heard, members, limit, calls a second, calls, most refusals, most seconds."""

LATE_LONG = {
    "a bucket that 300 calls a second empty": (0.1, 8, Limit(limit=600, window=6.0), 300.0, 1500, 5, 10.0),
    "slots": (0.01, 8, Limit(kind="slots", limit=32), 200.0, 640, 30, 9.0),
}
"""The same, of larger forms."""


@pytest.mark.parametrize("late", some(LATE, LATE_LONG))
def test_members_that_hear_each_other_late_do_not_take_the_same_units(late: str) -> None:
    """Median of three seeds: whether a first refusal is chance or a limit is a guess, which one seed may lose."""
    delay, count, limit, demand, calls, refused, seconds = (LATE | LATE_LONG)[late]
    refusals = list[int]()
    for seed in range(3):
        played = SharedWorld(
            Scenario(limiters=(limit,)),
            count,
            delay,
            seed=seed,
            network=0.01,
            latency=lambda draw: draw.uniform(0.1, 0.4),
        )
        for row in range(calls):
            played.call(row, at=row / demand)
        played.run()
        assert {each.ending for each in played.ended.values()} == {Ending.ANSWERED}
        assert max(attempt.sent_at for attempt in played.attempts) < seconds
        refusals.append(sum(not attempt.admitted for attempt in played.attempts))
    assert statistics.median(refusals) <= refused


def test_a_head_sees_that_the_last_slot_of_another_member_is_free() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(kind="slots", limit=1),)), 2, latency=lambda draw: 1.0)
    for row in (0, 2, 4):
        played.call(row)
    played.call(3, at=15.0)
    played.call(1, at=20.5)
    # The other member has nothing to do from here on, so no step of its own can wake the head.
    played.call(6, at=20.0)
    played.run()
    assert played.controllers()[1].concurrency.limit == 1
    sent = next(each.at for each in played.sends if each.row == 1)
    assert 21.0 < sent < 21.1


def test_a_member_that_joins_gets_the_state_with_the_next_step_of_another() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(limit=30, window=60.0),)), 2)
    for row in range(0, 200, 2):
        played.call(row)
    for row in range(1, 41, 2):
        played.call(row, at=10.0)
    played.run(60.0)
    late = [each for each in played.attempts if each.row % 2]
    # The first member waits for the next unit of its quota: its next step is up to two seconds away.
    assert sum(not each.admitted for each in late) <= START_CONCURRENCY
    assert all(each.admitted for each in late if each.sent_at > 12.0)
    turns = [each.row % 2 for each in played.attempts if each.sent_at > 12.0]
    # The first member has had the whole quota: the other catches up, but leaves it a part.
    assert turns.count(1) > turns.count(0)
    assert turns.count(0) >= 1
    assert max(len(list(run)) for _, run in itertools.groupby(turns)) <= 2 * PASSED_ROUNDS + 1


@pytest.mark.parametrize("lag", [0.0, 0.003])
def test_a_member_that_took_a_full_quota_lets_the_others_catch_up(lag: float) -> None:
    limit = Limit(limit=60, window=10.0, burst=24)
    played = SharedWorld(Scenario(limiters=(limit,)), 4, latency=lambda draw: draw.uniform(0.1, 0.4), lag=lag)
    for row in range(160):
        # The first member comes a little earlier, and takes all that the bucket holds.
        played.call(row, at=0.0 if row % 4 == 0 else 1.0)
    played.run()
    assert spread(played, 4) <= 0.15


@pytest.mark.parametrize("lag", [0.0, 0.003])
def test_the_first_member_that_looks_leaves_a_new_window_to_the_others_too(lag: float) -> None:
    limit = Limit(kind="fixed", limit=12, window=1.0)
    played = SharedWorld(Scenario(limiters=(limit,)), 8, latency=lambda draw: draw.uniform(0.1, 0.4), lag=lag)
    for row in range(240):
        played.call(row)
    played.run()
    assert spread(played, 8) <= 0.15


def spread(played: SharedWorld, count: int) -> float:
    """The difference between the last calls of the members, as a share of the whole time."""
    ends = [max(each.sent_at for each in played.attempts if each.row % count == member) for member in range(count)]
    return (max(ends) - min(ends)) / max(ends)


def test_counts_are_those_of_one_process_and_add_up_to_all_attempts() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(limit=10, window=1.0),)), 3, headers=False)
    for row in range(90):
        played.call(row, at=row / 100)
    played.run()
    counts = [registry.snapshot().keys[KEY] for registry in played.registries]
    assert sum(each.attempts for each in counts) == len(played.attempts)
    assert sum(each.answered for each in counts) == 90
    assert sum(each.refused for each in counts) == sum(not each.admitted for each in played.attempts)


def test_a_member_alone_appends_nothing() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(limit=10, window=1.0),)), 1)
    for row in range(40):
        played.call(row)
    played.run()
    assert played.log is not None
    assert played.log.entries == []


def test_a_scrambled_log_ends_sharing_and_no_call() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(limit=20, window=1.0),)), 2)
    for row in range(60):
        played.call(row, at=row / 50)
    played.run(0.3)
    assert played.log is not None
    played.log.entries.append(Entry(7, 0.3, b"\x00\x01scrambled"))
    played.run()
    assert {played.ended[row].ending for row in range(60)} == {Ending.ANSWERED}
    sessions = [each for registry in played.registries for each in registry._shared.sessions.values()]
    assert all("UnreadableRecord" in each.reason for each in sessions)


@pytest.mark.parametrize("seed", range(effort(2, 6)))
def test_slots_of_a_killed_member_do_not_make_a_rate_of_the_limit(seed: int) -> None:
    played = SharedWorld(
        Scenario(limiters=(Limit(kind="slots", limit=32, status=503),), dialect="none"),
        4,
        seed=seed,
        network=0.005,
        latency=lambda draw: draw.lognormvariate(-0.7, 0.2),
    )
    for row in range(1200):
        played.call(row)
    # Its calls end at the provider, and count as in flight here until the log notices.
    played.kill(1, 1.0 + 0.1 * seed)
    played.run()
    assert not any(each.pacer.active for each in played.controllers())
    assert sum(not attempt.admitted for attempt in played.attempts) <= 12


@pytest.mark.parametrize("count", [2, 4])
def test_a_member_that_took_all_slots_lets_the_others_catch_up_and_keeps_a_part(count: int) -> None:
    limit = Limit(kind="slots", limit=4)
    played = SharedWorld(Scenario(limiters=(limit,)), count, latency=lambda draw: draw.uniform(0.45, 0.55))
    for row in range(count * 600):
        # The first member is alone for so long that its service stays ahead of that of the others.
        played.call(row, at=0.0 if row % count == 0 else 60.0)
    played.run(90.0)
    sent = [each for each in played.attempts if each.sent_at > 60.0 and each.admitted]
    first = [each.sent_at for each in sent if each.row % count == 0]
    assert len(first) < len(sent) / count
    pauses = [after - before for before, after in itertools.pairwise([60.0, *first, 90.0])]
    # Eight calls end in a second.
    assert max(pauses) <= 2 * PASSED_ROUNDS * count / 8.0 + 1.0


def test_members_that_return_to_the_log_count_their_service_alike() -> None:
    played = SharedWorld(Scenario(limiters=(Limit(limit=60, window=10.0, burst=10),)), 3)
    for row in range(150):
        played.call(row)
    played.lose(8.0, 4.0)
    played.run(13.0)
    services = [controller.replica.service for controller in played.controllers()]
    # Their totals may differ by a call that was admitted while the log was away.
    served = [[service.calls(member, 13.0) for member in range(3)] for service in services]
    apart = max(served[0]) - min(served[0])
    assert apart < 2 * PASSED_ROUNDS, "a member whose service alone was kept would wait for the others"
    assert all(each == served[0] for each in served)


def test_a_slot_goes_to_the_call_of_higher_priority_whichever_member_was_served_more() -> None:
    limit = Limit(kind="slots", limit=4)
    played = SharedWorld(Scenario(limiters=(limit,)), 2, latency=lambda draw: draw.uniform(0.45, 0.55))
    for row in range(0, 320, 2):
        played.call(row, priority=5)
    for row in range(1, 41, 2):
        played.call(row, at=5.0)
    played.run()
    ends = max(each.sent_at for each in played.attempts if each.row % 2 == 0)
    assert not [each.row for each in played.attempts if each.row % 2 and 7.0 < each.sent_at < ends - 1.0]


@pytest.mark.parametrize("seed", range(effort(1, 2)))
def test_members_that_cannot_hear_each_other_for_a_moment_divide_the_pace(seed: int) -> None:
    """A silent rate has no quota in which a member could leave room for the others."""
    limit = Limit(limit=600, window=60.0, burst=10)
    played = SharedWorld(
        Scenario(limiters=(limit,)), 4, headers=False, seed=seed, latency=lambda draw: draw.uniform(0.05, 0.1)
    )
    for row in range(800):
        played.call(row)
    unheard = [(32.0, 36.0), (47.0, 51.0), (62.0, 66.0)]
    for begins, ends in unheard:
        played.hold(begins - 2.0, ends - begins + 2.0)
    played.run()
    inside = [each for each in played.attempts if any(begins <= each.sent_at < ends for begins, ends in unheard)]
    assert len(inside) > 80
    assert sum(not each.admitted for each in inside) <= 0.2 * len(inside)
