"""`tidegate experiment export`: every run with its row and its judgements, as JSONL, CSV or Parquet.

Runs are read and written page by page: memory holds at most some pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from tidegate.cli.experiment.common import existing, found
from tidegate.errors import ConfigurationError, StoreError
from tidegate.storage import Annotation, Score, Store, StoredRun, decoded
from tidegate.storage.paging import PageSizer

FIXED = ("id", "repetition", "row", "status", "output", "error_kind", "error", "attempts", "seconds", "finished_at")
PARTS = ("score", "label", "value", "error")
"""Columns that a table has for each output of each evaluator."""

ROWS = 10_000
"""Runs in one row group of a Parquet file. Raising it needs more memory. Chosen: few groups in a usual file."""


RISKY = re.compile(r"'*[=+\-@\t\r]")
"""Start of a text that gets a leading `'` in CSV: spreadsheets execute texts with these signs (OWASP, "CSV Injection").

A text that already starts with `'` before such a sign gets one more, so that removing one restores every text.
"""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Text that is a number. It gets no `'`, as it executes nothing."""


class Output(NamedTuple):
    """One output of one evaluator."""

    evaluator: str
    output: str


def columns(scores: Sequence[Score]) -> dict[Output, str]:
    """Return the outputs that an experiment has so far, in order, each with its column name.

    The names are unique: the second `a.b` (an output `b` of `a`, an evaluator `a.b`) is `a.b#2`.
    """
    called: dict[str, Output] = {}
    for each in scores:
        name = next(name for name in _names(each.title) if name not in called)
        called[name] = Output(each.evaluator, each.output)
    return {output: name for name, output in called.items()}


def _names(title: str) -> Iterator[str]:
    yield title
    yield from (f"{title}#{number}" for number in itertools.count(2))


class ExportWriter(Protocol):
    """Writer of runs in one format into a binary file, which the caller closes."""

    def __init__(self, file: IO[bytes], outputs: Mapping[Output, str]) -> None: ...

    def write(self, runs: Sequence[StoredRun]) -> None:
        """Write a page of runs."""

    def close(self) -> None:
        """Write the remaining data."""

    def abandon(self) -> None:
        """Write nothing more: an interrupted export must not look complete."""


class Jsonl:
    """Writer of one JSON object per line, with the row and every judgement unchanged."""

    def __init__(self, file: IO[bytes], outputs: Mapping[Output, str]) -> None:
        self._file = file

    def write(self, runs: Sequence[StoredRun]) -> None:
        """Write a page of runs."""
        for run in runs:
            line = {**_fixed(run), "row": run.row, "output": run.output, "evaluations": _evaluations(run)}
            self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """Do nothing: no data is buffered."""

    def abandon(self) -> None:
        """Do nothing: no data is buffered."""


class Csv:
    """Writer of a table with a header. Rows, and values that are neither text nor number, are JSON in their cells.

    A text that a spreadsheet would take for a formula begins with a quotation mark (`RISKY`).
    """

    def __init__(self, file: IO[bytes], outputs: Mapping[Output, str]) -> None:
        self._outputs = outputs
        self._text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
        self._csv = csv.writer(self._text)
        self._csv.writerow(map(_harmless, _header(outputs)))

    def write(self, runs: Sequence[StoredRun]) -> None:
        """Write a page of runs."""
        self._csv.writerows(map(_harmless, _cells(run, self._outputs)) for run in runs)

    def close(self) -> None:
        """Release the file without closing it."""
        self._text.detach()

    def abandon(self) -> None:
        """Release the file: no data is buffered."""
        with contextlib.suppress(OSError, ValueError):
            self._text.detach()


