"""Tokens and costs of items: kept with their results, summed by stage, counted once, and fenced like them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage.places import Place
from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Claim,
    ItemAttempts,
    ItemUsage,
    NewRow,
    ResultStatus,
    RunResult,
    Store,
)

pytestmark = pytest.mark.anyio


def usage(tokens: int, spent: int | None = 5, **facts: Any) -> ItemUsage:
    """Return the usage of one answer of that many tokens of output."""
    totals = TokenTotals(1, 10, tokens, 4, 0, 1, int(spent is not None), spent or 0)
    return ItemUsage(totals, "m", "stop", "req_1", 0.5)._replace(**facts)


async def claimed(store: Store, rows: int = 4) -> Claim:
    """Return the claim of an experiment with that many rows."""
    experiment = await store.experiments.create("e", {}, 2, "rows")
    await store.datasets.add_rows(experiment.dataset_id, [NewRow(n, f"row {n}", "{}") for n in range(rows)])
    await store.datasets.complete(experiment.dataset_id, rows)
    claim = await store.claims.claim(experiment.id, "replica", 60.0)
    assert claim is not None
    return claim


def run(claim: Claim, ordinal: int, used: ItemUsage | None, status: ResultStatus = ResultStatus.OK) -> RunResult:
    """Return the result of the first repetition of a row."""
    return RunResult(claim.experiment_id, claim.epoch, ordinal, 1, status, "1", usage=used)


def judged(claim: Claim, ordinal: int, used: ItemUsage | None) -> AnnotationResult:
    """Return a judgement with two outputs."""
    outputs = (Annotation("one", score=1.0), Annotation("two", label="x"))
    return AnnotationResult(claim.experiment_id, claim.epoch, ordinal, 1, "judge", outputs, usage=used)


async def test_usages_are_summed_by_stage_and_read_with_their_runs(store: Store) -> None:
    claim = await claimed(store)
    await store.write(
        [run(claim, 0, usage(7)), run(claim, 1, usage(9)), judged(claim, 0, usage(3)), run(claim, 2, None)]
    )
    assert await store.usages.spend(claim.experiment_id) == {
        "judge": TokenTotals(1, 10, 3, 4, 0, 1, 1, 5),
        "task": TokenTotals(2, 20, 16, 8, 0, 2, 2, 10),
    }
    runs = await store.reports.results(claim.experiment_id, after=None, limit=10)
    assert [sorted(each.usages) for each in runs] == [["judge", "task"], ["task"], []]
    assert runs[0].usages["task"] == usage(7)


async def test_a_result_that_is_written_again_counts_once(store: Store) -> None:
    claim = await claimed(store)
    waiting = ItemAttempts(claim.experiment_id, claim.epoch, 0, 1, (), usage=usage(5))
    for _ in range(2):
        await store.write([waiting])
    assert (await store.usages.spend(claim.experiment_id))["task"].output_tokens == 5
    # The item's own total under this claim, with the attempt from before.
    both = usage(5)._replace(tokens=usage(5).tokens.plus(usage(8).tokens))
    await store.write([waiting, run(claim, 0, both)])
    await store.write([run(claim, 0, both)])
    assert await store.usages.spend(claim.experiment_id) == {"task": TokenTotals(2, 20, 13, 8, 0, 2, 2, 10)}


async def test_what_an_earlier_claim_has_spent_stays_counted(store: Store, place: Place) -> None:
    claim = await claimed(store)
    await store.write([run(claim, 0, usage(5), ResultStatus.ERROR)])
    place.age(claim.experiment_id, 120.0)
    later = await store.claims.claim(claim.experiment_id, "replica", 60.0)
    assert later is not None
    await store.write([run(later, 0, usage(6, None, request_id="req_2"))])
    assert await store.usages.spend(claim.experiment_id) == {"task": TokenTotals(2, 20, 11, 8, 0, 2, 1, 5)}
    (stored,) = await store.reports.results(claim.experiment_id, after=None, limit=10)
    assert stored.usages["task"].tokens.output_tokens == 11
    assert stored.usages["task"].request_id == "req_2"
    assert stored.usages["task"].waited == 1.0
