"""An experiment that is deleted is gone with all that belongs to it, and nothing late comes back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from sqlalchemy.util import await_only

from tests.storage.places import Place, PostgreSQL
from tests.storage.values import STALE, claimed, experiment, judged, rows, run
from tidegate.errors import StoreError
from tidegate.experiments.storage import (
    AttemptRecord,
    BatchRecord,
    BatchState,
    Category,
    ClaimStats,
    ItemAttempts,
    ItemUsage,
    LogLevel,
    LogLine,
    NewRow,
    Status,
    Store,
    Toggle,
    datasets,
)
from tidegate.experiments.storage.schema import metadata

pytestmark = pytest.mark.anyio

KEPT = {"tidegate_deleted", "tidegate_version"}
ATTEMPT = AttemptRecord("task", 0, 0.0, 0.1, 0.0, "success", "ok", "none")


def left(place: Place) -> dict[str, int]:
    """The tables that hold anything, with the number of their rows."""
    counts = {table: place.sql(f"SELECT count(*) FROM {table}")[0][0] for table in metadata.tables if table not in KEPT}
    return {table: count for table, count in counts.items() if count}


async def filled(store: Store, name: str = "capitals", count: int = 3) -> int:
    """A stopped experiment with something in every table."""
    made = await experiment(store, count, name=name)
    claim = await claimed(store, made.id)
    await store.chunks.add(made.id, count)
    await store.batches.save(claim, BatchRecord(0, "openai", BatchState.FETCHED, "5f", ((1, 0, count),), count))
    await store.write(
        [
            *(run(claim, ordinal) for ordinal in range(count)),
            judged(claim, 0),
            ItemAttempts(made.id, claim.epoch, 1, 1, (ATTEMPT,), usage=ItemUsage()),
            ClaimStats(made.id, claim.epoch, {"calls": 1}),
            LogLine(made.id, claim.epoch, LogLevel.INFO, Category.EXPERIMENT, {"type": "started"}),
        ]
    )
    await store.claims.release(claim, Status.COMPLETED)
    return made.id


async def test_nothing_of_it_is_left(store: Store, place: Place) -> None:
    number = await filled(store)
    assert len(left(place)) == len(metadata.tables) - 1
    assert await store.experiments.remove(number) is True
    assert left(place) == {}
    assert await store.experiments.find("capitals") is None
    assert await store.experiments.remove(number) is False


async def test_what_others_have_stays(store: Store, place: Place) -> None:
    mine, others = await filled(store, "mine", 5), await filled(store, "others", 3)
    before = await store.reports.results(others, after=None, limit=10)
    assert await store.experiments.remove(mine)
    assert await store.reports.results(others, after=None, limit=10) == before
    assert left(place)["tidegate_contents"] == 3
    assert await store.experiments.remove(others)
    assert left(place) == {}


async def test_one_that_runs_is_not_deleted(store: Store, place: Place) -> None:
    made = await experiment(store)
    claim = await claimed(store, made.id)
    before = left(place)
    assert await store.experiments.remove(made.id) is False
    assert left(place) == before
    assert await store.claims.stop(made.id) is Toggle.DONE
    assert await store.experiments.remove(made.id) is True
    # Its owner has not heard of it yet.
    assert await store.claims.renew("a", {made.id: claim.epoch}) == frozenset()


async def test_late_results_are_refused_also_where_its_name_is_used_again(store: Store, place: Place) -> None:
    number = await filled(store)
    claim = await store.claims.resume(number, "late")
    assert not isinstance(claim, Toggle)
    await store.claims.stop(number)
    place.cool(number)
    await store.claims.stop(number)
    assert await store.experiments.remove(number) is True
    again = await experiment(store)
    assert again.id > number
    fresh = await claimed(store, again.id)
    late = [run(claim, 0, output="late"), judged(claim, 0), run(fresh, 1)]
    assert await store.write(late) == frozenset({number})
    assert [each.ordinal for each in await store.reports.results(again.id, after=None, limit=10)] == [1]
    assert await store.claims.release(claim, Status.COMPLETED) is False


async def test_late_rows_of_its_dataset_reach_no_other_one(store: Store, place: Place) -> None:
    made = await store.experiments.create("a", {}, 1, "rows.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(2))
    assert await store.experiments.remove(made.id)
    again = await store.experiments.create("b", {}, 1, "rows.jsonl")
    assert again.dataset_id > made.dataset_id
    with pytest.raises(StoreError) as refused:
        await store.datasets.add_rows(made.dataset_id, rows(2, start=2))
    assert not refused.value.retryable
    assert (await store.reports.counts(again.id)).rows == 0
    assert "tidegate_dataset_rows" not in left(place)


async def test_numbers_are_used_once_whichever_is_deleted(store: Store) -> None:
    used = set()
    for turn in range(4):
        made = [await store.experiments.create(f"{turn} {n}", {}, 1, "") for n in range(2)]
        assert not used & {each.id for each in made}
        used |= {each.id for each in made}
        await store.experiments.remove(made[turn % 2].id)


async def test_content_that_an_import_begins_to_use_stays(store: Store, place: Place) -> None:
    mine = await experiment(store, 3, name="mine")
    other = await store.experiments.create("other", {}, 1, "")
    if place.on_sqlite:
        await store.datasets.add_rows(other.dataset_id, rows(2))
        assert await store.experiments.remove(mine.id)
    else:
        digest = "(SELECT digest FROM tidegate_dataset_rows WHERE ordinal = 0)"
        added = f"INSERT INTO tidegate_dataset_rows VALUES ({other.dataset_id}, 0, 'x', {digest}, NULL, NULL)"
        with place.begun(added) as importing:
            assert await asyncio.wait_for(store.experiments.remove(mine.id), 60)
            importing.commit()
        assert left(place)["tidegate_contents"] == 1
        await store.datasets.add_rows(other.dataset_id, [NewRow(1, "1", {"question": "what is 0?"})])
    assert left(place)["tidegate_dataset_rows"] == 2


async def test_import_of_its_rows_that_goes_on_leaves_nothing(postgresql: PostgreSQL) -> None:
    store = await Store.open(postgresql.url)
    mine = await experiment(store, 3, name="mine")
    content = "INSERT INTO tidegate_contents VALUES ('new', '{}')"
    row = f"INSERT INTO tidegate_dataset_rows VALUES ({mine.dataset_id}, 3, 'x', 'new', NULL, NULL)"
    with postgresql.begun(content, row) as importing:
        deleting = asyncio.create_task(store.experiments.remove(mine.id))
        await postgresql.waiting(1)
        importing.commit()
        assert await deleting is True
    assert left(postgresql) == {}
    await store.close()


async def test_content_that_an_import_finds_stays(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    importer, deleter = await Store.open(postgresql.url), await Store.open(postgresql.url)
    mine = await experiment(importer, 3, name="mine")
    other = await importer.experiments.create("other", {}, 1, "")
    execute, turns = datasets.execute, itertools.count()

    def then_deleted(*given: Any) -> int:
        done = execute(*given)
        if next(turns) == 0:
            # The contents exist, and no row of the import has them yet.
            assert await_only(asyncio.wait_for(deleter.experiments.remove(mine.id), 60))
        return done

    monkeypatch.setattr(datasets, "execute", then_deleted)
    await importer.datasets.add_rows(other.dataset_id, rows(3))
    assert left(postgresql)["tidegate_contents"] == 3
    assert (await importer.reports.counts(other.id)).rows == 3
    await importer.close()
    await deleter.close()


async def test_only_a_run_that_was_just_stopped_and_has_not_ended_is_ending(store: Store, place: Place) -> None:
    made = await experiment(store)
    assert await store.experiments.is_ending(made.id, STALE) is False
    claim = await claimed(store, made.id)
    assert await store.experiments.is_ending(made.id, STALE) is False
    await store.claims.stop(made.id)
    assert await store.experiments.is_ending(made.id, STALE) is True
    assert await store.experiments.is_ending(made.id, 0.0) is False
    await store.write([ClaimStats(made.id, claim.epoch, {}, ended=False)])
    assert await store.experiments.is_ending(made.id, STALE) is True
    await store.write([ClaimStats(made.id, claim.epoch, {})])
    assert await store.experiments.is_ending(made.id, STALE) is False
