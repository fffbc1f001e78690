"""Pages of results for a table on a screen: long texts are cut by the database, and no page reads more than a bound.

Theory of operation. A page begins after, or ends before, the cursor of an item. Failed, parked and invalid items are
found by the partial indexes of results that are not ok. A label, a score or a text has no index: a search for one
visits at most `SEARCHED_ITEMS` or `SEARCHED_TEXT_ITEMS` items, and the page states how far it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.experiments.storage.bulk import item_values, of_items
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.pending import extent_of
from tidegate.experiments.storage.records import ResultStatus, TaskCursor
from tidegate.experiments.storage.schema import annotation_rows, contents, dataset_rows, not_ok, runs
from tidegate.experiments.storage.stored_forms import encoded

CELL_CHARACTERS = 200
"""Characters of a long text in a page. Chosen: about three lines of a cell."""

SEARCHED_ITEMS = 100_000
"""Most items that one search for a label or a score visits. Chosen: the page is there within 100 ms."""

SEARCHED_TEXT_ITEMS = 10_000
"""Most items whose texts one search reads. Chosen: with texts of 2,000 characters it is there within 100 ms."""

ROW_CHARACTERS = 4_000
"""Characters of a row that a page reads to find its fields. Chosen: most rows are whole, and 100 of them are small."""

MAX_JUDGEMENTS = 40
"""Most outputs of evaluators that a page has of one item."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Items that a page shows: with a `status` that is not ok in any stage, or with a judgement by `evaluator`.

    The judgement has the `label`, or a score from `low` to `high`. The `text` is a part of the name, the row, the
    answer or the error, in capital or small letters.
    """

    status: ResultStatus | None = None
    evaluator: str | None = None
    output: str | None = None
    label: str | None = None
    low: float | None = None
    high: float | None = None
    text: str | None = None

    @property
    def searched(self) -> int:
        """Return the items that one search visits; 0 where an index finds them."""
        return SEARCHED_TEXT_ITEMS if self.text is not None else SEARCHED_ITEMS if self.evaluator is not None else 0


@dataclass(frozen=True, slots=True)
class RowPage:
    """Items in the order of the rows: rows of a query, each with its judgements. `row` and `output` are cut JSON texts.

    `more` tells that others follow in the direction of the page. `searched` is the cursor up to which a search came
    that ended early; None for any other page.
    """

    rows: Sequence[tuple[Any, Sequence[Any]]] = ()
    more: bool = False
    searched: TaskCursor | None = None


async def row_page(
    database: Database,
    experiment_id: int,
    wanted: RowFilter,
    *,
    after: TaskCursor | None = None,
    before: TaskCursor | None = None,
    limit: int = 100,
) -> RowPage:
    """Return the next items after a cursor, or the last ones before one."""
    async with database.reading() as connection:
        extent = await extent_of(connection, experiment_id)
        if extent is None:
            return RowPage()
        back = before is not None
        window = max(1, wanted.searched // extent.repetitions)
        if wanted.searched:
            start, end = (before[0] - window, before[0] + 1) if before else ((after or (0, 0))[0], 0)
            end = end or start + window
            bounds = (max(0, start), end)
        else:
            bounds = None
        found = await _items(connection, experiment_id, extent.dataset_id, wanted, after, before, bounds, limit + 1)
        items = found[:limit]
        rows = await _rows(
            connection, database.sqlite, experiment_id, extent.dataset_id, items[::-1] if back else items
        )
        searched = None
        if bounds is not None and len(found) <= limit:
            searched = (bounds[0], 1) if back and bounds[0] > 0 else None
            if not back and bounds[1] < extent.end:
                searched = (bounds[1] - 1, extent.repetitions)
        return RowPage(rows, len(found) > limit or searched is not None, searched)


async def _items(
    connection: AsyncConnection,
    experiment_id: int,
    dataset_id: int,
    wanted: RowFilter,
    after: TaskCursor | None,
    before: TaskCursor | None,
    bounds: tuple[int, int] | None,
    limit: int,
) -> list[TaskCursor]:
    back = before is not None
    queries = []
    for table in _tables(wanted):
        one = table.c
        query = select(one.ordinal, one.repetition).where(one.experiment_id == experiment_id, *_kept(table, wanted))
        if wanted.text is not None:
            query = _with_text(query, dataset_id, wanted.text)
        if bounds is not None:
            query = query.where(one.ordinal >= bounds[0], one.ordinal < bounds[1])
        if before is not None:
            query = query.where(tuple_(one.ordinal, one.repetition) < tuple_(*before))
        elif after is not None:
            query = query.where(tuple_(one.ordinal, one.repetition) > tuple_(*after))
        order = [one.ordinal.desc(), one.repetition.desc()] if back else [one.ordinal, one.repetition]
        # An item has several judgements: those that follow each other are one item.
        queries.append((query.distinct() if table is annotation_rows else query).order_by(*order).limit(limit))
    found: set[TaskCursor] = set()
    for query in queries:
        found |= {(row.ordinal, row.repetition) for row in await connection.execute(query)}
    return sorted(found, reverse=back)[:limit]


def _tables(wanted: RowFilter) -> Sequence[Table]:
    if wanted.text is not None:
        return (runs,)
    if wanted.evaluator is not None:
        return (annotation_rows,)
    if wanted.status in (ResultStatus.ERROR, ResultStatus.PARKED):
        return (runs, annotation_rows)
    return (runs,)


def _with_text(query: Select[Any], dataset_id: int, text: str) -> Select[Any]:
    one, row = runs.c, dataset_rows.c
    # Texts are stored as JSON: quotation marks and line ends are escaped there.
    stored = encoded(text)[1:-1]
    return (
        query.join(dataset_rows, and_(row.dataset_id == dataset_id, row.ordinal == one.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .where(
            or_(
                row.name.icontains(text, autoescape=True),
                one.error.icontains(text, autoescape=True),
                one.output.icontains(stored, autoescape=True),
                contents.c.body.icontains(stored, autoescape=True),
            )
        )
    )


def _kept(table: Table, wanted: RowFilter) -> list[ColumnElement[bool]]:
    one = table.c
    kept: list[ColumnElement[bool]] = []
    if wanted.status is not None:
        kept += [not_ok(table), one.status == wanted.status]
    if wanted.evaluator is not None:
        kept.append(one.evaluator == wanted.evaluator)
        if wanted.output is not None:
            kept.append(one.output == wanted.output)
        if wanted.label is not None:
            kept.append(one.label == wanted.label)
        if wanted.low is not None:
            kept.append(one.score >= wanted.low)
        if wanted.high is not None:
            kept.append(one.score <= wanted.high)
    return kept


async def _rows(
    connection: AsyncConnection, sqlite: bool, experiment_id: int, dataset_id: int, items: Sequence[TaskCursor]
) -> list[tuple[Any, Sequence[Any]]]:
    if not items:
        return []
    given = item_values(sqlite, [(experiment_id, *item) for item in items])
    judged: dict[TaskCursor, list[Any]] = {}
    for one in await connection.execute(_judgements(sqlite), given):
        judged.setdefault((one.ordinal, one.repetition), []).append(one)
    rows = await connection.execute(_results(sqlite), {**given, "dataset": dataset_id})
    found = {(row.ordinal, row.repetition): row for row in rows}
    return [
        (found[item], sorted(judged.get(item, ()), key=lambda one: (one.evaluator, one.output))[:MAX_JUDGEMENTS])
        for item in items
        if item in found
    ]


@cache
def _results(sqlite: bool) -> Select[Any]:
    one, row = runs.c, dataset_rows.c
    body = func.coalesce(
        func.substr(contents.c.body, 1, ROW_CHARACTERS + 1), func.substr(row.invalid, 1, CELL_CHARACTERS + 1)
    )
    return (
        select(
            one.ordinal,
            one.repetition,
            one.status,
            one.error_kind,
            one.attempts,
            one.seconds,
            row.name,
            func.substr(one.output, 1, CELL_CHARACTERS + 1).label("output"),
            func.substr(one.error, 1, CELL_CHARACTERS + 1).label("error"),
            body.label("row"),
        )
        .select_from(of_items(sqlite, runs))
        .join(dataset_rows, and_(row.dataset_id == bindparam("dataset"), row.ordinal == one.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
    )


@cache
def _judgements(sqlite: bool) -> Select[Any]:
    one = annotation_rows.c
    return select(
        one.ordinal,
        one.repetition,
        one.evaluator,
        one.output,
        one.status,
        one.score,
        func.substr(one.label, 1, CELL_CHARACTERS + 1).label("label"),
        func.substr(one.value, 1, CELL_CHARACTERS + 1).label("value"),
        func.coalesce(func.substr(one.error, 1, CELL_CHARACTERS + 1), one.error_kind).label("error"),
    ).select_from(of_items(sqlite, annotation_rows))
