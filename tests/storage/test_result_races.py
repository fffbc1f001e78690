"""Results that meet a claim, a stop or a heartbeat, in both orders: what is told, and what is kept.

Where it says "while", a transaction is held open at the point in question until the others wait for it.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from tests.storage.places import CONFIGS, Place, PostgreSQL
from tests.storage.values import OK, STALE, claimed, experiment, run
from tidegate.errors import StoreError
from tidegate.experiments.storage import Claim, Store, database

pytestmark = pytest.mark.anyio


@pytest.fixture
async def claim(store: Store) -> Claim:
    """Experiment of three rows, claimed by replica a."""
    return await claimed(store, (await experiment(store)).id)


def stale(place: Place, claim: Claim) -> None:
    place.age(claim.experiment_id, STALE + 1)


async def test_a_later_claim_waits_while_results_are_written(
    store: Store, other: Store, claim: Claim, place: Place
) -> None:
    stale(place, claim)
    # On PostgreSQL the batch has passed its check, and waits for a row of the same identity.
    same = (
        "INSERT INTO tidegate_runs (experiment_id, ordinal, repetition, status, attempts, seconds, epoch, finished_at) "
        f"VALUES ({claim.experiment_id}, 0, 1, 'ok', 1, 1, 1, {place.ago(0)})"
    )
    with place.begun(same) as held:
        writing = asyncio.create_task(store.write([run(claim, 0)]))
        await place.waiting(1)
        claiming = asyncio.create_task(other.claims.claim(claim.experiment_id, "b", STALE))
        await place.waiting(2)
        held.rollback()
        written, later = await writing, await claiming
    assert later == Claim(claim.experiment_id, "b", epoch=2)
    assert (written, (await store.reports.counts(claim.experiment_id)).runs) in [
        (frozenset(), {OK: 1}),
        *([({claim.experiment_id}, {})] if place.on_sqlite else []),
    ]


async def test_results_wait_while_a_later_claim_is_made_and_are_refused_then(
    store: Store, claim: Claim, place: Place
) -> None:
    with place.begun(place.claimed(claim.experiment_id, "b")) as held:
        writing = asyncio.create_task(store.write([run(claim, 0)]))
        await place.waiting(1)
        held.commit()
        assert await writing == {claim.experiment_id}
    assert (await store.reports.counts(claim.experiment_id)).runs == {}


async def test_results_wait_while_a_later_claim_is_given_up_and_are_written_then(
    store: Store, claim: Claim, place: Place
) -> None:
    with place.begun(place.claimed(claim.experiment_id, "b")) as held:
        writing = asyncio.create_task(store.write([run(claim, 0)]))
        await place.waiting(1)
        held.rollback()
        assert await writing == frozenset()
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 1}


async def test_a_renewal_waits_while_results_are_written_and_succeeds_then(
    store: Store, other: Store, claim: Claim, place: Place
) -> None:
    with place.begun(
        "INSERT INTO tidegate_runs (experiment_id, ordinal, repetition, status, attempts, seconds, epoch, finished_at) "
        f"VALUES ({claim.experiment_id}, 0, 1, 'error', 1, 1, 1, {place.ago(0)})"
    ) as held:
        writing = asyncio.create_task(store.write([run(claim, 0)]))
        await place.waiting(1)
        renewing = asyncio.create_task(other.claims.renew("a", {claim.experiment_id: claim.epoch}))
        await place.waiting(2)
        held.commit()
        assert await writing == frozenset()
        assert await renewing == {claim.experiment_id}
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 1}


async def test_who_sleeps_in_the_middle_of_a_batch_does_not_keep_the_claim_from_others(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake = await Store.open(postgresql.url)
    claim = await claimed(awake, (await experiment(awake)).id)
    # Only the sleeper may not be idle: on a busy machine, others are for as long.
    monkeypatch.setattr(database, "IDLE_SECONDS", 0.2)
    sleeping = await Store.open(postgresql.url)
    stale(postgresql, claim)

    async def batch() -> None:
        with sleeping.database.translated():
            async with sleeping.database._engine.begin() as connection:
                await connection.execute(text(f"SELECT epoch FROM {CONFIGS} FOR SHARE"))
                taken.append(await asyncio.wait_for(awake.claims.claim(claim.experiment_id, "b", STALE), 20))
                await connection.execute(text("SELECT 1"))

    taken: list[Claim | None] = []
    with pytest.raises(StoreError) as caught:
        await batch()
    assert taken == [Claim(claim.experiment_id, "b", epoch=2)]
    assert caught.value.retryable
    assert await awake.write([run(claim, 0)]) == {claim.experiment_id}
    await sleeping.close()
    await awake.close()


async def test_renewals_and_batches_of_many_experiments_never_wait_in_a_ring(store: Store, other: Store) -> None:
    claims = [await claimed(store, (await experiment(store, name=str(n))).id) for n in range(8)]
    held = {claim.experiment_id: claim.epoch for claim in reversed(claims)}

    async def renewals() -> None:
        for _ in range(10):
            assert await other.claims.renew("a", held) == set(held)

    async def batches() -> None:
        for n in range(10):
            assert await store.write([run(claim, n % 3) for claim in claims]) == frozenset()

    await asyncio.gather(renewals(), batches())
