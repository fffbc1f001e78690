"""Datasets as streams of rows: JSONL and CSV files, iterables and asynchronous iterables.

An invalid row is kept as a row with its reason. Memory holds at most two batches: one that is read, and one that is
stored. Files and iterables are read in threads, and asynchronous sources in a task, so a slow source delays nothing
else. Rows that are read are passed on while their source is silent. A source that never answers is abandoned when the
run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import inspect
import json
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tidegate.errors import CannotRead
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.experiment import Dataset
from tidegate.experiments.engine.queues import own_id
from tidegate.experiments.storage import NewRow
from tidegate.pool.threads import in_thread

JSONL = frozenset({".jsonl", ".ndjson", ".jsonlines"})
"""File suffixes of JSON Lines."""
CSV = {".csv": ",", ".tsv": "\t"}
"""File suffixes of tables, with their column separators."""
SEPARATORS = ",;\t|"
"""Column separators of files that are named CSV."""

BATCH_BYTES = 8 * 1024 * 1024
"""Characters of rows at which a batch ends. Chosen: equal to the batch of `experiments.engine.results`."""

SLOW_BATCH_SECONDS = 0.2
"""Seconds after which the rows of a slow source form a batch. Chosen: a person notices no delay, and five transactions
a second cost little."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a JSONL line, and minimum limit of CSV fields. Chosen: a longer line means that the file is not
JSONL."""


async def batches(dataset: Dataset, size: int) -> AsyncIterator[list[NewRow]]:
    """Return the rows of a dataset in their order, in batches of at most `size`.

    Raise `CannotRead` if the source is missing, has an unknown format, or fails while it is read.
    """
    if not isinstance(dataset, str | Path) and callable(dataset):
        dataset = dataset()
    batch = _Batch(size)
    reading = asyncio.ensure_future(batch.read(dataset))
    reading.add_done_callback(lambda _task: batch.ready.set())
    try:
        while not reading.done():
            batch.room.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_BATCH_SECONDS):
                    await batch.ready.wait()
            if rows := batch.take():
                yield rows
        # The source may have ended while the last rows were stored.
        if rows := batch.take():
            yield rows
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    reading.result()


def missing(dataset: Dataset) -> None:
    """Raise `CannotRead` if a dataset's file is missing or has an unknown format, as reading it would."""
    if isinstance(dataset, str | Path):
        _opened(dataset)


MAX_COUNTED_BYTES = 1 << 27
"""Size of a file whose rows are counted before a run, at most. Chosen: a larger one delays the start by seconds."""


def first_rows(dataset: Dataset, limit: int) -> tuple[list[NewRow], int | None]:
    """Return the first rows of a file, a batch at most, and the number of all rows.

    Of another source, and of a file above `MAX_COUNTED_BYTES`, the number is None unless it is known without reading.
    Raise `CannotRead` as reading it would.
    """
    if isinstance(dataset, str | Path):
        rows = _opened(dataset)
        first: list[NewRow] = []
        held = 0
        while held < BATCH_BYTES and len(first) < limit and (row := next(rows, None)) is not None:
            first.append(row)
            held += weight(row.body)
        path = Path(dataset).expanduser()
        if path.stat().st_size > MAX_COUNTED_BYTES:
            return first, None
        if path.suffix.lower() in JSONL:
            # Lines are counted without being parsed: a dataset may have millions.
            with path.open("rb") as file:
                return first, sum(not line.isspace() for line in file)
        return first, len(first) + sum(1 for _ in rows)
    return [], len(dataset) if isinstance(dataset, Sized) else None


def _opened(dataset: Any) -> Iterator[NewRow]:
    if isinstance(dataset, str | Path):
        path = Path(dataset).expanduser()
        suffix = path.suffix.lower()
        if suffix not in JSONL and suffix not in CSV:
            known = ", ".join(sorted({*JSONL, *CSV}))
            raise CannotRead(str(dataset), f"its suffix is unknown; known suffixes are {known}")
        if not path.is_file():
            raise CannotRead(str(dataset), "there is no such file")
        return _jsonl(path) if suffix in JSONL else _csv(path, CSV[suffix])
    if isinstance(dataset, Iterable) and not isinstance(dataset, Mapping | bytes):
        return (row_of(ordinal, body) for ordinal, body in enumerate(dataset))
    raise CannotRead(_source(dataset), "a dataset is a file's path, an iterable, or a function that returns one")


def _source(dataset: Any) -> str:
    return str(dataset) if isinstance(dataset, str | Path) else type(dataset).__name__


