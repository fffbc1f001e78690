"""Pending tasks and evaluations, derived from the missing results, a page at a time in the order of the rows.

No queue is stored. A page continues after the end of the last one. Rows are read window by window, each a range of
ordinals, with one index lookup for each item. Every query plan is therefore a walk through that range, whatever
statistics the database has. Windows grow while they find little: a million finished rows cost some twenty queries.

Pages of evaluations work the same way, over the ok runs that lack outputs of one evaluator.

Pages are bounded by size as well as by their count, so that few rows of megabytes are read at a time. A page's query
returns the size of each text. The page ends before the row that would exceed the bound, and has at least one row. Then
the texts of its rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.experiments.storage.bulk import item_values, of_items
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.records import PendingEval, PendingTask, TaskCursor
from tidegate.experiments.storage.schema import (
    OK,
    annotation_rows,
    contents,
    dataset_rows,
    experiments,
    runs,
    wanted_again,
)
from tidegate.experiments.storage.stored_forms import decoded, shortened, text_size

T = TypeVar("T")

PAGE_BYTES = 8 * 1024 * 1024
"""Size of the texts of one page (`stored_forms.text_size`). Chosen: equal to `bulk.MAX_CHARACTERS`."""

FIRST_ROWS = 32
"""Half the rows of a first page, when no size is known yet. Chosen: 64 rows of 128 kB fill a first page."""


def selected_once(query: Select[Any], name: str) -> CTE:
    """Return the rows of a query as a table that PostgreSQL makes once, before any join with this table.

    Statistics from before an experiment let PostgreSQL expect one row of it. PostgreSQL would then join all rows of the
    experiment with all its answers, and select the few items of a page last.
    """
    return query.cte(name).prefix_with("MATERIALIZED", dialect="postgresql")


class Page(list[T]):
    """Rows of a page; `more` states that it ended because of its size, and that others follow."""

    def __init__(self, rows: Sequence[T] = (), *, more: bool = False) -> None:
        super().__init__(rows)
        self.more = more


class PageSizer:
    """Length of the next page of a walk, derived from the sizes of the rows in the page before.

    SQLite reads a text to determine its size. If each page asked for many large rows and kept a few of them, SQLite
    would read all of them for every page.
    """

    def __init__(self) -> None:
        self._mean = PAGE_BYTES / FIRST_ROWS

    def limit(self, most: int) -> int:
        """Return the number of rows to ask for, at most `most`."""
        return max(1, min(most, int(2 * PAGE_BYTES / self._mean)))

    def saw(self, sizes: Sequence[int]) -> None:
        if sizes:
            self._mean = max(1.0, sum(sizes) / len(sizes))


def size(text: ColumnElement[str]) -> ColumnElement[int]:
    """Return the size of a text, as SQL; zero where it is null."""
    return func.coalesce(text_size(text), 0)


BODY_SIZE = size(contents.c.body).label("body_size")


def within_bytes(rows: Sequence[Row[Any]], sizes: Sequence[int]) -> Page[Row[Any]]:
    total = 0
    for count, each in enumerate(sizes):
        total += each
        if total > PAGE_BYTES and count:
            return Page(rows[:count], more=True)
    return Page(rows)


async def bodies_of(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> dict[bytes, str]:
    """Return the contents of a page's rows by their digests."""
    one = contents.c
    digests = {row.digest for row in rows if row.digest is not None}
    found = await connection.execute(select(one.digest, one.body).where(one.digest.in_(digests)))
    return {row.digest: row.body for row in found}


async def outputs_of(
    connection: AsyncConnection, sqlite: bool, experiment_id: int, rows: Sequence[Row[Any]]
) -> dict[TaskCursor, Any]:
    """Return the answers of a page's rows."""
    one = runs.c
    query = select(one.ordinal, one.repetition, one.output).select_from(of_items(sqlite, runs))
    items = item_values(sqlite, [(experiment_id, row.ordinal, row.repetition) for row in rows])
    return {(row.ordinal, row.repetition): decoded(row.output) for row in await connection.execute(query, items)}


FIRST_WINDOW = 256
"""Minimum items of a first window; one that leaves a page unfilled is followed by one of four times its size. Chosen: a
query of this size costs little even if all its items are finished."""

