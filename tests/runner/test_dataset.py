"""Datasets as rows: every form, every kind of bad row, in batches."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import in_loop
from tidegate.errors import CannotRead
from tidegate.experiments.engine.dataset import batches, first_rows
from tidegate.experiments.engine.experiment import Dataset
from tidegate.experiments.storage import NewRow


async def read(dataset: Dataset, size: int = 2) -> list[NewRow]:
    return [row async for batch in batches(dataset, size) for row in batch]


def of(dataset: Dataset) -> list[NewRow]:
    return asyncio.run(read(dataset))


def test_jsonl_rows_have_their_line_and_their_own_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"q": "a"}\n\n  \n{"id": "x7", "q": "b"}\r\n{"id": 3, "q": "c"}')
    assert of(path) == [
        NewRow(0, "0", {"q": "a"}, None, 1),
        NewRow(1, "x7", {"id": "x7", "q": "b"}, None, 4),
        NewRow(2, "3", {"id": 3, "q": "c"}, None, 5),
    ]


def test_each_kind_of_bad_jsonl_row_is_a_row_with_its_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"q": \n{"q": NaN}\n\xff\n{"q": 1} {"q": 2}\n{"ok": 1}\n')
    rows = of(str(path))
    assert [(row.ordinal, row.line, row.body) for row in rows] == [
        (0, 1, None),
        (1, 2, None),
        (2, 3, None),
        (3, 4, None),
        (4, 5, {"ok": 1}),
    ]
    reasons = [row.invalid or "" for row in rows]
    assert reasons[0].startswith("not JSON: Expecting value at column")
    assert reasons[1] == "not JSON: NaN is not a JSON number"
    assert reasons[2].startswith("not UTF-8")
    assert reasons[3].startswith("not JSON: Extra data at column 10")


def test_csv_rows_are_dicts_by_the_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\ufeffid,q\na,"two\nlines"\nb,plain\n\n', encoding="utf-8")
    assert of(path) == [
        NewRow(0, "a", {"id": "a", "q": "two\nlines"}, None, 2),
        NewRow(1, "b", {"id": "b", "q": "plain"}, None, 4),
    ]


def test_each_kind_of_bad_csv_row_is_a_row_with_its_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\n1\n1,2,3\n\xff,2\n1,"x"y\n1,2\n')
    rows = of(path)
    assert [(row.line, row.body) for row in rows] == [
        (2, None),
        (3, None),
        (4, None),
        (5, None),
        (6, {"a": "1", "b": "2"}),
    ]
    assert [row.invalid for row in rows[:3]] == [
        "1 fields where the header has 2",
        "3 fields where the header has 2",
        "not UTF-8",
    ]
    assert (rows[3].invalid or "").startswith("not CSV")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert of(tmp_path / name) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", '{"n": "0"}\n\n{"n": "1"}\n  \nno json\n{"n": "3"}'),
        ("rows.csv", "n\n0\n\n1\n2,2\n3\n"),
    ],
)
def test_the_first_rows_of_a_file_come_with_the_number_of_all(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    first, count = first_rows(path, 2)
    assert ([row.body for row in first], count) == ([{"n": "0"}, {"n": "1"}], 4)
    assert len(of(path)) == 4


def test_of_a_source_that_can_be_read_once_only_the_number_is_known_if_that() -> None:
    assert first_rows([1, 2, 3], 2) == ([], 3)
    once = iter([1, 2, 3])
    assert first_rows(once, 2) == ([], None)
    assert list(once) == [1, 2, 3]


@dataclass
class Question:
    id: str
    text: str


def test_any_iterable_will_do_also_of_values_with_fields() -> None:
    assert of([Question("q1", "why?"), {"n": 2}, "plain", None]) == [
        NewRow(0, "q1", {"id": "q1", "text": "why?"}),
        NewRow(1, "1", {"n": 2}),
        NewRow(2, "2", "plain"),
        NewRow(3, "3", None),
    ]


def test_id_that_has_no_text_makes_one_invalid_row() -> None:
    """Python writes no number of more than some thousand digits; the rows around it are read."""
    huge = 10**5000
    first, second, third = of([{"id": "a"}, {"id": huge}, {"id": "b"}])
    assert (first.name, second.name, third.name) == ("a", "1", "b")
    assert (first.invalid, second.body, third.invalid) == (None, None, None)
    assert second.invalid is not None
    assert second.invalid.startswith("its id is a number of more digits than ")


def test_a_function_gives_the_rows_anew_each_time() -> None:
    def source() -> Iterator[int]:
        yield from (1, 2)

    assert [row.body for row in of(source)] == [row.body for row in of(source)] == [1, 2]


def test_an_asynchronous_iterable_is_read_in_the_loop() -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    assert [(row.ordinal, row.body) for row in of(source)] == [(number, number) for number in range(5)]
    assert [row.body for row in of(source())] == list(range(5))


@in_loop
async def test_an_endless_source_is_read_no_further_than_its_batches_are_taken() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        for number in itertools.count():
            taken = number + 1
            yield number

    reading = batches(endless, 10)
    assert [len(await anext(reading)) for _ in range(3)] == [10, 10, 10]
    assert taken == 30
    await reading.aclose()  # type: ignore[attr-defined]


@in_loop
async def test_rows_of_a_source_that_is_silent_are_passed_on_and_none_is_lost_at_its_end() -> None:
    go, seen = asyncio.Event(), []

    async def source() -> AsyncIterator[int]:
        yield 1
        await go.wait()
        yield 2

    async for rows in batches(source(), 10):
        seen += [row.body for row in rows]
        go.set()
        # The source ends before the next rows are asked for.
        await asyncio.sleep(0.01)
    assert seen == [1, 2]


def test_a_source_that_breaks_says_what_broke() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(CannotRead, match="OSError: the disk is gone"):
        of(source)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("no/such.jsonl", "there is no such file"),
        ("rows.xlsx", "known suffixes are .csv, .jsonl"),
        ({"a": 1}, "an iterable"),
        (7, "an iterable"),
    ],
)
def test_what_is_no_dataset_is_one_clear_error(dataset: Any, said: str) -> None:
    with pytest.raises(CannotRead, match=said):
        of(dataset)


def test_a_csv_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(CannotRead, match="two columns have the same name"):
        of(path)
