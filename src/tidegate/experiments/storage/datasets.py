"""Storage of a dataset's rows while they are read: each content once, rows by ordinal, each name once.

A dataset that is read again after an interruption stores only its missing rows. A batch is inserted by two statements;
rows are compared one by one only after a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, false, select, update

from tidegate.errors import DatasetChanged, DuplicateRow, NotStorable
from tidegate.experiments.storage.bulk import execute, listed, put
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.records import NewRow
from tidegate.experiments.storage.schema import contents, dataset_rows, datasets
from tidegate.experiments.storage.stored_forms import canonical, cleaned, digest, shortened

Values = Mapping[str, Any]

COMPARED = ("ordinal", "name", "digest", "invalid")
"""Columns by which two rows are equal; the line in the source is not one of them."""


class Datasets(StorePart):
    """Rows of datasets."""

    async def add_rows(self, dataset_id: int, rows: Sequence[NewRow]) -> None:
        """Store rows in one transaction; skip those that exist already with equal content.

        A body that JSON cannot express makes an invalid row. Raise `DuplicateRow` where another row has the same name.
        Raise `DatasetChanged` where an ordinal exists with another content. In both cases nothing of `rows` is stored.
        """
        if not rows:
            return
        bodies: dict[bytes, str] = {}
        values = [_values(dataset_id, row, bodies) for row in rows]
        _unlike(values)
        # Sort by digest, so that two writers of the same contents cannot deadlock.
        stored = [{"digest": key, "body": bodies[key]} for key in sorted(bodies)]
        await self._database.transacted(partial(_add, self._database.sqlite, dataset_id, stored, values))

    async def complete(self, dataset_id: int, rows: int) -> None:
        """Mark the dataset as complete; raise `DatasetChanged` where its number of rows is not `rows`."""
        whole = and_(datasets.c.id == dataset_id, datasets.c.rows == rows)
        completed = update(datasets).where(whole).values(complete=True)
        if not await self._database.transacted(lambda connection: connection.execute(completed).rowcount):
            raise DatasetChanged(ordinal=rows, gone=True)


def _add(
    on_sqlite: bool, dataset_id: int, stored: Sequence[Values], values: Sequence[Values], connection: Connection
) -> None:
    if stored:
        execute(connection, on_sqlite, _new_or_locked(on_sqlite), stored)
    added = execute(connection, on_sqlite, _all_new(on_sqlite, dataset_rows), values)
    if added != len(values):
        _compare(on_sqlite, connection, dataset_id, values)
    if added:
        grown = update(datasets).where(datasets.c.id == dataset_id).values(rows=datasets.c.rows + added)
        connection.execute(grown)


@cache
def _new_or_locked(on_sqlite: bool) -> Any:
    """Return a statement that stores new contents, and on PostgreSQL locks those that exist.

    A deletion of their last row would else delete them before a row of this import has them.
    """
    if on_sqlite:
        return _all_new(on_sqlite, contents)
    new = put(on_sqlite, contents, contents.c.keys())
    return new.on_conflict_do_update(index_elements=["digest"], set_={"body": new.excluded.body}, where=false())


@cache
def _all_new(on_sqlite: bool, table: Table) -> Any:
    """Return a statement that stores new rows, skips conflicting ones, and counts the stored ones."""
    new = put(on_sqlite, table, table.c.keys()).on_conflict_do_nothing()
    return new.execution_options(preserve_rowcount=True)


def _values(dataset_id: int, row: NewRow, bodies: dict[bytes, str]) -> dict[str, Any]:
    key, invalid = None, row.invalid
    if invalid is None:
        try:
            body = canonical(row.body)
            key = digest(body)
            bodies[key] = body
        except NotStorable as error:
            invalid = str(error)
    return {
        "dataset_id": dataset_id,
        "ordinal": row.ordinal,
        "name": shortened(row.name),
        "digest": key,
        "invalid": None if invalid is None else cleaned(invalid),
        "line": row.line,
    }


def _unlike(values: Sequence[Values]) -> None:
    """Raise `DuplicateRow` where two rows of the batch have the same name."""
    first: dict[str, Values] = {}
    for row in values:
        earlier = first.setdefault(row["name"], row)
        if earlier is not row:
            raise DuplicateRow(name=row["name"], first_line=earlier["line"], line=row["line"])


def _compare(on_sqlite: bool, connection: Connection, dataset_id: int, values: Sequence[Values]) -> None:
    """Raise the error of the first row that was not stored and does not exist with equal content."""
    queries = _there(on_sqlite, dataset_id, values)
    found = [dict(row._mapping) for query in queries for row in connection.execute(query)]
    there = [row for row in found if row["ordinal"] is not None]
    by_ordinal = {row["ordinal"]: row for row in there}
    by_name = {row["name"]: row for row in there}
    for row in values:
        same = by_ordinal.get(row["ordinal"])
        if same is not None and all(same[name] == row[name] for name in COMPARED):
            continue
        namesake = by_name.get(row["name"])
        if namesake is not None and namesake["ordinal"] != row["ordinal"]:
            raise DuplicateRow(name=row["name"], first_line=namesake["line"], line=row["line"])
        raise DatasetChanged(ordinal=row["ordinal"], line=row["line"])


def _there(on_sqlite: bool, dataset_id: int, rows: Sequence[Values]) -> Iterator[Select[Any]]:
    row, ordinals = dataset_rows.c, [row["ordinal"] for row in rows]
    yield select(dataset_rows).where(row.dataset_id == dataset_id, row.ordinal.between(min(ordinals), max(ordinals)))
    names = listed(on_sqlite, [row["name"] for row in rows])
    # An outer join fixes the order of the two tables, independently of statistics.
    same = and_(row.dataset_id == dataset_id, row.name == names.c.value)
    yield select(dataset_rows).select_from(names.outerjoin(dataset_rows, same))
