"""No lost wake-up and nothing left behind, whatever happens in the middle.

A provider that admits in the end, callers that come, wait with a deadline or without, go away at any instant, and look
a moment after they are woken: every call ends, and afterwards no slot, place or reservation is held.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import Caller, buckets, callers, outages, slots, windows, world, worlds
from tests.laws.world import KEY, World
from tidegate.core.exchange import Ending
from tidegate.settings import Settings
from tidegate.testing import Limit

limiters = st.one_of(
    st.tuples(),
    st.tuples(buckets()),
    st.tuples(windows()),
    st.tuples(slots()),
    st.tuples(buckets(), slots()),
    st.tuples(buckets("tokens", 500, 5000), buckets()),
)
ways = st.fixed_dictionaries(
    {
        "headers": st.booleans(),
        "hints": st.booleans(),
        "lag": st.sampled_from([0.0, 0.01, 0.5]),
        "settings": st.builds(Settings, max_concurrency=st.integers(1, 40)),
    }
)


def leaves_nothing(played: World) -> None:
    for key in played.registry.snapshot().keys.values():
        assert (key.in_flight, key.waiting) == (0, 0)
    held = played.registry._queues.get(KEY)
    for mirror in held.admission.quotas.mirrors.values() if held is not None else ():
        assert mirror.reserved == 0.0
    assert all(sending.permit.settled for sending in played.sends)


@given(limiters, callers(tokens=400, priorities=2), worlds, ways)
def test_every_call_that_stays_is_answered(
    limits: tuple[Limit, ...], made: list[Caller], facts: dict[str, float], way: dict[str, object]
) -> None:
    played = world(limits, made, facts, **way)
    played.run()
    staying = {row for row, caller in enumerate(made) if caller.gone_after is None}
    assert staying <= set(played.ended)
    assert {played.ended[row].ending for row in staying} <= {Ending.ANSWERED}
    leaves_nothing(played)


@given(limiters, callers(tokens=400, priorities=2, patient=False), worlds, ways, st.lists(outages, max_size=2))
def test_every_call_with_a_deadline_ends_by_it_or_is_answered(
    limits: tuple[Limit, ...], made: list[Caller], facts: dict[str, float], way: dict[str, object], spans: list[object]
) -> None:
    played = world(limits, made, facts, outages=tuple(spans), **way)
    played.run()
    for row, caller in enumerate(made):
        if caller.gone_after is not None:
            continue
        ended = played.ended[row]
        assert ended.waited <= caller.max_wait + 2 * float(str(way["lag"])) + 1e-9
        if ended.ending is Ending.EXPIRED:
            assert ended.attempt is None
    leaves_nothing(played)


@pytest.mark.constants(START_CONCURRENCY=1)
@given(callers(most=60, stays=True), worlds, st.sets(st.integers(0, 59)), st.floats(0.0, 3.0))
def test_callers_who_all_go_away_at_one_instant_leave_room_for_the_rest(
    made: list[Caller], facts: dict[str, float], leaving: set[int], at: float
) -> None:
    played = world((), made, facts, settings=Settings(max_concurrency=2))
    for row in leaving & set(range(len(made))):
        played.cancel(row, at)
    played.run()
    assert {row for row in range(len(made)) if row not in leaving} <= set(played.ended)
    leaves_nothing(played)
