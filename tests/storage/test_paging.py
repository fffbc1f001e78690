"""Pages are bounded by bytes as well as by their count, on both databases, and lose no row to that."""

from __future__ import annotations

import pytest

from tests.storage.values import claimed, judged, run
from tidegate.experiments.storage import NewRow, Store, pending
from tidegate.experiments.storage.pending import Page, PageSizer

pytestmark = pytest.mark.anyio

LARGE = "x" * 400
"""A content of 412 characters: two of them fit a page of a thousand."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "PAGE_BYTES", 1000)


async def large(store: Store, count: int) -> int:
    made = await store.experiments.create("large", {}, 1, "")
    await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), {"p": f"{n}{LARGE}"}) for n in range(count)])
    await store.datasets.complete(made.dataset_id, count)
    return made.id


async def test_page_of_large_tasks_ends_before_it_exceeds_the_bytes(store: Store) -> None:
    number = await large(store, 5)
    sizes, after = [], None
    while page := await store.pending.tasks(number, after=after, limit=100, retry_failed=False):
        sizes.append((len(page), page.more))
        assert [task.row for task in page] == [{"p": f"{task.ordinal}{LARGE}"} for task in page]
        assert all(task.size > len(LARGE) for task in page)
        after = page[-1].cursor
    assert sizes == [(2, True), (2, True), (1, False)]


async def test_page_has_one_row_that_is_larger_than_the_bytes(store: Store) -> None:
    made = await store.experiments.create("one", {}, 1, "")
    await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), LARGE * 10) for n in range(2)])
    page = await store.pending.tasks(made.id, after=None, limit=100, retry_failed=False)
    assert (len(page), page.more, page[0].row) == (1, True, LARGE * 10)


async def test_page_of_small_tasks_is_bounded_by_its_count(store: Store) -> None:
    made = await store.experiments.create("small", {}, 2, "")
    await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), n) for n in range(10)])
    page = await store.pending.tasks(made.id, after=None, limit=7, retry_failed=False)
    assert (len(page), page.more) == (7, False)


async def test_page_of_large_evaluations_counts_row_and_answer(store: Store) -> None:
    number = await large(store, 3)
    claim = await claimed(store, number)
    await store.write([run(claim, n, output=LARGE) for n in range(3)])
    sizes, after = [], None
    while page := await store.pending.evals(number, "judge", (), after=after, limit=100, retry_failed=False):
        sizes.append((len(page), page.more))
        assert all(each.output == LARGE and each.row == {"p": f"{each.ordinal}{LARGE}"} for each in page)
        after = page[-1].cursor
    assert sizes == [(1, True), (1, True), (1, False)]


async def test_page_of_an_export_is_bounded_by_bytes(store: Store) -> None:
    number = await large(store, 3)
    claim = await claimed(store, number)
    await store.write([run(claim, 0, output=LARGE), judged(claim, 0), run(claim, 1), run(claim, 2, output=LARGE)])
    pages, after = [], None
    while page := await store.reports.results(number, after=after, limit=100):
        pages.append([(each.ordinal, each.output, len(each.annotations)) for each in page])
        after = page[-1].cursor
    assert pages == [[(0, LARGE, 1)], [(1, "42", 0)], [(2, LARGE, 0)]]


def test_sizer_asks_for_few_rows_once_it_has_seen_large_ones() -> None:
    """SQLite reads a text to tell its size: what a page does not keep is read in vain."""
    sizer = PageSizer()
    assert sizer.limit(1000) == 64
    sizer.saw([1, 1, 1])
    assert sizer.limit(1000) == 1000
    sizer.saw([500])
    assert sizer.limit(1000) == 4
    sizer.saw([10**9])
    assert sizer.limit(1000) == 1
    sizer.saw([])
    assert sizer.limit(1000) == 1


def test_page_is_a_list() -> None:
    assert Page([1, 2]) == [1, 2]
    assert not Page()
