"""Batches of results: whole or not at all, one row an identity, and nothing good is lost to anything worse."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.storage.places import Place
from tests.storage.values import ERROR, OK, PARKED, claimed, experiment, failure, judged, run
from tidegate.errors import StoreError
from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Category,
    Claim,
    LogLevel,
    LogLine,
    Score,
    Store,
    StoredRun,
    encoded,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def claim(store: Store) -> Claim:
    """An experiment of three rows, twice each, claimed by replica a."""
    return await claimed(store, (await experiment(store, 3, 2)).id)


async def everything(store: Store, claim: Claim) -> list[StoredRun]:
    return await store.reports.results(claim.experiment_id, after=None, limit=1000)


async def test_what_was_written_is_read_again_as_it_was(store: Store, claim: Claim) -> None:
    nice = [
        Annotation("score", score=0.25, value=encoded({"why": ["é", "\x00"]})),
        Annotation("style", label="terse \x00"),
    ]
    await store.write([run(claim, 1, 2, output={"city": "Rome"}), judged(claim, 1, "judge", 2, nice)])
    await store.write([run(claim, 0, status=ERROR)])
    first, second = await everything(store, claim)
    assert (first.cursor, first.status, first.output, first.row) == ((0, 1), ERROR, None, {"question": "what is 0?"})
    assert (first.error_kind, first.error, first.annotations) == ("RateLimitError", "no luck", ())
    assert (second.cursor, second.status, second.output) == ((1, 2), OK, {"city": "Rome"})
    assert (second.name, second.attempts, second.seconds) == ("1", 1, 0.5)
    assert second.annotations == (("judge", nice[0]), ("judge", replace(nice[1], label="terse �")))


async def test_results_are_read_by_pages(store: Store, claim: Claim) -> None:
    await store.write([run(claim, ordinal, repetition) for ordinal in range(3) for repetition in (1, 2)])
    await store.write([judged(claim, 1, "judge", 2)])
    whole = await everything(store, claim)
    pages: list[StoredRun] = []
    while page := await store.reports.results(claim.experiment_id, after=pages[-1].cursor if pages else None, limit=1):
        pages += page
    assert [one.cursor for one in pages] == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert pages == whole


async def test_of_two_results_of_one_item_in_one_batch_the_last_good_one_counts(store: Store, claim: Claim) -> None:
    await store.write([run(claim, 0, output="first"), run(claim, 0, output="second"), run(claim, 0, status=ERROR)])
    await store.write([run(claim, 1, status=ERROR), run(claim, 1, status=PARKED)])
    assert [(one.status, one.output) for one in await everything(store, claim)] == [(OK, "second"), (PARKED, None)]


async def test_an_annotation_without_its_run_is_refused_with_its_whole_batch(store: Store, claim: Claim) -> None:
    with pytest.raises(StoreError) as refused:
        await store.write([run(claim, 0), judged(claim, 1)])
    assert not refused.value.retryable
    assert await everything(store, claim) == []


async def test_results_of_a_lost_experiment_do_not_keep_back_those_of_others(store: Store, claim: Claim) -> None:
    lost = await claimed(store, (await experiment(store, name="lost")).id)
    newer = await claimed(store, lost.experiment_id)
    unknown = Claim(77, "a", 1)
    batch = [run(claim, 0), run(lost, 0), judged(lost, 0), judged(claim, 0), run(unknown, 0)]
    assert await store.write(batch) == {lost.experiment_id, 77}
    assert len(await everything(store, claim)) == 1
    assert await everything(store, newer) == []


async def test_log_lines_are_kept_in_order_and_fenced_as_results_are(store: Store, claim: Claim) -> None:
    lines = [
        LogLine(claim.experiment_id, claim.epoch, LogLevel.WARN, Category.TASK, {"row": 3, "why": "\x00"}),
        LogLine(claim.experiment_id, claim.epoch, LogLevel.ERROR, Category.EXPERIMENT, {"why": "stopped"}),
    ]
    assert await store.write(lines) == frozenset()
    await claimed(store, claim.experiment_id)
    assert await store.write(lines) == {claim.experiment_id}
    first, second = await store.reports.last_logs(claim.experiment_id, 10)
    assert (first.level, first.category, first.detail) == (LogLevel.WARN, Category.TASK, {"row": 3, "why": "\x00"})
    assert second.detail == {"why": "stopped"}
    assert await store.reports.last_logs(claim.experiment_id, 1) == [second]


async def test_scores_are_means_of_what_was_scored_and_an_error_is_no_zero(store: Store, claim: Claim) -> None:
    await store.write([run(claim, n) for n in range(3)])
    await store.write(
        [
            judged(claim, 0, annotations=[Annotation("exact", score=1.0), Annotation("style", label="terse")]),
            judged(claim, 1, annotations=[Annotation("exact", score=0.5), Annotation("style", label="terse")]),
            judged(claim, 2, annotations=[failure("exact"), failure("style")]),
            judged(claim, 0, "other", annotations=[Annotation("note", value=encoded("anything"))]),
        ]
    )
    assert await store.reports.scores(claim.experiment_id) == [
        Score("judge", "exact", ok=2, failed=1, scored=2, mean=0.75, labels={}, labelled=0, valued=0),
        Score("judge", "style", ok=2, failed=1, scored=0, mean=None, labels={"terse": 2}, labelled=2, valued=0),
        Score("other", "note", ok=1, failed=0, scored=0, mean=None, labels={}, labelled=0, valued=1),
    ]


async def test_an_output_with_more_labels_than_people_read_has_none_in_the_summary(store: Store) -> None:
    claim = await claimed(store, (await experiment(store, 101, name="many")).id)
    await store.write([run(claim, n) for n in range(101)])
    await store.write([judged(claim, n, annotations=[Annotation("text", label=str(n))]) for n in range(101)])
    (score,) = await store.reports.scores(claim.experiment_id)
    assert (score.ok, score.labels) == (101, {})


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_is_a_finite_number(score: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Annotation("score", score=score)


def test_what_failed_has_no_score() -> None:
    with pytest.raises(ValueError, match="a failed one has none"):
        Annotation("score", ERROR, score=0.0)


def test_an_eval_result_has_at_least_one_output() -> None:
    with pytest.raises(ValueError, match="no outputs"):
        AnnotationResult(1, 1, 0, 1, "judge", ())


async def test_a_write_that_is_cancelled_leaves_the_store_as_it_was(store: Store, claim: Claim, place: Place) -> None:
    with place.locked() as held:
        writing = asyncio.create_task(store.write([run(claim, 0)]))
        await place.waiting(1)
        writing.cancel()
        held.rollback()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert await store.write([run(claim, 1)]) == frozenset()
    assert (1, 1) in [one.cursor for one in await everything(store, claim)]


async def test_many_who_write_at_once_through_one_store_all_succeed(store: Store, claim: Claim) -> None:
    batches = [[run(claim, ordinal, repetition)] for ordinal in range(3) for repetition in (1, 2)] * 5
    assert await asyncio.gather(*map(store.write, batches)) == [frozenset()] * 30
    assert len(await everything(store, claim)) == 6
