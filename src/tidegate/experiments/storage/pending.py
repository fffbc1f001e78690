"""Pending tasks and evaluations, derived from the missing results, a page at a time in the order of the rows.

No queue is stored. A page continues after the end of the last one. Rows are read window by window, each a range of
ordinals, with one index lookup for each item. Every query plan is therefore a walk through that range, whatever
statistics the database has. Windows grow while they find little: a million finished rows cost some twenty queries.

Pages of evaluations work the same way, over the ok runs that lack outputs of one evaluator.

Pages are bounded by size as well as by their count, so that few rows of megabytes are read at a time. A page's query
returns the size of each text. It returns the text itself only where a whole page of such texts keeps the bound. The
page ends before the row that would exceed the bound, and has at least one row. The large texts of its rows are then
read one by one. A page of small rows costs one query, as without a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

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

SMALL = bindparam("small", type_=Integer)
"""Maximum size of a text that is read with its page; `small` returns its value."""


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


def small(limit: int) -> int:
    """Return the value of `SMALL` for a page of `limit` rows."""
    return max(1, PAGE_BYTES // (2 * max(1, limit)))


def size(text: ColumnElement[str]) -> ColumnElement[int]:
    """Return the size of a text, as SQL; zero where it is null."""
    return func.coalesce(text_size(text), 0)


def inlined(text: ColumnElement[str]) -> ColumnElement[str | None]:
    return case((text_size(text) <= SMALL, text), else_=None)


def within_bytes(rows: Sequence[Row[Any]], sizes: Sequence[int]) -> Page[Row[Any]]:
    total = 0
    for count, each in enumerate(sizes):
        total += each
        if total > PAGE_BYTES and count:
            return Page(rows[:count], more=True)
    return Page(rows)


async def body_of(connection: AsyncConnection, row: Row[Any]) -> str | None:
    """Return the content of a page's row, which has `digest`, `body` and `body_size`."""
    if row.body is not None or not row.body_size:
        return cast("str | None", row.body)
    return cast("str | None", (await connection.execute(_BODY, {"digest": row.digest})).scalar_one_or_none())


async def output_of(connection: AsyncConnection, experiment_id: int, row: Row[Any]) -> str | None:
    """Return the answer of a page's row, which has `output` and `output_size`."""
    if row.output is not None or not row.output_size:
        return cast("str | None", row.output)
    place = {"experiment": experiment_id, "ordinal": row.ordinal, "repetition": row.repetition}
    return cast("str | None", (await connection.execute(_OUTPUT, place)).scalar_one_or_none())


_BODY: Select[Any] = select(contents.c.body).where(contents.c.digest == bindparam("digest"))
_OUTPUT: Select[Any] = select(runs.c.output).where(
    runs.c.experiment_id == bindparam("experiment"),
    runs.c.ordinal == bindparam("ordinal"),
    runs.c.repetition == bindparam("repetition"),
)


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
                "small": small(limit),
                **dict(zip(("after_ordinal", "after_repetition"), after or BEFORE_ALL, strict=True)),
            }

            def missing(low: int, high: int, most: int) -> tuple[Select[Any], Mapping[str, int]]:
                return _missing(retry_failed), {**given, "low": low, "high": high, "most": most}

            rows = await walk(connection, missing, 0 if after is None else after[0], extent, limit)
            kept = within_bytes(rows, [row.body_size for row in rows])
            return Page(
                [
                    PendingTask(
                        row.ordinal,
                        row.repetition,
                        decoded(await body_of(connection, row)),
                        row.invalid,
                        row.line,
                        row.body_size,
                    )
                    for row in kept
                ],
                more=kept.more,
            )

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
            bound = {"small": small(2 * limit)}

            def page(low: int, high: int, most: int) -> tuple[Select[Any], Mapping[str, int]]:
                ordinal, repetition = runs.c.ordinal, runs.c.repetition
                items = unjudged.where(ordinal >= low, ordinal < high, past(ordinal, repetition, after))
                return _with_runs(experiment_id, extent, items.order_by(ordinal, repetition).limit(most)), bound

            rows = await walk(connection, page, 0 if after is None else after[0], extent, limit)
            kept = within_bytes(rows, [row.body_size + row.output_size for row in rows])
            return Page(
                [
                    PendingEval(
                        row.ordinal,
                        row.repetition,
                        decoded(await body_of(connection, row)),
                        decoded(await output_of(connection, experiment_id, row)),
                        row.body_size + row.output_size,
                    )
                    for row in kept
                ],
                more=kept.more,
            )


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


def content() -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return the content of a row where it is small, and its size, both as SQL."""
    return inlined(contents.c.body).label("body"), size(contents.c.body).label("body_size")


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
        select(item.c.ordinal, item.c.repetition, row.invalid, row.line, row.digest, *content())
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
    answers = select(item, inlined(run.output).label("output"), size(run.output).label("output_size"))
    answer = selected_once(answers.join(runs, same_run), "answer")
    return (
        select(answer, row.digest, *content())
        .join(dataset_rows, and_(row.dataset_id == extent.dataset_id, row.ordinal == answer.c.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .order_by(answer.c.ordinal, answer.c.repetition)
    )
