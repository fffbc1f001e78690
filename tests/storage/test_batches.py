"""Batches of providers: numbered, kept with their rows, fenced like results, and deleted with their experiment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.storage.places import Place
from tidegate.errors import ClaimLost, SchemaMismatch
from tidegate.experiments.storage import BatchRecord, BatchState, Claim, Store
from tidegate.experiments.storage.schema import HEAD, VERSION_TABLE

pytestmark = pytest.mark.anyio

INTENT = BatchRecord(0, "openai", BatchState.INTENT, "5f", ((1, 0, 4), (2, 1, 3)), 6)


async def claimed(store: Store, name: str = "e") -> Claim:
    """Return the claim of a new experiment."""
    claim = await store.claims.claim((await store.experiments.create(name, {}, 2, "rows")).id, "replica", 60.0)
    assert claim is not None
    return claim


async def test_batches_are_numbered_and_changed_by_number(store: Store) -> None:
    claim = await claimed(store)
    first, second = await store.batches.save(claim, INTENT), await store.batches.save(claim, replace(INTENT, tag="60"))
    assert (first.number, second.number, first.epoch) == (1, 2, claim.epoch)
    assert (first.items, first.count, first.created_at is not None) == (INTENT.items, 6, True)
    sent = replace(first, state=BatchState.SUBMITTED, provider_id="batch_1", detail="x\x00y")
    assert (await store.batches.save(claim, sent)).created_at == first.created_at
    assert [
        (each.number, each.state, each.provider_id, each.tag) for each in await store.batches.of(claim.experiment_id)
    ] == [
        (1, BatchState.SUBMITTED, "batch_1", "5f"),
        (2, BatchState.INTENT, None, "60"),
    ]
    assert await store.batches.provider_ids("openai") == {"batch_1"}
    assert await store.batches.provider_ids("anthropic") == frozenset()
    assert await store.batches.counts() == {claim.experiment_id: {"intent": 1, "submitted": 1}}


async def test_batch_of_an_older_claim_is_not_written(store: Store, place: Place) -> None:
    older = await claimed(store)
    place.age(older.experiment_id, 61.0)
    newer = await store.claims.claim(older.experiment_id, "other", 60.0)
    assert newer is not None
    with pytest.raises(ClaimLost):
        await store.batches.save(older, INTENT)
    assert await store.batches.of(older.experiment_id) == []
    assert (await store.batches.save(newer, INTENT)).epoch == newer.epoch


async def test_batch_is_not_written_into_another_schema(store: Store, place: Place) -> None:
    claim = await claimed(store)
    place.sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    try:
        with pytest.raises(SchemaMismatch):
            await store.batches.save(claim, INTENT)
    finally:
        # The tests of a process share one database of PostgreSQL.
        place.sql(f"UPDATE {VERSION_TABLE} SET version_num = '{HEAD}'")
