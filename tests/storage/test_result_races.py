"""Results that meet a claim, a stop or a heartbeat, in both orders: what is told, and what is kept.

Where it says "while", a transaction is held open at the point in question until the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from tests.storage.places import CONFIGS, Place, PostgreSQL
from tests.storage.values import OK, STALE, claimed, experiment, run
from tidegate.errors import ClaimLost, StoreError
from tidegate.experiments.storage import Claim, Status, Store, Toggle, database

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


async def test_results_before_a_later_claim_are_written(store: Store, other: Store, claim: Claim, place: Place) -> None:
    stale(place, claim)
    assert await store.write([run(claim, 0)]) == frozenset()
    await claimed(other, claim.experiment_id, "b")
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 1}


async def test_results_after_a_later_claim_are_refused(store: Store, other: Store, claim: Claim, place: Place) -> None:
    stale(place, claim)
    await claimed(other, claim.experiment_id, "b")
    assert await store.write([run(claim, 0)]) == {claim.experiment_id}
    assert (await store.reports.counts(claim.experiment_id)).runs == {}


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


async def test_results_that_finish_after_a_stop_are_kept_until_somebody_resumes(
    store: Store, other: Store, claim: Claim, place: Place
) -> None:
    assert await other.claims.stop(claim.experiment_id) is Toggle.DONE
    assert await store.write([run(claim, 0)]) == frozenset()
    place.cool(claim.experiment_id)
    assert isinstance(await other.claims.resume(claim.experiment_id, "b"), Claim)
    assert await store.write([run(claim, 1)]) == {claim.experiment_id}
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 1}


async def test_results_and_a_renewal_do_not_mind_each_other(store: Store, other: Store, claim: Claim) -> None:
    mine = {claim.experiment_id: claim.epoch}
    assert await store.write([run(claim, 0)]) == frozenset()
    assert await other.claims.renew("a", mine) == set(mine)
    assert await store.write([run(claim, 1)]) == frozenset()
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 2}


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


async def test_a_claim_whose_answer_was_lost_can_be_made_again(store: Store, claim: Claim) -> None:
    again = await claimed(store, claim.experiment_id)
    assert again.epoch == 2
    assert await store.write([run(again, 0)]) == frozenset()


async def test_a_batch_whose_answer_was_lost_can_be_written_again(store: Store, claim: Claim) -> None:
    batch = [run(claim, 0), run(claim, 1)]
    assert await store.write(batch) == frozenset()
    assert await store.write(batch) == frozenset()
    assert (await store.reports.counts(claim.experiment_id)).runs == {OK: 2}


async def test_a_stop_that_the_database_does_not_take_changes_nothing(store: Store, claim: Claim, place: Place) -> None:
    place.sql(f"ALTER TABLE {CONFIGS} RENAME TO elsewhere")
    with pytest.raises(StoreError):
        await store.claims.stop(claim.experiment_id)
    place.sql(f"ALTER TABLE elsewhere RENAME TO {CONFIGS}")
    assert await state(store, claim) == (Status.RUNNING, "a", 1)


async def test_a_spec_is_amended_by_the_newest_claim_alone(store: Store, other: Store, claim: Claim) -> None:
    later = await claimed(store, claim.experiment_id)
    with pytest.raises(ClaimLost) as lost:
        await other.experiments.amend(claim, {"task": "other.py:answer"}, 5)
    assert lost.value.experiment_id == claim.experiment_id
    await other.experiments.amend(later, {"task": "other.py:answer"}, 5)
    found = await store.experiments.find(claim.experiment_id)
    assert found is not None
    assert (found.spec, found.repetitions) == ({"task": "other.py:answer"}, 5)


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
