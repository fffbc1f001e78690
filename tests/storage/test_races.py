"""Two who stop, resume, renew or search at once, in both orders: what each is told, and who runs it then.

Where it says "while", a transaction is held open at the point in question until the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.storage.places import CONFIGS, Place
from tests.storage.values import STALE, claimed, experiment
from tidegate.experiments.storage import Claim, Status, Store, Toggle

pytestmark = pytest.mark.anyio


@pytest.fixture
async def claim(store: Store) -> Claim:
    """Experiment of three rows, claimed by replica a."""
    return await claimed(store, (await experiment(store)).id)


@pytest.fixture
async def five(place: Place) -> AsyncIterator[list[Store]]:
    """Five replicas' stores."""
    stores = [await Store.open(place.url) for _ in range(5)]
    yield stores
    for store in stores:
        await store.close()


async def state(store: Store, claim: Claim) -> tuple[Status, str | None, int]:
    found = await store.experiments.find(claim.experiment_id)
    assert found is not None
    return found.status, found.claimed_by, found.epoch


def stale(place: Place, claim: Claim) -> None:
    place.age(claim.experiment_id, STALE + 1)


async def test_of_many_stops_at_one_moment_one_is_done(five: list[Store], claim: Claim, place: Place) -> None:
    with place.locked() as held:
        stops = [asyncio.create_task(store.claims.stop(claim.experiment_id)) for store in five]
        await place.waiting(5)
        held.rollback()
        told = await asyncio.gather(*stops)
    assert sorted(toggle.name for toggle in told) == ["ALREADY"] * 4 + ["DONE"]


@pytest.mark.parametrize("first", ["stop", "end"])
async def test_a_stop_and_an_end_at_one_moment_agree_on_who_was_first(
    store: Store, other: Store, claim: Claim, place: Place, first: str
) -> None:
    async def stop() -> object:
        return await other.claims.stop(claim.experiment_id)

    async def end() -> object:
        return await store.claims.release(claim, Status.COMPLETED)

    acts = {"stop": stop, "end": end}
    order = [acts[first], *(act for name, act in acts.items() if name != first)]
    with place.locked() as held:
        tasks = []
        for count, act in enumerate(order, 1):
            tasks.append(asyncio.create_task(act()))
            await place.waiting(count)
        held.rollback()
        await asyncio.gather(*tasks)
    told = {name: task.result() for name, task in zip([first, *(acts.keys() - {first})], tasks, strict=True)}
    ended = (await state(store, claim))[0]
    assert (told["stop"], told["end"], ended) in [
        (Toggle.DONE, False, Status.STOPPED),
        (Toggle.ALREADY, True, Status.COMPLETED),
    ]


async def test_a_renewal_that_waits_while_a_stop_is_made_does_not_undo_it(
    store: Store, claim: Claim, place: Place
) -> None:
    stopped = (
        f"UPDATE {CONFIGS} SET status = 'STOPPED', claimed_by = NULL, claimed_at = NULL "
        f"WHERE experiment_id = {claim.experiment_id}"
    )
    with place.begun(stopped) as held:
        renewing = asyncio.create_task(store.claims.renew("a", {claim.experiment_id: claim.epoch}))
        await place.waiting(1)
        held.commit()
        assert await renewing == frozenset()
    assert await state(store, claim) == (Status.STOPPED, None, 1)


async def test_a_renewal_that_waits_while_it_becomes_stale_keeps_the_claim(
    store: Store, other: Store, claim: Claim, place: Place
) -> None:
    stale(place, claim)
    with place.locked() as held:
        renewing = asyncio.create_task(store.claims.renew("a", {claim.experiment_id: claim.epoch}))
        await place.waiting(1)
        held.rollback()
        assert await renewing == {claim.experiment_id}
    assert await other.claims.claim(claim.experiment_id, "b", STALE) is None


async def test_of_many_searchers_at_one_moment_one_takes_the_orphan(
    five: list[Store], claim: Claim, place: Place
) -> None:
    stale(place, claim)
    assert [await store.claims.orphans(STALE, 10) for store in five] == [[claim.experiment_id]] * 5
    with place.locked() as held:
        tasks = [
            asyncio.create_task(store.claims.claim(claim.experiment_id, str(n), STALE)) for n, store in enumerate(five)
        ]
        await place.waiting(5)
        held.rollback()
        takers = [claim for claim in await asyncio.gather(*tasks) if claim is not None]
    assert [taker.epoch for taker in takers] == [2]


async def test_of_many_resumes_at_one_moment_one_claims(five: list[Store], claim: Claim, place: Place) -> None:
    await five[0].claims.release(claim, Status.ERROR, "because")
    with place.locked() as held:
        tasks = [asyncio.create_task(store.claims.resume(claim.experiment_id, str(n))) for n, store in enumerate(five)]
        await place.waiting(5)
        held.rollback()
        told = await asyncio.gather(*tasks)
    assert [one.epoch for one in told if isinstance(one, Claim)] == [2]
    assert [one for one in told if not isinstance(one, Claim)] == [Toggle.ALREADY] * 4


async def test_a_resume_during_a_shutdown_waits_for_the_claim_to_be_given_up_or_stale(
    store: Store, other: Store, claim: Claim, place: Place
) -> None:
    # A shutdown keeps the claim; the next process has another replica id.
    await store.close()
    assert await other.claims.resume(claim.experiment_id, "b") is Toggle.ALREADY
    assert await other.claims.claim(claim.experiment_id, "b", STALE) is None
    stale(place, claim)
    assert await other.claims.claim(claim.experiment_id, "b", STALE) == Claim(claim.experiment_id, "b", epoch=2)
