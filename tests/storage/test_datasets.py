"""Experiments by name, and their rows: contents once each, every name once, a broken-off reading taken up again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.storage.places import Place
from tests.storage.values import claimed, experiment, rows, run
from tidegate.errors import DatasetChanged, DuplicateRow
from tidegate.experiments.storage import NewRow, PendingTask, ResultStatus, Status, Store

pytestmark = pytest.mark.anyio


async def stored(store: Store, experiment_id: int) -> list[PendingTask]:
    """Every row, as the task would get it."""
    return await store.pending.tasks(experiment_id, after=None, limit=1000, retry_failed=False)


async def test_an_experiment_is_made_once_by_its_name(store: Store, other: Store) -> None:
    made = await store.experiments.create("capitals", {"task": "eval.py:answer"}, 3, "questions.jsonl")
    again = await other.experiments.create("capitals", {"task": "other.py:answer"}, 5, "other.jsonl")
    assert again == made
    assert (made.name, made.source, made.repetitions) == ("capitals", "questions.jsonl", 3)
    assert (made.spec, made.status, made.rows, made.complete) == ({"task": "eval.py:answer"}, Status.READY, 0, False)
    assert abs(datetime.now(UTC) - made.created_on) < timedelta(minutes=5)


async def test_many_who_make_the_same_experiment_at_once_get_the_same(store: Store, other: Store, place: Place) -> None:
    makers = [one.experiments.create("capitals", {}, 1, str(n)) for n, one in enumerate([store, other] * 4)]
    made = await asyncio.gather(*makers)
    assert {one.id for one in made} == {made[0].id}
    assert place.sql("SELECT count(*) FROM tidegate_datasets") == [(1,)]


async def test_who_makes_an_experiment_while_somebody_else_does_gets_his(store: Store, place: Place) -> None:
    first = (
        "INSERT INTO tidegate_datasets (id, source, rows, complete, created_at) "
        f"VALUES (70, 'his.jsonl', 0, {'0' if place.on_sqlite else 'false'}, {place.ago(0)})",
        "INSERT INTO tidegate_experiments (id, name, dataset_id, repetitions, spec, created_at) "
        f"VALUES (70, 'capitals', 70, 2, '{{}}', {place.ago(0)})",
        "INSERT INTO tidegate_execution_configs (experiment_id, status, epoch, created_at) "
        f"VALUES (70, 'READY', 0, {place.ago(0)})",
    )
    with place.begun(*first) as held:
        making = asyncio.create_task(store.experiments.create("capitals", {}, 1, "mine.jsonl"))
        await place.waiting(1)
        held.commit()
        made = await making
    assert (made.id, made.source, made.repetitions) == (70, "his.jsonl", 2)
    assert place.sql("SELECT count(*) FROM tidegate_datasets") == [(1,)]


async def test_an_experiment_is_found_by_name_and_by_number(store: Store) -> None:
    made = await experiment(store)
    assert (
        await store.experiments.find("capitals")
        == await store.experiments.find(made.id)
        == await store.experiments.find(str(made.id))
    )
    named = await experiment(store, name=str(made.id))
    found = await store.experiments.find(str(made.id))
    assert found is not None
    assert found.id == named.id
    for unknown in ("cities", 77, "77", "٧", "9" * 40, "", 2**63, -1, 10**5000):
        assert await store.experiments.find(unknown) is None


async def test_every_experiment_is_listed_with_its_runs_the_newest_first(store: Store) -> None:
    assert await store.experiments.every() == []
    first, second = await experiment(store), await experiment(store, name="second")
    claim = await claimed(store, first.id)
    await store.write([run(claim, 0), run(claim, 1), run(claim, 2, status=ResultStatus.PARKED)])
    listed = await store.experiments.every()
    assert [one.id for one in listed] == [second.id, first.id]
    tallies = await store.tallies.of([one.id for one in listed])
    assert [tallies[one.id]["task"].counts for one in listed] == [{}, {"ok": 2, "parked": 1}]


async def test_rows_come_back_as_they_were_with_their_names_and_lines(store: Store, place: Place) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    content = {"b": [1, 2.5, None, True, "é \x00 \ud800 😀"], "a": {"z": "", "y": {}}}
    await store.datasets.add_rows(
        made.dataset_id, [NewRow(0, "first", content, line=1), NewRow(1, "bad", invalid="no \x00 comma", line=2)]
    )
    await store.datasets.complete(made.dataset_id, 2)
    assert await stored(store, made.id) == [
        PendingTask(0, 1, content, line=1),
        PendingTask(1, 1, None, invalid="no � comma", line=2),
    ]
    assert place.sql("SELECT name FROM tidegate_dataset_rows ORDER BY ordinal") == [("first",), ("bad",)]
    found = await store.experiments.find(made.id)
    assert found is not None
    assert (found.rows, found.complete) == (2, True)


async def test_equal_contents_are_kept_once_in_all_datasets(store: Store, place: Place) -> None:
    for name in ("one", "two"):
        made = await store.experiments.create(name, {}, 1, "questions.jsonl")
        same = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2.0}]
        await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), body) for n, body in enumerate(same)])
    assert place.sql("SELECT count(*) FROM tidegate_contents") == [(2,)]


async def test_what_json_has_no_word_for_is_an_invalid_row_and_not_the_end(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "a list")
    bodies: list[object] = [{"x": float("nan")}, {"x": {1, 2}}, {1: "a", "b": "c"}, {"x": "good"}]
    await store.datasets.add_rows(made.dataset_id, [NewRow(n, str(n), body) for n, body in enumerate(bodies)])  # type: ignore[arg-type]
    found = await stored(store, made.id)
    assert [row.invalid is None for row in found] == [False, False, False, True]
    reasons = [row.invalid for row in found if row.invalid is not None]
    assert all(reason.startswith("value not storable: it is not JSON: ") for reason in reasons)


async def test_an_empty_row_is_a_row(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, [NewRow(0, "0", None), NewRow(1, "1", {}), NewRow(2, "2", "")])
    assert [row.row for row in await stored(store, made.id)] == [None, {}, ""]


async def test_adding_no_rows_is_nothing(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, [])
    assert await stored(store, made.id) == []


async def test_two_rows_of_one_batch_with_one_name_are_told_by_their_lines(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    batch = [NewRow(0, "paris", 1, line=1), NewRow(1, "rome", 2, line=3), NewRow(2, "paris", 1, line=4)]
    with pytest.raises(DuplicateRow, match="'paris': lines 1 and 4") as told:
        await store.datasets.add_rows(made.dataset_id, batch)
    assert (told.value.name, told.value.first_line, told.value.line, told.value.retryable) == ("paris", 1, 4, False)
    assert await stored(store, made.id) == []


async def test_a_row_with_the_name_of_an_earlier_one_is_told_by_their_lines(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(3))
    later = [*rows(2, start=3), NewRow(5, "1", {"x": 1}, line=9)]
    with pytest.raises(DuplicateRow, match="'1': lines 2 and 9"):
        await store.datasets.add_rows(made.dataset_id, later)
    assert len(await stored(store, made.id)) == 3


async def test_a_name_may_return_in_another_dataset(store: Store) -> None:
    assert (await experiment(store)).id != (await experiment(store, name="second")).id


async def test_a_reading_that_was_broken_off_is_taken_up_by_reading_again(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(700))
    await store.datasets.add_rows(made.dataset_id, [*rows(699), replace(rows(1, start=699)[0]), *rows(50, start=700)])
    found = await store.experiments.find(made.id)
    assert found is not None
    assert found.rows == 750
    assert [row.ordinal for row in await stored(store, made.id)] == list(range(750))


async def test_rows_that_are_there_are_read_again(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    all_rows = [*rows(300), NewRow(300, "bad", invalid="no \x00 comma", line=301)]
    await store.datasets.add_rows(made.dataset_id, all_rows)
    await store.datasets.add_rows(made.dataset_id, all_rows)
    found = await store.experiments.find(made.id)
    assert found is not None
    assert found.rows == 301


async def test_a_row_that_has_only_moved_to_another_line_is_the_same_row(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(3))
    moved = [replace(row, line=(row.line or 0) + 7) for row in rows(5)]
    await store.datasets.add_rows(made.dataset_id, moved)
    assert [row.line for row in await stored(store, made.id)] == [1, 2, 3, 11, 12]


async def test_a_source_that_has_become_shorter_is_told(store: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(5))
    with pytest.raises(DatasetChanged, match="row 3 is no longer there") as told:
        await store.datasets.complete(made.dataset_id, 3)
    assert (told.value.ordinal, told.value.gone) == (3, True)
    await store.datasets.complete(made.dataset_id, 5)
    found = await store.experiments.find(made.id)
    assert found is not None
    assert found.complete


@pytest.mark.parametrize("at", [0, 499, 500, 998, 999])
async def test_an_edit_is_found_wherever_it_is_in_a_page(store: Store, at: int) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(1000))
    edited = [replace(row, body={"question": "another?"}) if row.ordinal == at else row for row in rows(1000)]
    with pytest.raises(DatasetChanged) as told:
        await store.datasets.add_rows(made.dataset_id, edited)
    assert told.value.ordinal == at


@pytest.mark.parametrize(
    "changed",
    [
        NewRow(1, "1", {"question": "another?"}, line=2),
        NewRow(1, "renamed", {"question": "what is 1?"}, line=2),
        NewRow(1, "1", invalid="it is no more", line=2),
    ],
    ids=["content", "name", "invalid"],
)
async def test_a_row_that_is_another_one_by_now_is_told_and_nothing_is_changed(store: Store, changed: NewRow) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(3))
    before = await stored(store, made.id)
    with pytest.raises(DatasetChanged, match="line 2") as told:
        await store.datasets.add_rows(made.dataset_id, [rows(1)[0], changed, *rows(2, start=2)])
    assert (told.value.ordinal, told.value.line) == (1, 2)
    assert await stored(store, made.id) == before


async def test_two_who_read_the_same_dataset_at_once_store_it_once(store: Store, other: Store) -> None:
    made = await store.experiments.create("capitals", {}, 1, "questions.jsonl")
    one, two = rows(400), list(reversed(rows(400)))
    await asyncio.gather(store.datasets.add_rows(made.dataset_id, one), other.datasets.add_rows(made.dataset_id, two))
    found = await store.experiments.find(made.id)
    assert found is not None
    assert found.rows == 400
    assert len(await stored(store, made.id)) == 400
