"""Statements for many rows: on SQLite executed once a row, on PostgreSQL once, with an array for each column.

On PostgreSQL the protocol costs more than the row where rows are sent one by one. There one statement may not change a
row twice, so `results` first removes duplicates from a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
    ColumnElement,
    Connection,
    Executable,
    FromClause,
    Integer,
    Select,
    Table,
    TableValuedAlias,
    Text,
    and_,
    bindparam,
    column,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.compiler import SQLCompiler

Rows = Sequence[Mapping[str, Any]]

ITEM = ("experiment_id", "ordinal", "repetition")
"""Columns that identify an item."""

MAX_CHARACTERS = 8 * 1024 * 1024
"""Characters of one statement's texts together; a statement has at least one row. Chosen: only batches with large texts
need more statements."""


def insert_into(on_sqlite: bool, table: Table) -> Any:
    """Return an INSERT that supports ON CONFLICT: SQLAlchemy has a separate one for each database."""
    return sqlite.insert(table) if on_sqlite else postgresql.insert(table)


def put(on_sqlite: bool, table: Table, names: Sequence[str], **more: ColumnElement[Any]) -> Any:
    """Return an INSERT of rows with these columns, which supports ON CONFLICT; `more` is the same for all rows."""
    if on_sqlite:
        return insert_into(on_sqlite, table).values(**{name: bindparam(name) for name in names}, **more)
    listed = unnested([table.c[name] for name in names])
    return insert_into(on_sqlite, table).from_select([*names, *more], listed.add_columns(*more.values()))


def unnested(columns: Sequence[Column[Any]], prefix: str = "") -> Select[Any]:
    """Return the rows that arrive as one array a column, on PostgreSQL; the arrays have the names of the columns."""
    arrays: list[BindParameter[Any]] = [bindparam(prefix + one.name, type_=ARRAY(one.type)) for one in columns]
    listed = func.unnest(*arrays).table_valued(*(column(one.name, one.type) for one in columns)).render_derived()
    return select(*(listed.c[one.name] for one in columns))


def listed(on_sqlite: bool, texts: Sequence[str]) -> TableValuedAlias:
    """Return a table with the column `value` from one parameter; a join with it searches an index for each text."""
    if on_sqlite:
        return func.json_each(json.dumps(texts)).table_valued(column("value", Text))
    return func.unnest(literal(texts, ARRAY(Text))).table_valued(column("value", Text)).render_derived()


def of_items(on_sqlite: bool, table: Table) -> FromClause:
    """Return the rows of a table that belong to items, each found by the key; `item_values` returns the parameters."""
    one = table.c
    if on_sqlite:
        given = func.json_each(bindparam("items", type_=Text)).table_valued(column("value", Text), name="item")
        item = [func.json_extract(given.c.value, f"$[{place}]", type_=Integer) for place in range(3)]
        return given.join(table, _same(one, item))
    rows = unnested([one[name] for name in ITEM], "item_").subquery("item")
    return rows.join(table, _same(one, list(rows.c)))


def item_values(on_sqlite: bool, items: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """Return the parameters of `of_items`; an item is (experiment, ordinal, repetition)."""
    ordered = sorted(set(items))
    if on_sqlite:
        return {"items": json.dumps(ordered)}
    columns = zip(*ordered, strict=True) if ordered else ([], [], [])
    return {f"item_{name}": list(values) for name, values in zip(ITEM, columns, strict=True)}


def _same(one: Any, item: Sequence[Any]) -> ColumnElement[bool]:
    return and_(*(one[name] == value for name, value in zip(ITEM, item, strict=True)))


def execute(connection: Connection, on_sqlite: bool, statement: Executable, rows: Rows) -> int:
    """Execute a statement for all rows; return the number of changed rows, where the driver counts them."""
    if on_sqlite:
        # SQLAlchemy prepares each row anew, which takes twice as long as SQLite needs to insert it.
        compiled = _compiled(statement)
        return connection.exec_driver_sql(compiled.sql, [compiled.parameters(row) for row in rows]).rowcount
    return sum(
        connection.execute(statement, {name: [row[name] for row in part] for name in part[0]}).rowcount
        for part in _parts(rows)
    )


class CompiledStatement:
    """SQL text of a statement for the SQLite driver, and the parameters of each row in the order of the text."""

    def __init__(self, statement: Executable) -> None:
        assert isinstance(statement, ClauseElement), "SQLAlchemy compiles it"
        compiled = statement.compile(dialect=_SQLITE)
        assert isinstance(compiled, SQLCompiler), "a statement that changes rows has parameters"
        self.sql = compiled.string
        self._names = compiled.positiontup or []
        self._fixed = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        converters = {
            name: bind.type.dialect_impl(_SQLITE).bind_processor(_SQLITE) for name, bind in compiled.binds.items()
        }
        found = [(place, converters[name]) for place, name in enumerate(self._names)]
        self._conversions = [(place, convert) for place, convert in found if convert is not None]

    def parameters(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        given = [row[name] if name in row else self._fixed[name] for name in self._names]
        for place, convert in self._conversions:
            given[place] = convert(given[place])
        return tuple(given)


_SQLITE = sqlite.dialect(paramstyle="qmark")


@lru_cache(maxsize=64)
def _compiled(statement: Executable) -> CompiledStatement:
    return CompiledStatement(statement)


def _parts(rows: Rows) -> Iterator[Rows]:
    start = size = 0
    for end, row in enumerate(rows):
        length = sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if size + length > MAX_CHARACTERS and end > start:
            yield rows[start:end]
            start, size = end, 0
        size += length
    yield rows[start:]
