"""Datasets as streams of rows: JSONL and CSV files, iterables, asynchronous ones. A bad row is a row, with its reason.

Nothing here holds more than one batch. Files and iterables are read in threads, a batch at a time, so that a slow
source holds up nothing else; one that never answers is left behind when the run ends.
"""

from __future__ import annotations

import csv
import inspect
import json
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tidegate.errors import CannotRead
from tidegate.runner.experiment import Dataset
from tidegate.runner.redaction import redacted
from tidegate.runner.threads import in_thread
from tidegate.storage import NewRow

JSONL = frozenset({".jsonl", ".ndjson", ".jsonlines"})
CSV = {".csv": ",", ".tsv": "\t"}
SEPARATORS = ",;\t|"
"""What separates columns in files that are called CSV."""

BATCH_BYTES = 8 * 1024 * 1024
"""Characters of a batch of large rows: more hold more memory, fewer ask for more transactions."""

SLOW = 0.2
"""Seconds after which the rows of a slow source are a batch, however few they are: they can be answered meanwhile."""

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of a JSONL line that are still read as a row: more is a file that is not JSONL."""


async def batches(dataset: Dataset, size: int) -> AsyncIterator[list[NewRow]]:
    """The rows of a dataset in batches of `size`, in their order.

    Raises `CannotRead` where the source is missing, of no known form, or fails while it is read.
    """
    if not isinstance(dataset, str | Path) and callable(dataset):
        dataset = dataset()
    if isinstance(dataset, AsyncIterable):
        async for batch in _awaited(dataset, size):
            yield batch
        return
    rows = _Rows(_opened(dataset))
    while batch := await in_thread(partial(rows.batch, size)):
        yield batch


def missing(dataset: Dataset) -> None:
    """Raises `CannotRead` where a dataset's file is not there or of no known form; the same as reading it would."""
    if isinstance(dataset, str | Path):
        _opened(dataset)


def _opened(dataset: Any) -> Iterator[NewRow]:
    if isinstance(dataset, str | Path):
        path = Path(dataset).expanduser()
        suffix = path.suffix.lower()
        if suffix not in JSONL and suffix not in CSV:
            known = ", ".join(sorted({*JSONL, *CSV}))
            raise CannotRead(str(dataset), f"its form is not known by its name; known are {known}")
        if not path.is_file():
            raise CannotRead(str(dataset), "there is no such file")
        return _jsonl(path) if suffix in JSONL else _csv(path, CSV[suffix])
    if isinstance(dataset, Iterable) and not isinstance(dataset, Mapping | bytes):
        return (row_of(ordinal, body) for ordinal, body in enumerate(dataset))
    raise CannotRead(type(dataset).__name__, "a dataset is a file's path, an iterable, or a function that returns one")


def row_of(ordinal: int, body: Any, line: int | None = None) -> NewRow:
    """A row as it is stored; its own `id` is its name, where it has one."""
    if not isinstance(body, Mapping | list | tuple | str | int | float | bool | None):
        if is_dataclass(body) and not isinstance(body, type):
            body = asdict(body)
        elif hasattr(body, "model_dump"):
            body = body.model_dump(mode="json")
    name = body.get("id") if isinstance(body, Mapping) else None
    known = isinstance(name, str | int) and not isinstance(name, bool) and name != ""
    try:
        called = str(name) if known else str(ordinal)
    except ValueError:
        return _invalid(ordinal, f"its id is a number of more digits than {sys.get_int_max_str_digits()}", line)
    return NewRow(ordinal, called, body, None, line)


def weight(value: Any) -> int:
    """About how many characters of text a value holds; numbers and what is no JSON count little."""
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
            # Cycles, too, come to an end here.
            break
    return total


def _invalid(ordinal: int, reason: str, line: int | None) -> NewRow:
    # By its line, where it has one: another row may have its place for an id.
    return NewRow(ordinal, str(ordinal) if line is None else f"line {line}", None, reason, line)


def _jsonl(path: Path) -> Iterator[NewRow]:
    ordinal = 0
    with path.open("rb") as file:
        for line, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
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
    raise ValueError(f"{name} is no JSON number")


def _csv(path: Path, delimiter: str) -> Iterator[NewRow]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        # Its own limit, 128 KB a field, is less than the documents that models are asked about.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = next(reader, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            raise CannotRead(str(path), "two columns have one name")
        if len(header) == 1 and any(other in header[0] for other in SEPARATORS):
            raise CannotRead(
                str(path), f"its one column is {header[0]!r}: commas (.csv) or tabs (.tsv) separate columns"
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


class _Rows:
    """Rows of a source that blocks, a batch at a time. One that fails gives what it had before, and then fails."""

    def __init__(self, rows: Iterator[NewRow]) -> None:
        self._rows = rows
        self._error: CannotRead | None = None

    def batch(self, size: int) -> list[NewRow]:
        """The next rows, fewer than `size` where they come slowly or are large; none at the end."""
        batch: list[NewRow] = []
        held = 0
        until = time.monotonic() + SLOW
        try:
            while self._error is None and len(batch) < size and (not batch or time.monotonic() < until):
                batch.append(next(self._rows))
                held += weight(batch[-1].body)
                if held >= BATCH_BYTES:
                    break
        except StopIteration:
            pass
        except CannotRead as error:
            self._error = error
        except (Exception, SystemExit) as error:
            self._error = _broken(error)
        if self._error is not None and not batch:
            raise self._error
        return batch


async def _awaited(dataset: AsyncIterable[Any], size: int) -> AsyncIterator[list[NewRow]]:
    """As `_Rows` does it, of a source that is awaited."""
    batch: list[NewRow] = []
    ordinal, held, until = 0, 0, time.monotonic() + SLOW
    broken: CannotRead | None = None
    try:
        async for body in dataset:
            batch.append(row_of(ordinal, body))
            ordinal += 1
            held += weight(batch[-1].body)
            if len(batch) >= size or held >= BATCH_BYTES or time.monotonic() >= until:
                yield batch
                batch, held, until = [], 0, time.monotonic() + SLOW
    except Exception as error:
        broken = _broken(error)
    finally:
        if inspect.isasyncgen(dataset):
            await dataset.aclose()
    if batch:
        yield batch
    if broken is not None:
        raise broken


def _broken(error: BaseException) -> CannotRead:
    broken = CannotRead("that is being read", redacted(error))
    broken.__cause__ = error
    return broken