class Parquet:
    """Writer of the same table with typed columns, compressed, by pyarrow."""

    def __init__(self, file: IO[bytes], outputs: Mapping[Output, str]) -> None:
        if find_spec("pyarrow") is None:
            raise ConfigurationError(
                "format", "parquet", "it needs pyarrow (pip install pyarrow); jsonl and csv need no package"
            )
        import pyarrow
        import pyarrow.parquet

        self._outputs = outputs
        self._cells: list[list[Any]] = []
        self._schema = pyarrow.schema([(name, _type(pyarrow, name)) for name in _header(outputs)])
        self._table = pyarrow.Table
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, runs: Sequence[StoredRun]) -> None:
        """Buffer a page, and write once a row group is full."""
        for run in runs:
            cells = [_unicode(cell) for cell in _cells(run, self._outputs)]
            cells[FIXED.index("finished_at")] = run.finished_on
            self._cells.append(cells)
        if len(self._cells) >= ROWS:
            self._flush()

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Omit the footer, without which it is not a Parquet file."""
        self._writer.is_open = False

    def _flush(self) -> None:
        columns = zip(*self._cells, strict=True) if self._cells else [[] for _ in self._schema]
        named = dict(zip(self._schema.names, map(list, columns), strict=True))
        self._writer.write_table(self._table.from_pydict(named, schema=self._schema))
        self._cells = []


FORMATS: dict[str, type[ExportWriter]] = {"jsonl": Jsonl, "csv": Csv, "parquet": Parquet}


def _fixed(run: StoredRun) -> dict[str, Any]:
    return {
        "id": run.name,
        "repetition": run.repetition,
        "row": None,
        "status": run.status.value,
        "output": None,
        "error_kind": run.error_kind,
        "error": run.error,
        "attempts": run.attempts,
        "seconds": run.seconds,
        "finished_at": run.finished_on.isoformat(),
    }


def _evaluations(run: StoredRun) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for evaluator, each in run.annotations:
        told = {"score": each.score, "label": each.label, "value": decoded(each.value),
                "error_kind": each.error_kind, "error": each.error}  # fmt: skip
        kept = {name: value for name, value in told.items() if value is not None}
        found.setdefault(evaluator, {})[each.output] = {"status": each.status.value, **kept}
    return found


def _header(outputs: Mapping[Output, str]) -> list[str]:
    return [*FIXED, *(f"{name}.{part}" for name in outputs.values() for part in PARTS)]


def _cells(run: StoredRun, outputs: Iterable[Output]) -> list[Any]:
    cells = _fixed(run)
    cells["row"] = _cell(run.row)
    cells["output"] = _cell(run.output)
    judged = {Output(evaluator, each.output): each for evaluator, each in run.annotations}
    return [*cells.values(), *(_part(judged.get(each), part) for each in outputs for part in PARTS)]


def _part(annotation: Annotation | None, part: str) -> Any:
    if annotation is None:
        return None
    if part == "error":
        return annotation.error if annotation.error is not None else annotation.error_kind
    return getattr(annotation, part)


def _harmless(cell: Any) -> Any:
    """Return a CSV cell that no spreadsheet executes and every reader accepts: NUL is written as an escape."""
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\0", "\\x00")
    return f"'{cell}" if RISKY.match(cell) and not NUMBER.fullmatch(cell) else cell


def _unicode(value: Any) -> Any:
    """Escape characters that UTF-8 cannot encode, as the other formats do."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _cell(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _type(pyarrow: Any, name: str) -> Any:
    by_name = {
        "repetition": pyarrow.int32(),
        "attempts": pyarrow.int32(),
        "seconds": pyarrow.float64(),
        "finished_at": pyarrow.timestamp("us", tz="UTC"),
    }
    if name in by_name:
        return by_name[name]
    return pyarrow.float64() if name not in FIXED and name.endswith(".score") else pyarrow.string()


PAGE = 500
"""Maximum runs of one read. Raising it needs fewer reads, each with more memory. Chosen: large rows and answers reduce
it anyway (`storage.paging`)."""


def exported(name: str, url: str, form: str | None, output: Path | None) -> None:
    """Write an experiment's runs to a file or to standard output. A file appears complete, or not at all."""
    chosen = form if form is not None else _form_of(output)
    make = FORMATS[chosen]
    if chosen == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigurationError("output", None, "Parquet is binary and not for a terminal; name a file with --output")
    asyncio.run(_write(name, url, make, output))


async def _write(name: str, url: str, make: type[ExportWriter], output: Path | None) -> None:
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        known = columns(await store.scores(row.id))
        with _opened(output) as file:
            writer = make(file, known)
            try:
                async for page in _pages(store, row.id):
                    writer.write(page)
                writer.close()
            except BaseException:
                writer.abandon()
                raise


async def _pages(store: Store, number: int) -> AsyncIterator[list[StoredRun]]:
    after, sizer = None, PageSizer()
    while page := await store.results(number, after=after, limit=sizer.limit(PAGE)):
        yield page
        after = page[-1].cursor
        sizer.saw([run.size for run in page])


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[IO[Any]]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device: a new file cannot replace it.
            with output.open("wb") as file:
                yield file
            return
        with _beside(output) as file:
            yield file
    except OSError as error:
        raise StoreError(f"export to {output} failed: {error.strerror or error}; no file was replaced") from error


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `output` once it is complete."""
    descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _form_of(output: Path | None) -> str:
    suffix = output.suffix.lower().removeprefix(".") if output is not None else ""
    if not suffix:
        return "jsonl"
    if suffix not in FORMATS:
        raise ConfigurationError(
            "output", str(output), f"its suffix is not .{', .'.join(FORMATS)}; name the format with --format"
        )
    return suffix
