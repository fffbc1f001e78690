"""Formats of an export: every run with its row and judgements, as JSONL, CSV or Parquet, page by page."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import IO, Any, NamedTuple, TypeAlias

from tidegate.core.values import AnsweredBy
from tidegate.errors import ConfigurationError
from tidegate.experiments.storage.pending import PageSizer
from tidegate.experiments.storage.records import Annotation, ItemUsage, ResultStatus, Score, StoredRun
from tidegate.experiments.storage.stage_sums import TASKS
from tidegate.experiments.storage.store import Store
from tidegate.experiments.storage.stored_forms import decoded

FIXED = ("id", "repetition", "row", "status", "output", "error_kind", "error", "attempts", "seconds", "finished_at")
CHOSEN = "answered_by"
"""Column of the choices of fallbacks, in a table with any, and part of each output of an evaluator with any."""

SPENT = (
    "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost", "model", "finish_reason",
    "request_id", "waited",
)  # fmt: skip
"""Columns of the governed calls of a task: tokens, US dollars, facts of the last answer, seconds waited."""

GROUP_ROWS = 10_000
"""Runs in one row group of a Parquet file. Chosen: few groups in a usual file."""


RISKY = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Start of a text that gets a leading `'` in CSV: spreadsheets execute texts with these signs (OWASP, "CSV Injection").
The last four are the full-width forms of the first four.

A text that already starts with `'` before such a sign gets one more, so that removing one restores every text.
"""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Text that is a number. It gets no `'`, as it executes nothing."""


Output: TypeAlias = tuple[str, str]
"""Evaluator and output."""


class Layout(NamedTuple):
    """Columns of a table after the fixed ones: the fields of the first row, then the parts of each output.

    Where tasks have a fallback, a column for its choices stands between them. So do columns of tokens and costs
    (`SPENT`), where tasks make governed calls. Each has a unique name: the second `a.b` (an output `b` of `a`, an
    evaluator `a.b`) is `a.b#2`.
    """

    fields: Mapping[str, str]
    parts: Mapping[tuple[Output, str], str]
    chosen: bool = False
    spent: bool = False

    @property
    def header(self) -> list[str]:
        more = [*([CHOSEN] if self.chosen else ()), *(SPENT if self.spent else ())]
        return [*FIXED, *more, *self.fields.values(), *self.parts.values()]

    @classmethod
    def of(cls, scores: Sequence[Score], first: Any, chosen: bool, spent: bool = False) -> Layout:
        """Return the columns for the outputs that an experiment has so far, and for rows like the `first` one.

        `chosen` says that tasks have a fallback, `spent` that they make governed calls.
        """
        titles: set[str] = set()
        parts: dict[tuple[Output, str], str] = {}
        for each in scores:
            title = next(name for name in _names(each.title) if name not in titles)
            titles.add(title)
            parts |= {((each.evaluator, each.output), part): f"{title}.{part}" for part in _parts(each)}
        taken, fields = {*FIXED, CHOSEN, *SPENT, *parts.values()}, dict[str, str]()
        for field in first if isinstance(first, dict) else ():
            fields[field] = next(name for name in _names(f"row.{field}") if name not in taken)
            taken.add(fields[field])
        return cls(fields, parts, chosen, spent)


async def layout_of(store: Store, number: int, first: Sequence[StoredRun]) -> Layout:
    """Return the columns for an experiment, whose `first` runs these are."""
    scores = await store.reports.scores(number)
    chosen = any(each.evaluator is None for each in await store.reports.choices(number))
    spent = TASKS in await store.usages.spend(number)
    return Layout.of(scores, first[0].row if first else None, chosen, spent)


def _parts(score: Score) -> Iterator[str]:
    """Yield the parts of an output that a result has; all while there is no result."""
    counts = {"score": score.scored, "label": score.labelled, "value": score.valued, "error": 1}
    yield from (part for part, count in counts.items() if count or not score.ok)
    yield from (CHOSEN,) if score.chosen else ()


def _names(title: str) -> Iterator[str]:
    yield title
    yield from (f"{title}#{number}" for number in itertools.count(2))


class Jsonl:
    """Writer of one JSON object per line, with the row and every judgement unchanged."""

    def __init__(self, file: IO[bytes], layout: Layout) -> None:
        self._file = file

    def write(self, runs: Sequence[StoredRun]) -> None:
        for run in runs:
            line = {**_fixed(run), "row": run.row, "output": run.output, "answered_by": _choices(run.answered_by),
                    "usage": {stage: _spent(usage) for stage, usage in run.usages.items()},
                    "evaluations": _evaluations(run)}  # fmt: skip
            self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """Do nothing: no data is buffered."""

    def abandon(self) -> None:
        """Do nothing: no data is buffered."""


class Csv:
    """Writer of a table with a header. Values that are neither text nor number are JSON in their cells.

    So are, in the column `row`, the fields of a row that the first one has not.

    A text that a spreadsheet would take for a formula begins with a quotation mark (`RISKY`).
    """

    def __init__(self, file: IO[bytes], layout: Layout) -> None:
        self._layout = layout
        self._text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="", write_through=True)
        self._csv = csv.writer(self._text)
        self._csv.writerow(map(harmless, layout.header))

    def write(self, runs: Sequence[StoredRun]) -> None:
        self._csv.writerows(map(harmless, _cells(run, self._layout)) for run in runs)

    def close(self) -> None:
        """Release the file without closing it."""
        self._text.detach()

    def abandon(self) -> None:
        """Release the file: no data is buffered."""
        with contextlib.suppress(OSError, ValueError):
            self._text.detach()


class Parquet:
    """Writer of the same table with typed columns, compressed, by pyarrow."""

    def __init__(self, file: IO[bytes], layout: Layout) -> None:
        if find_spec("pyarrow") is None:
            raise ConfigurationError(
                "format", "parquet", "pyarrow is not installed; run: pip install pyarrow, or choose jsonl or csv"
            )
        import pyarrow
        import pyarrow.parquet

        self._layout = layout
        self._cells: list[list[Any]] = []
        self._schema = pyarrow.schema(_types(pyarrow, layout))
        self._table = pyarrow.Table
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, runs: Sequence[StoredRun]) -> None:
        """Buffer a page, and write once a row group is full."""
        for run in runs:
            cells = [_unicode(cell) for cell in _cells(run, self._layout)]
            cells[FIXED.index("finished_at")] = run.finished_on
            self._cells.append(cells)
        if len(self._cells) >= GROUP_ROWS:
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


FORMATS: dict[str, type[Jsonl | Csv | Parquet]] = {"jsonl": Jsonl, "csv": Csv, "parquet": Parquet}


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


def _spent(usage: ItemUsage | None) -> dict[str, Any]:
    """Return the values of the columns `SPENT`: None where no call was made, or no answer states them."""
    if usage is None:
        return dict.fromkeys(SPENT)
    tokens = usage.tokens
    counts = (tokens.input_tokens, tokens.output_tokens, tokens.cached_tokens, tokens.reasoning_tokens)
    known = counts if tokens.metered else (None,) * 4
    values = (*known, tokens.cost, usage.model, usage.finish_reason, usage.request_id, usage.waited)
    return dict(zip(SPENT, values, strict=True))


def _choices(answered_by: Sequence[AnsweredBy]) -> list[dict[str, str]] | None:
    """Return the choices of fallbacks with provider and model; None without any."""
    return [each._asdict() for each in answered_by] or None


def _names_of(answered_by: Sequence[AnsweredBy]) -> str | None:
    """Return the names of choices as one cell of a table; None without any."""
    return ", ".join(each.choice for each in answered_by) or None


def _evaluations(run: StoredRun) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for evaluator, each in run.annotations:
        told = {"score": each.score, "label": each.label, "value": decoded(each.value),
                "error_kind": each.error_kind, "error": each.error,
                "answered_by": _choices(each.answered_by)}  # fmt: skip
        kept = {name: value for name, value in told.items() if value is not None}
        found.setdefault(evaluator, {})[each.output] = {"status": each.status.value, **kept}
    return found


def _cells(run: StoredRun, layout: Layout) -> list[Any]:
    cells = _fixed(run)
    fields = run.row if isinstance(run.row, dict) else {}
    rest = {name: value for name, value in fields.items() if name not in layout.fields}
    cells["row"] = _cell((rest or None) if isinstance(run.row, dict) else run.row)
    cells["output"] = _cell(run.output)
    judged = {(evaluator, each.output): each for evaluator, each in run.annotations}
    return [
        *cells.values(),
        *([_names_of(run.answered_by)] if layout.chosen else ()),
        *(_spent(run.usages.get(TASKS)).values() if layout.spent else ()),
        *(_cell(fields.get(name)) for name in layout.fields),
        *(_part(judged.get(output) or _whole(judged, output), part) for output, part in layout.parts),
    ]


def _whole(judged: Mapping[Output, Annotation], output: Output) -> Annotation | None:
    """Return the failure of the evaluator as a whole, which stands for each of its outputs; None without one."""
    failed = judged.get((output[0], output[0]))
    return failed if failed is not None and failed.status is not ResultStatus.OK else None


def _part(annotation: Annotation | None, part: str) -> Any:
    if annotation is None:
        return None
    if part == "error":
        return annotation.error if annotation.error is not None else annotation.error_kind
    if part == CHOSEN:
        return _names_of(annotation.answered_by)
    return getattr(annotation, part)


def harmless(cell: Any) -> Any:
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


def _types(pyarrow: Any, layout: Layout) -> Iterator[tuple[str, Any]]:
    known = {
        "repetition": pyarrow.int32(),
        "attempts": pyarrow.int32(),
        "seconds": pyarrow.float64(),
        "finished_at": pyarrow.timestamp("us", tz="UTC"),
        **{name: pyarrow.int64() for name in SPENT[:4]},
        "cost": pyarrow.float64(),
        "waited": pyarrow.float64(),
        **{name: pyarrow.float64() for (_, part), name in layout.parts.items() if part == "score"},
    }
    return ((name, known.get(name, pyarrow.string())) for name in layout.header)


PAGE_RUNS = 500
"""Maximum runs of one read. Chosen: large rows and answers reduce it anyway (`experiments.storage.pending`)."""


async def pages(store: Store, number: int) -> AsyncIterator[list[StoredRun]]:
    after, sizer = None, PageSizer()
    while page := await store.reports.results(number, after=after, limit=sizer.limit(PAGE_RUNS)):
        yield page
        after = page[-1].cursor
        sizer.saw([run.size for run in page])
