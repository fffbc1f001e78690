"""What is left to do, page by page: nothing twice, nothing forgotten, wherever a page begins."""

from __future__ import annotations

import pytest

from tests.storage.values import claimed, experiment, judged, rows, run
from tidegate.experiments.storage import Claim, PendingEval, PendingTask, Store

pytestmark = pytest.mark.anyio

JUDGE: dict[str, tuple[str, ...]] = {"judge": ()}


async def tasks(store: Store, claim: Claim, limit: int = 1000, retry_failed: bool = False) -> list[tuple[int, int]]:
    """Every pending task item, by pages of `limit`."""
    found: list[PendingTask] = []
    while True:
        after = found[-1].cursor if found else None
        page = await store.pending.tasks(claim.experiment_id, after=after, limit=limit, retry_failed=retry_failed)
        assert len(page) <= limit
        found += page
        if not page:
            return [item.cursor for item in found]


async def evals(
    store: Store, claim: Claim, evaluators: dict[str, tuple[str, ...]], limit: int = 1000, retry_failed: bool = False
) -> list[tuple[int, int, str]]:
    """Every pending eval item, by pages of `limit`."""
    found: list[tuple[int, int, str]] = []
    for name, outputs in evaluators.items():
        after = None
        while page := await store.pending.evals(
            claim.experiment_id, name, outputs, after=after, limit=limit, retry_failed=retry_failed
        ):
            assert len(page) <= limit
            found += [(*item.cursor, name) for item in page]
            after = page[-1].cursor
    return sorted(found)


async def begun(store: Store, count: int = 4, repetitions: int = 1) -> Claim:
    return await claimed(store, (await experiment(store, count, repetitions)).id)


async def test_a_long_stretch_of_finished_rows_is_passed_over_in_one_page(store: Store) -> None:
    claim = await begun(store, 3000)
    await store.write([run(claim, ordinal) for ordinal in range(3000) if ordinal not in (7, 1500, 2999)])
    assert [
        item.ordinal for item in await store.pending.tasks(claim.experiment_id, after=None, limit=3, retry_failed=False)
    ] == [
        7,
        1500,
        2999,
    ]


async def test_rows_that_come_later_are_pending_after_the_last_page(store: Store) -> None:
    made = await experiment(store, 2)
    claim = await claimed(store, made.id)
    last = (await store.pending.tasks(made.id, after=None, limit=10, retry_failed=False))[-1].cursor
    assert await store.pending.tasks(made.id, after=last, limit=10, retry_failed=False) == []
    await store.datasets.add_rows(made.dataset_id, rows(2, start=2))
    assert [item.ordinal for item in await store.pending.tasks(made.id, after=last, limit=10, retry_failed=False)] == [
        2,
        3,
    ]
    assert len(await tasks(store, claim)) == 4


async def test_each_repetition_has_a_row_of_its_own_to_change(store: Store) -> None:
    claim = await begun(store, 1, repetitions=2)
    first, second = await store.pending.tasks(claim.experiment_id, after=None, limit=10, retry_failed=False)
    assert isinstance(first.row, dict)
    first.row["question"] = "changed"
    assert second.row == {"question": "what is 0?"}


async def test_nothing_is_pending_of_an_empty_dataset_nor_of_no_experiment(store: Store) -> None:
    claim = await begun(store, 0)
    assert await tasks(store, claim) == []
    assert await evals(store, claim, JUDGE) == []
    assert await store.pending.tasks(77, after=None, limit=10, retry_failed=True) == []
    assert await store.pending.evals(77, "judge", (), after=None, limit=10, retry_failed=True) == []


async def test_experiments_do_not_see_each_others_results(store: Store) -> None:
    claim = await begun(store, 2)
    second = await claimed(store, (await experiment(store, 2, name="second")).id)
    await store.write([run(second, 0), judged(second, 0)])
    assert await tasks(store, claim) == [(0, 1), (1, 1)]
    assert await tasks(store, second) == [(1, 1)]
    await store.write([run(claim, 0)])
    assert await evals(store, claim, JUDGE) == [(0, 1, "judge")]


async def test_an_eval_item_has_the_row_and_what_the_task_answered(store: Store) -> None:
    claim = await begun(store, 1)
    await store.write([run(claim, 0, output={"city": "Paris"})])
    assert await store.pending.evals(claim.experiment_id, "judge", (), after=None, limit=10, retry_failed=False) == [
        PendingEval(0, 1, {"question": "what is 0?"}, {"city": "Paris"})
    ]


async def test_an_amended_experiment_is_looked_through_from_its_first_row(store: Store) -> None:
    claim = await begun(store, 2)
    await store.write([run(claim, 0), run(claim, 1), judged(claim, 0), judged(claim, 1)])
    await store.experiments.amend(claim, {"evaluators": ["judge", "second"]}, repetitions=2)
    assert await tasks(store, claim) == [(0, 2), (1, 2)]
    assert await evals(store, claim, {"judge": (), "second": ()}) == [(0, 1, "second"), (1, 1, "second")]
