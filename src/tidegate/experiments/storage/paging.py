"""Pages that are bounded by size as well as by their count, so that few rows of megabytes are read at a time.

Theory of operation. A page's query returns the size of each text. It returns the text itself only where a whole page of
such texts keeps the bound. The page ends before the row that would exceed the bound, and has at least one row. The
large texts of its rows are then read one by one. A page of small rows costs one query, as without a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import CTE, ColumnElement, Integer, Row, Select, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from tidegate.experiments.storage.schema import contents, runs

T = TypeVar("T")

PAGE_BYTES = 8 * 1024 * 1024
"""Size of the texts of one page (`TextSize`). Chosen: equal to `bulk.MAX_CHARACTERS`."""

FIRST_ROWS = 32
"""Half the rows of a first page, when no size is known yet. Chosen: 64 rows of 128 kB fill a first page."""

SMALL = bindparam("small", type_=Integer)
"""Maximum size of a text that is read with its page; `small` returns its value."""


class TextSize(FunctionElement[int]):
    """Size of a text: in characters on SQLite, in bytes on PostgreSQL, which knows these without reading the text."""

    type = Integer()
    inherit_cache = True


@compiles(TextSize, "sqlite")
def _sqlite_size(element: TextSize, compiler: SQLCompiler, **kw: Any) -> str:
    return f"length({compiler.process(element.clauses, **kw)})"


@compiles(TextSize, "postgresql")
def _postgresql_size(element: TextSize, compiler: SQLCompiler, **kw: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **kw)})"


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
    return func.coalesce(TextSize(text), 0)


def inlined(text: ColumnElement[str]) -> ColumnElement[str | None]:
    return case((TextSize(text) <= SMALL, text), else_=None)


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
