"""Datasets as streams of rows: JSONL and CSV files, iterables and asynchronous iterables.

An invalid row is kept as a row with its reason. Memory holds at most one batch. Files and iterables are read in
threads, one batch at a time, so a slow source delays nothing else. A source that never answers is abandoned when the
run ends.
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
from tidegate.runner.item import own_id
from tidegate.runner.redaction import redacted
from tidegate.scheduling.threads import in_thread
from tidegate.storage import NewRow

JSONL = frozenset({".jsonl", ".ndjson", ".jsonlines"})
"""File suffixes of JSON Lines."""
CSV = {".csv": ",", ".tsv": "\t"}
"""File suffixes of tables, with their column separators."""
SEPARATORS = ",;\t|"
"""Column separators of files that are named CSV."""

BATCH_BYTES = 8 * 1024 * 1024
"""Characters of rows at which a batch ends. Raising it uses more memory; lowering it needs more transactions. Chosen:
equal to the batch of `runner.writer`."""

SLOW_BATCH_SECONDS = 0.2
"""Seconds after which the rows of a slow source form a batch. Raising it answers the first rows of such a source later.
Chosen: a person notices no delay, and five transactions a second cost little."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a JSONL line, and minimum limit of CSV fields. Raising it needs more memory for a file without line
breaks. Chosen: a longer line means that the file is not JSONL."""


async def batches(dataset: Dataset, size: int) -> AsyncIterator[list[NewRow]]:
    """Return the rows of a dataset in their order, in batches of at most `size`.

    Raise `CannotRead` if the source is missing, has an unknown format, or fails while it is read.
    """
    if not isinstance(dataset, str | Path) and callable(dataset):
        dataset = dataset()
    if isinstance(dataset, AsyncIterable):
        async for batch in _awaited(dataset, size):
            yield batch
        return
    rows = _Rows(_opened(dataset), _source(dataset))
    while batch := await in_thread(partial(rows.batch, size)):
        yield batch


def missing(dataset: Dataset) -> None:
    """Raise `CannotRead` if a dataset's file is missing or has an unknown format, as reading it would."""
    if isinstance(dataset, str | Path):
        _opened(dataset)


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
    """Return the path of a dataset, or the type of any other one, for an error."""
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


class _Rows:
    """Rows of a blocking source, one batch at a time. A failing source returns its earlier rows, and then raises."""

    def __init__(self, rows: Iterator[NewRow], source: str) -> None:
        self._rows = rows
        self._source = source
        self._error: CannotRead | None = None

    def batch(self, size: int) -> list[NewRow]:
        """Return the next rows; fewer than `size` if they are slow or large, none at the end."""
        batch: list[NewRow] = []
        held = 0
        until = time.monotonic() + SLOW_BATCH_SECONDS
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
            self._error = _broken(self._source, error)
        if self._error is not None and not batch:
            raise self._error
        return batch


async def _awaited(dataset: AsyncIterable[Any], size: int) -> AsyncIterator[list[NewRow]]:
    """Return batches of an asynchronous source, as `_Rows` does for a blocking one."""
    batch: list[NewRow] = []
    ordinal, held, until = 0, 0, time.monotonic() + SLOW_BATCH_SECONDS
    broken: CannotRead | None = None
    try:
        async for body in dataset:
            batch.append(row_of(ordinal, body))
            ordinal += 1
            held += weight(batch[-1].body)
            if len(batch) >= size or held >= BATCH_BYTES or time.monotonic() >= until:
                yield batch
                batch, held, until = [], 0, time.monotonic() + SLOW_BATCH_SECONDS
    except Exception as error:
        broken = _broken(_source(dataset), error)
    finally:
        if inspect.isasyncgen(dataset):
            await dataset.aclose()
    if batch:
        yield batch
    if broken is not None:
        raise broken


def _broken(source: str, error: BaseException) -> CannotRead:
    broken = CannotRead(source, redacted(error))
    broken.__cause__ = error
    return broken