LAST_WINDOW = 65_536
"""Maximum items of a window. Chosen: a walk through this number takes a fraction of a second."""

Window = Callable[[int, int, int], tuple[Select[Any], Mapping[str, int]]]
"""Function of (first ordinal, end, maximum rows): the query for the ordinals from the first to below the end, and its
parameters."""

BEFORE_ALL = (-1, 0)
"""Cursor before the first item."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of one experiment: ordinals are below `end`."""

    dataset_id: int
    repetitions: int
    end: int


class Pending(StorePart):
    """Items that have no result yet."""

    async def tasks(
        self,
        experiment_id: int,
        *,
        after: TaskCursor | None,
        limit: int,
        retry_failed: bool,
        below: int | None = None,
    ) -> Page[PendingTask]:
        """Return the next task items without a result, by ordinal and repetition.

        `retry_failed` includes failed and parked ones. With `below`, only rows with a lower ordinal count.

        Fewer than `limit` are the last ones, unless the page has `more`: then the others exceeded its size.
        """
        async with self._database.reading() as connection:
            extent = await extent_of(connection, experiment_id)
            if extent is None or limit < 1:
                return Page()
            if below is not None:
                extent = replace(extent, end=min(extent.end, below))
            given = {
                "experiment": experiment_id,
                "dataset": extent.dataset_id,
                "repetitions": extent.repetitions,
                **dict(zip(("after_ordinal", "after_repetition"), after or BEFORE_ALL, strict=True)),
            }

            def missing(low: int, high: int, most: int) -> tuple[Select[Any], Mapping[str, int]]:
                return _missing(retry_failed), {**given, "low": low, "high": high, "most": most}

            rows = await walk(connection, missing, 0 if after is None else after[0], extent, limit)
            kept = within_bytes(rows, [row.body_size for row in rows])
            bodies = await bodies_of(connection, kept)
        found = [
            PendingTask(
                row.ordinal,
                row.repetition,
                decoded(bodies.get(row.digest)),
                row.invalid,
                row.line,
                row.body_size,
            )
            for row in kept
        ]
        return Page(found, more=kept.more)

    async def evals(
        self,
        experiment_id: int,
        evaluator: str,
        outputs: Sequence[str],
        *,
        after: TaskCursor | None,
        limit: int,
        retry_failed: bool,
    ) -> Page[PendingEval]:
        """Return the next ok runs that lack a result of an evaluator, by ordinal and repetition.

        A run is judged when all `outputs` exist, or any one where none is declared. `retry_failed` includes failed and
        parked ones. A page ends as in `tasks`.
        """
        async with self._database.reading() as connection:
            extent = await extent_of(connection, experiment_id)
            if extent is None or limit < 1:
                return Page()
            unjudged = _unjudged(experiment_id, shortened(evaluator), list(map(shortened, outputs)), retry_failed)

            def page(low: int, high: int, most: int) -> tuple[Select[Any], Mapping[str, int]]:
                ordinal, repetition = runs.c.ordinal, runs.c.repetition
                items = unjudged.where(ordinal >= low, ordinal < high, past(ordinal, repetition, after))
                return _with_runs(experiment_id, extent, items.order_by(ordinal, repetition).limit(most)), {}

            rows = await walk(connection, page, 0 if after is None else after[0], extent, limit)
            kept = within_bytes(rows, [row.body_size + row.output_size for row in rows])
            bodies = await bodies_of(connection, kept)
            answers = await outputs_of(connection, self._database.sqlite, experiment_id, kept)
        found = [
            PendingEval(*item, decoded(bodies.get(row.digest)), answers.get(item), row.body_size + row.output_size)
            for row in kept
            for item in ((row.ordinal, row.repetition),)
        ]
        return Page(found, more=kept.more)


async def extent_of(connection: AsyncConnection, experiment_id: int) -> Extent | None:
    row = (await connection.execute(_extent(), {"experiment": experiment_id})).one_or_none()
    return None if row is None else Extent(*row)


@cache
def _extent() -> Select[Any]:
    last = select(func.max(dataset_rows.c.ordinal)).where(dataset_rows.c.dataset_id == experiments.c.dataset_id)
    end = func.coalesce(last.scalar_subquery() + 1, 0)
    return select(experiments.c.dataset_id, experiments.c.repetitions, end).where(
        experiments.c.id == bindparam("experiment")
    )


