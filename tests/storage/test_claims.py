"""Who may run an experiment, who may end that, and what of it is told to whom."""

from __future__ import annotations

import pytest

from tests.storage.places import CONFIGS, Place
from tests.storage.values import STALE, claimed, experiment
from tidegate.errors import ConfigurationError
from tidegate.experiments.storage import Status, Store, Toggle, claims

pytestmark = pytest.mark.anyio

FIVE = claims.COOLDOWN_SECONDS
"""As it is before a test has made it longer."""


async def test_there_is_no_claim_on_what_does_not_exist(store: Store) -> None:
    assert await store.claims.claim(77, "a", STALE) is None


async def test_a_renewal_returns_what_is_still_this_replicas(store: Store, place: Place) -> None:
    mine = [await claimed(store, (await experiment(store, name=name)).id) for name in ("one", "two", "three")]
    theirs = await claimed(store, (await experiment(store, name="theirs")).id, "b")
    for claim in mine:
        place.age(claim.experiment_id, STALE + 1)
    await claimed(store, mine[1].experiment_id, "b")
    asked = {claim.experiment_id: claim.epoch for claim in [*mine, theirs]} | {77: 1}
    assert await store.claims.renew("a", asked) == {mine[0].experiment_id, mine[2].experiment_id}
    assert await store.claims.orphans(STALE, 10) == []


async def test_renewing_nothing_asks_nothing(store: Store) -> None:
    assert await store.claims.renew("a", {}) == frozenset()


async def test_a_thousand_claims_are_renewed_at_once(store: Store, place: Place) -> None:
    place.many_experiments("a")
    asked = dict.fromkeys(range(1000, 2000), 7)
    assert await store.claims.renew("a", asked) == set(asked)


async def test_a_release_ends_the_claim_with_its_reason(store: Store) -> None:
    claim = await claimed(store, (await experiment(store)).id)
    assert await store.claims.release(claim, Status.ERROR, "five times \x00 the same")
    found = await store.experiments.find(claim.experiment_id)
    assert found is not None
    assert (found.status, found.claimed_by, found.quiet) == (Status.ERROR, None, None)
    assert found.last_error == "five times � the same"
    assert not await store.claims.release(claim, Status.COMPLETED)


async def test_a_release_says_how_the_run_ended_and_cannot_say_that_it_runs(store: Store) -> None:
    claim = await claimed(store, (await experiment(store)).id)
    with pytest.raises(ConfigurationError, match="RUNNING"):
        await store.claims.release(claim, Status.RUNNING)


async def test_toggles_of_what_does_not_exist_are_told_so(store: Store) -> None:
    assert await store.claims.stop(77) is Toggle.MISSING
    assert await store.claims.resume(77, "a") is Toggle.MISSING


async def test_a_cool_down_lasts_five_seconds_from_the_toggle_on(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", FIVE)
    claim = await claimed(store, (await experiment(store)).id)
    before = place.now()
    await store.claims.stop(claim.experiment_id)
    query = f"SELECT cooldown_until, {place.ago(-FIVE)} FROM {CONFIGS} WHERE experiment_id = {claim.experiment_id}"
    ((until, latest),) = place.sql(query)
    assert before < until <= latest


async def test_orphans_are_stale_and_running_the_longest_first(store: Store, place: Place) -> None:
    ids = [(await experiment(store, name=name)).id for name in ("fresh", "stale", "stalest", "stopped", "ready")]
    for experiment_id in ids[:4]:
        await claimed(store, experiment_id)
    place.age(ids[1], STALE + 1)
    place.age(ids[2], STALE + 2)
    await store.claims.stop(ids[3])
    assert await store.claims.orphans(STALE, 10) == [ids[2], ids[1]]
    assert await store.claims.orphans(STALE, 1) == [ids[2]]
