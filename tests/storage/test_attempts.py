"""Attempts that an audit keeps: written with the results of their claim, refused with them, read by pages."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.storage.places import Place
from tests.storage.values import STALE, claimed, experiment, run
from tidegate.errors import SchemaMismatch
from tidegate.experiments.storage import AttemptRecord, Claim, ClaimStats, ItemAttempts, Store
from tidegate.experiments.storage.schema import HEAD, VERSION_TABLE

pytestmark = pytest.mark.anyio


def attempt(index: int = 0, stage: str = "task", ago: float = 0.0, status: str = "success") -> AttemptRecord:
    kind = "ok" if status == "success" else "rate_limit"
    began = time.monotonic() - ago
    return AttemptRecord(stage, index, began, 0.5, 1.5, status, kind, "none", "p · m", 200, None, 9, 3, 4, 1)


def of_item(claim: Claim, ordinal: int, *audit: AttemptRecord) -> ItemAttempts:
    return ItemAttempts(claim.experiment_id, claim.epoch, ordinal, 1, audit)


@pytest.fixture
async def claim(store: Store) -> Claim:
    return await claimed(store, (await experiment(store)).id)


async def test_attempts_are_kept_with_the_result_and_without_one(store: Store, claim: Claim, place: Place) -> None:
    await store.write([of_item(claim, 0, attempt(status="capacity_retry"))])
    await store.write([replace(run(claim, 0), audit=(attempt(1),)), of_item(claim, 1, attempt())])
    kept = await store.reports.attempts(claim.experiment_id, after=None, limit=10)
    assert [(each["ordinal"], each["call_index"], each["status"]) for each in kept] == [
        (0, 0, "capacity_retry"),
        (0, 1, "success"),
        (1, 0, "success"),
    ]
    told = {name: value for name, value in kept[1].items() if name not in ("started_at", "ordinal", "call_index")}
    assert told == {
        "repetition": 1,
        "stage": "task",
        "run_epoch": claim.epoch,
        "latency": 0.5,
        "waited": 1.5,
        "status": "success",
        "kind": "ok",
        "cause": "none",
        "http_status": 200,
        "key": "p · m",
        "retry_after": None,
        "input_tokens": 9,
        "output_tokens": 3,
        "cached_tokens": 4,
        "reasoning_tokens": 1,
    }
    assert await store.reports.attempt_counts(claim.experiment_id) == {"capacity_retry": 1, "success": 2}


async def test_sqlite_keeps_an_instant_as_every_other_of_the_file(store: Store, claim: Claim, place: Place) -> None:
    if not place.on_sqlite:
        pytest.skip("PostgreSQL has a type for instants")
    await store.write([replace(run(claim, 0), audit=(attempt(),))])
    (began,) = place.sql("SELECT started_at FROM tidegate_attempts")[0]
    (ended,) = place.sql("SELECT finished_at FROM tidegate_runs")[0]
    # They sort as texts.
    assert re.sub("[0-9]", "0", began) == re.sub("[0-9]", "0", ended) == "0000-00-00 00:00:00.000"


async def test_an_attempt_began_at_the_databases_time_less_what_has_passed(store: Store, claim: Claim) -> None:
    await store.write([of_item(claim, 0, attempt(0, ago=7200.0), attempt(1))])
    earlier, later = await store.reports.attempts(claim.experiment_id, after=None, limit=10)
    assert earlier["started_at"].utcoffset() == timedelta(0)
    apart = later["started_at"] - earlier["started_at"]
    assert timedelta(minutes=119) < apart < timedelta(minutes=121)


async def test_pages_have_every_attempt_once(store: Store, claim: Claim) -> None:
    one = [attempt(index, stage) for stage in ("task", "judge") for index in range(3)]
    await store.write([of_item(claim, ordinal, *one) for ordinal in range(3)])
    found: list[tuple[object, ...]] = []
    after = None
    while page := await store.reports.attempts(claim.experiment_id, after=after, limit=4):
        names = ("ordinal", "repetition", "stage", "run_epoch", "call_index")
        found += [tuple(each[name] for name in names) for each in page]
        after = found[-1]  # type: ignore[assignment]
    assert len(found) == 18
    assert found == sorted(set(found))


async def test_a_batch_that_is_written_twice_is_there_once(store: Store, claim: Claim) -> None:
    for _ in range(2):
        await store.write([of_item(claim, 0, attempt())])
    assert await store.reports.attempt_counts(claim.experiment_id) == {"success": 1}


async def test_attempts_of_a_lost_claim_are_refused_with_its_results(store: Store, claim: Claim, place: Place) -> None:
    place.age(claim.experiment_id, 2 * STALE)
    newer = await claimed(store, claim.experiment_id, "b")
    refused = await store.write([replace(run(claim, 0), audit=(attempt(),)), of_item(claim, 1, attempt())])
    assert refused == {claim.experiment_id}
    assert await store.reports.attempt_counts(claim.experiment_id) == {}
    await store.write([of_item(newer, 1, attempt())])
    assert await store.reports.attempt_counts(claim.experiment_id) == {"success": 1}


async def test_statistics_are_those_of_each_claim(store: Store, claim: Claim, place: Place) -> None:
    await store.write([ClaimStats(claim.experiment_id, claim.epoch, {"calls": n}, ended=False) for n in (0, 1)])
    assert await store.reports.claim_stats(claim.experiment_id) == [{"calls": 1}]
    await store.write([ClaimStats(claim.experiment_id, claim.epoch, {"calls": 2})])
    place.age(claim.experiment_id, 2 * STALE)
    newer = await claimed(store, claim.experiment_id, "b")
    await store.write([ClaimStats(newer.experiment_id, newer.epoch, {"calls": 3})])
    assert await store.reports.claim_stats(claim.experiment_id) == [{"calls": 2}, {"calls": 3}]


async def test_nothing_is_written_after_another_version_has_changed_the_schema(
    store: Store, claim: Claim, place: Place
) -> None:
    await store.write([run(claim, 0)])
    place.sql(f"UPDATE {VERSION_TABLE} SET version_num = '0999'")
    try:
        with pytest.raises(SchemaMismatch) as told:
            await store.write([run(claim, 1)])
    finally:
        place.sql(f"UPDATE {VERSION_TABLE} SET version_num = '{HEAD}'")
    assert (told.value.found, told.value.retryable) == ("0999", False)
    assert [each.ordinal for each in await store.reports.results(claim.experiment_id, after=None, limit=9)] == [0]