def row_of(ordinal: int, body: Any, line: int | None = None) -> NewRow:
    """Return the row to store; its name is its own `id`, else its ordinal."""
    if not isinstance(body, Mapping | list | tuple | str | int | float | bool | None):
        if is_dataclass(body) and not isinstance(body, type):
            body = asdict(body)
        elif hasattr(body, "model_dump"):
            body = body.model_dump(mode="json")
    try:
        called = own_id(body) or str(ordinal)
    except ValueError:
        return _invalid(ordinal, f"its id is a number of more digits than {sys.get_int_max_str_digits()}", line)
    return NewRow(ordinal, called, body, None, line)


def weight(value: Any) -> int:
    """Return the approximate characters of text in a value; numbers and values that are no JSON count little."""
    total, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, Mapping):
            total += 8 * len(each)
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            total += 8 * len(each)
            left.extend(each)
        if total >= BATCH_BYTES:
            # This also ends the walk of a cyclic value.
            break
    return total


def _invalid(ordinal: int, reason: str, line: int | None) -> NewRow:
    # The line names the row if it is known: the ordinal may be another row's id.
    return NewRow(ordinal, str(ordinal) if line is None else f"line {line}", None, reason, line)


def _jsonl(path: Path) -> Iterator[NewRow]:
    ordinal = 0
    with path.open("rb") as file:
        for line, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
            text = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
            if text.isspace() or not text:
                continue
            try:
                row = row_of(ordinal, json.loads(text, parse_constant=_not_json), line)
            except UnicodeDecodeError as error:
                row = _invalid(ordinal, f"not UTF-8: byte {error.start + 1} of the line", line)
            except json.JSONDecodeError as error:
                row = _invalid(ordinal, f"not JSON: {error.msg} at column {error.colno}", line)
            except (ValueError, RecursionError) as error:
                row = _invalid(ordinal, f"not JSON: {error}", line)
            yield row
            ordinal += 1


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _csv(path: Path, delimiter: str) -> Iterator[NewRow]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        # The csv module's default limit, 128 KB a field, is too small for documents in prompts.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = next(reader, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            raise CannotRead(str(path), "two columns have the same name")
        if len(header) == 1 and any(other in header[0] for other in SEPARATORS):
            raise CannotRead(
                str(path), f"its one column is {header[0]!r}; commas (.csv) or tabs (.tsv) separate columns"
            )
        ordinal = 0
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield _invalid(ordinal, f"not CSV: {error}", line)
            else:
                if not fields:
                    continue
                yield _csv_row(ordinal, header, fields, line)
            ordinal += 1


def _csv_row(ordinal: int, header: list[str], fields: list[str], line: int) -> NewRow:
    if len(fields) != len(header):
        return _invalid(ordinal, f"{len(fields)} fields where the header has {len(header)}", line)
    if any("\udc80" <= sign <= "\udcff" for field in fields if not field.isascii() for sign in field):
        return _invalid(ordinal, "not UTF-8", line)
    return row_of(ordinal, dict(zip(header, fields, strict=True)), line)


class _Batch:
    """Rows that are read and not taken yet. `ready` is set when the batch is full, or its source has ended.

    The task that reads continues when there is `room`.
    """

    def __init__(self, size: int) -> None:
        self.ready, self.room = asyncio.Event(), asyncio.Event()
        self._size = size
        self._lock = threading.Lock()
        self._rows: list[NewRow] = []
        self._held = 0

    async def read(self, dataset: Any) -> None:
        """Read all rows, an asynchronous source in this one task: it may hold a scope of its task open."""
        try:
            if isinstance(dataset, AsyncIterable):
                ordinal = 0
                async for body in dataset:
                    if self._add(row_of(ordinal, body)):
                        await self._taken()
                    ordinal += 1
            else:
                rows = _opened(dataset)
                while await in_thread(partial(self._fill, rows)):
                    await self._taken()
        except CannotRead:
            raise
        except (Exception, SystemExit) as error:
            raise CannotRead(_source(dataset), redacted(error)) from error
        finally:
            if inspect.isasyncgen(dataset):
                await dataset.aclose()

    def take(self) -> list[NewRow]:
        with self._lock:
            rows, self._rows, self._held = self._rows, [], 0
        self.ready.clear()
        return rows

    def _fill(self, rows: Iterator[NewRow]) -> bool:
        """Fill the batch in a thread; return whether the source may have more rows."""
        return any(map(self._add, rows))

    def _add(self, row: NewRow) -> bool:
        """Add a row; return whether the batch is full."""
        held = weight(row.body)
        with self._lock:
            self._rows.append(row)
            self._held += held
            return len(self._rows) >= self._size or self._held >= BATCH_BYTES

    async def _taken(self) -> None:
        self.room.clear()
        self.ready.set()
        await self.room.wait()
