"""Many rows by one statement: on SQLite executed many times over, on PostgreSQL once, with an array for each column.

A row a time PostgreSQL's protocol costs more than the row. One statement may not change a row twice there, so the rows
of a batch are told apart before (`results`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Executable,
    Select,
    Table,
    TableValuedAlias,
    Text,
    bindparam,
    column,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY

Rows = Sequence[Mapping[str, Any]]

MOST_CHARACTERS = 8 * 1024 * 1024
"""Of one statement's texts together: they are held four times on their way to PostgreSQL. Fewer ask for more statements
where a batch has large texts; a statement has one row at the least."""


def insert_into(on_sqlite: bool, table: Table) -> Any:
    """An INSERT that can be told what to do ON CONFLICT: SQLAlchemy has one for each database."""
    return sqlite.insert(table) if on_sqlite else postgresql.insert(table)


def put(on_sqlite: bool, table: Table, names: Sequence[str], **more: ColumnElement[Any]) -> Any:
    """An INSERT of rows with these columns, `more` being the same for all; it can be told what to do ON CONFLICT."""
    if on_sqlite:
        return insert_into(on_sqlite, table).values(**{name: bindparam(name) for name in names}, **more)
    listed = unnested([table.c[name] for name in names])
    return insert_into(on_sqlite, table).from_select([*names, *more], listed.add_columns(*more.values()))


def unnested(columns: Sequence[Column[Any]], prefix: str = "") -> Select[Any]:
    """The rows that come as an array for each column, on PostgreSQL; the arrays are called as the columns are."""
    arrays: list[BindParameter[Any]] = [bindparam(prefix + one.name, type_=ARRAY(one.type)) for one in columns]
    listed = func.unnest(*arrays).table_valued(*(column(one.name, one.type) for one in columns)).render_derived()
    return select(*(listed.c[one.name] for one in columns))


def listed(on_sqlite: bool, texts: Sequence[str]) -> TableValuedAlias:
    """A table with the column `value`, by one parameter: joined to, an index is asked for each text."""
    if on_sqlite:
        return func.json_each(json.dumps(texts)).table_valued(column("value", Text))
    return func.unnest(literal(texts, ARRAY(Text))).table_valued(column("value", Text)).render_derived()


def execute(connection: Connection, on_sqlite: bool, statement: Executable, rows: Rows) -> int:
    """Runs a statement for all rows; returns how many it has changed, where it counts them."""
    if on_sqlite:
        return connection.execute(statement, list(rows)).rowcount
    return sum(
        connection.execute(statement, {name: [row[name] for row in part] for name in part[0]}).rowcount
        for part in _parts(rows)
    )


def _parts(rows: Rows) -> Iterator[Rows]:
    """The rows in their order, in parts that one statement can hold."""
    start = size = 0
    for end, row in enumerate(rows):
        length = sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if size + length > MOST_CHARACTERS and end > start:
            yield rows[start:end]
            start, size = end, 0
        size += length
    yield rows[start:]
