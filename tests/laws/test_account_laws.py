"""Models that share a quota: a call is charged on both levels or on none, and the account's calls go in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.accounts import SCOPES, TwoLevelWorld, key_of
from tests.laws.strategies import Caller, buckets, callers, windows, worlds
from tidegate.core.admission_controller import ModelController
from tidegate.settings import Settings
from tidegate.testing import Limit

MODELS = 4
TAUGHT = 200.0
"""Instant at which every model has been answered once, and every bucket is full again."""

models = st.lists(st.integers(0, MODELS - 1), min_size=1, max_size=40)
limits = st.one_of(buckets(lowest=5), windows(lowest=5))
owns = st.dictionaries(st.integers(0, MODELS - 1), buckets(lowest=2), max_size=MODELS)


def built(
    shared: Limit, own: dict[int, Limit], made: list[Caller], of: list[int], given: dict[str, float], **facts: object
) -> TwoLevelWorld:
    """A world in which each model has been answered once; the callers come from `TAUGHT` on."""
    slowest = given["slowest"]
    settings = Settings(scopes=SCOPES)
    played = TwoLevelWorld(
        shared,
        own,
        settings,
        seed=int(given["seed"]),
        network=given["network"],
        latency=lambda draw: draw.uniform(0.01, slowest),
        **facts,
    )
    for model in range(MODELS):
        played.call(-1 - model, model, at=30.0 * model)
    for row, caller in enumerate(made):
        at = TAUGHT + caller.at
        played.call(row, of[row % len(of)], at=at, max_wait=caller.max_wait, priority=caller.priority)
        if caller.gone_after is not None:
            played.cancel(row, at + caller.gone_after)
    return played


def controllers(played: TwoLevelWorld) -> list[ModelController]:
    queues = played.registry._queues
    found = [queues[key_of(model)].admission for model in range(MODELS) if key_of(model) in queues]
    return [each for each in found if isinstance(each, ModelController)]


def charged_more(played: TwoLevelWorld) -> float:
    """The charges of the shared quota, less those of the models' own."""
    found = controllers(played)
    own = sum(each.quotas.own.mirrors["own"].used for each in found)
    return found[0].account.quotas.mirrors["shared"].used - own


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(limits, callers(patient=False), models, worlds)
def test_a_call_is_charged_on_both_levels_or_on_none(
    shared: Limit, made: list[Caller], of: list[int], given: dict[str, float]
) -> None:
    own = {model: Limit(limit=7.0 + model, window=10.0) for model in range(MODELS)}
    played = built(shared, own, made, of, given)
    played.run(until=TAUGHT - 1.0)
    before = charged_more(played)

    def watch(played: TwoLevelWorld) -> None:
        assert charged_more(played) == pytest.approx(before)

    played.watch = watch
    played.run()


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(limits, owns, callers(patient=False), models, worlds, st.sampled_from([0.0, 0.2]))
def test_nothing_is_held_or_lost_when_callers_go_away(
    shared: Limit, own: dict[int, Limit], made: list[Caller], of: list[int], given: dict[str, float], lag: float
) -> None:
    played = built(shared, own, made, of, given, lag=lag)
    played.run()
    for row, caller in enumerate(made):
        assert row in played.ended or caller.gone_after is not None
    found = controllers(played)
    account = found[0].account
    # What finalizers left is done by the next step of any call.
    played.registry.catch_up()
    assert account.in_flight == 0
    assert all(not each.untaken for each in found)
    assert all(mirror.reserved == 0.0 for each in found for mirror in each.quotas.mirrors.values())
    (entry,) = played.registry._accounts._accounts.values()
    assert entry.queue.first() is None


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(limits, callers(priorities=2, stays=True), models, worlds)
def test_calls_of_all_models_go_in_the_order_of_their_coming(
    shared: Limit, made: list[Caller], of: list[int], given: dict[str, float]
) -> None:
    played = built(shared, {}, made, of, given)
    played.run()
    firsts = [sending.row for sending in played.sends if sending.before == 0 and sending.row >= 0]
    assert len(firsts) == len(made)
    for priority in range(3):
        rows = [row for row in firsts if made[row].priority == priority]
        assert rows == sorted(rows, key=lambda row: (made[row].at, row))


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(limits, owns, callers(stays=True), models, worlds)
def test_a_model_held_by_its_own_quota_holds_no_other(
    shared: Limit, own: dict[int, Limit], made: list[Caller], of: list[int], given: dict[str, float]
) -> None:
    played = built(shared, own, made, of, given)
    played.run()
    free = [
        sending.row
        for sending in played.sends
        if sending.before == 0 and sending.row >= 0 and played.models[sending.row] not in own
    ]
    assert free == sorted(free, key=lambda row: (made[row].at, row))
    assert len([row for row in played.ended if row >= 0]) == len(made)


@pytest.mark.parametrize("count", [2, 5, 10])
@pytest.mark.parametrize("kind", ["bucket", "fixed"])
def test_models_use_what_they_share_and_are_hardly_refused(count: int, kind: str) -> None:
    limit, calls = 600.0, 3000
    played = TwoLevelWorld(Limit(kind=kind, limit=limit, window=60.0), latency=lambda draw: draw.uniform(0.1, 2.0))
    for row in range(calls):
        played.call(row, played.random.randrange(count))
    played.run()
    admitted = [each.at for each in played.attempts if each.admitted]
    assert len(admitted) == calls
    if kind == "bucket":
        ideal = (calls - limit) / limit * 60.0
        assert admitted[-1] <= ideal / 0.97
    else:
        # The windows begin at 0: the last call fits the fifth.
        assert admitted[-1] <= 4 * 60.0 + 2.0
    assert len(played.attempts) - calls <= 0.01 * calls
