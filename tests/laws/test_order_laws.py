"""First come, first admitted, within a priority; what was refused goes before what was never sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import Caller, buckets, callers, slots, windows, world, worlds
from tests.laws.world import KEY, World
from tidegate.settings import Settings
from tidegate.testing import Limit

limiters = st.one_of(buckets(), windows(), slots())
concurrencies = st.integers(1, 20).map(lambda slots: Settings(max_concurrency=slots))


def firsts(played: World) -> list[int]:
    return [sending.row for sending in played.sends if sending.before == 0]


@given(limiters, callers(priorities=2), worlds, concurrencies, st.booleans())
def test_calls_of_one_priority_are_first_admitted_in_the_order_of_their_coming(
    limit: Limit, made: list[Caller], facts: dict[str, float], settings: Settings, headers: bool
) -> None:
    played = world((limit,), made, facts, settings=settings, headers=headers)
    played.run()
    for priority in range(3):
        rows = [row for row in firsts(played) if made[row].priority == priority]
        assert rows == sorted(rows, key=lambda row: (made[row].at, row))


@given(limiters, callers(priorities=2), worlds, concurrencies, st.booleans())
def test_no_call_is_first_sent_while_a_refused_one_of_its_priority_stands(
    limit: Limit, made: list[Caller], facts: dict[str, float], settings: Settings, headers: bool
) -> None:
    played = world((limit,), made, facts, settings=settings, headers=headers)
    seen = 0
    overtaken: list[tuple[int, int]] = []

    def watch(played: World) -> None:
        nonlocal seen
        for sending in played.sends[seen:]:
            if sending.before:
                continue
            for group in played.registry._queues[KEY].waiting.groups.values():
                for priority, lane in group._lanes.items():
                    if priority >= made[sending.row].priority:
                        early = [each for each in lane.returned if each.joined_at < sending.at]
                        overtaken.extend((sending.row, each.place) for each in early)
        seen = len(played.sends)

    played.watch = watch
    played.run()
    assert overtaken == []


@given(callers(most=60, priorities=3, stays=True), worlds)
def test_a_higher_priority_never_waits_for_a_lower_one(made: list[Caller], facts: dict[str, float]) -> None:
    played = world((), made, facts, settings=Settings(max_concurrency=1))
    sent: set[int] = set()
    seen = 0

    def watch(played: World) -> None:
        nonlocal seen
        for sending in played.sends[seen:]:
            sent.add(sending.row)
            standing = [row for row, call in played.calls.items() if call.standing and row not in sent]
            assert all(made[row].priority <= made[sending.row].priority for row in standing)
        seen = len(played.sends)

    played.watch = watch
    played.run()
    assert len(sent) == len(made)