async def walk(connection: AsyncConnection, page: Window, start: int, extent: Extent, limit: int) -> list[Row[Any]]:
    rows: list[Row[Any]] = []
    items = max(FIRST_WINDOW, limit)
    while start < extent.end and len(rows) < limit:
        high = min(start + max(1, items // extent.repetitions), extent.end)
        query, given = page(start, high, limit - len(rows))
        rows += (await connection.execute(query, given)).all()
        start, items = high, min(4 * items, LAST_WINDOW)
    return rows


def past(ordinal: ColumnElement[int], repetition: ColumnElement[int], after: TaskCursor | None) -> ColumnElement[bool]:
    """Return the condition that an item is after a cursor, where its ordinal is at least the cursor's."""
    return true() if after is None else or_(ordinal > after[0], repetition > after[1])


@cache
def _missing(retry_failed: bool) -> Select[Any]:
    """Return the query for a page of a window; it is cached, because building it takes as long as running it."""
    row, repetition = dataset_rows.c, _repetitions(bindparam("repetitions", type_=Integer))
    # A count instead of EXISTS: the database could turn EXISTS into a join, planned by its statistics.
    results = (
        select(func.count())
        .where(
            runs.c.experiment_id == bindparam("experiment"),
            runs.c.ordinal == row.ordinal,
            runs.c.repetition == repetition.c.n,
            not_(wanted_again(runs)) if retry_failed else true(),
        )
        .scalar_subquery()
    )
    items = (
        select(row.ordinal, repetition.c.n.label("repetition"))
        .select_from(dataset_rows.join(repetition, true()))
        .where(
            row.dataset_id == bindparam("dataset"),
            row.ordinal >= bindparam("low"),
            row.ordinal < bindparam("high"),
            or_(row.ordinal > bindparam("after_ordinal"), repetition.c.n > bindparam("after_repetition")),
            results == 0,
        )
        .order_by(row.ordinal, repetition.c.n)
        .limit(bindparam("most", type_=Integer))
    )
    return _with_rows(items, bindparam("dataset"))


def _repetitions(count: ColumnElement[int]) -> FromClause:
    numbers = select(literal(1).label("n")).cte("repetitions", recursive=True)
    return numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < count))


def _with_rows(items: Select[Any], dataset_id: ColumnElement[int]) -> Select[Any]:
    item, row = selected_once(items, "item"), dataset_rows.c
    return (
        select(
            item.c.ordinal,
            item.c.repetition,
            row.invalid,
            row.line,
            row.digest,
            BODY_SIZE,
        )
        .join(dataset_rows, and_(row.dataset_id == dataset_id, row.ordinal == item.c.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .order_by(item.c.ordinal, item.c.repetition)
    )


def _unjudged(experiment_id: int, evaluator: str, outputs: Sequence[str], retry_failed: bool) -> Select[Any]:
    one = annotation_rows.c
    said = (
        select(func.count())
        .where(
            one.experiment_id == experiment_id,
            one.ordinal == runs.c.ordinal,
            one.repetition == runs.c.repetition,
            one.evaluator == evaluator,
            one.output.in_(outputs) if outputs else true(),
            not_(wanted_again(annotation_rows)) if retry_failed else true(),
        )
        .scalar_subquery()
    )
    return select(runs.c.ordinal, runs.c.repetition).where(
        runs.c.experiment_id == experiment_id, runs.c.status == OK, said < max(1, len(outputs))
    )


def _with_runs(experiment_id: int, extent: Extent, items: Select[Any]) -> Select[Any]:
    """Add the rows and answers to the items of a page, after the items are selected."""
    item, run, row = selected_once(items, "item"), runs.c, dataset_rows.c
    same_run = and_(
        run.experiment_id == experiment_id, run.ordinal == item.c.ordinal, run.repetition == item.c.repetition
    )
    answers = select(item, size(run.output).label("output_size"))
    answer = selected_once(answers.join(runs, same_run), "answer")
    return (
        select(answer, row.digest, BODY_SIZE)
        .join(dataset_rows, and_(row.dataset_id == extent.dataset_id, row.ordinal == answer.c.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .order_by(answer.c.ordinal, answer.c.repetition)
    )
