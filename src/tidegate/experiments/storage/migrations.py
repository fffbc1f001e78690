"""Upgrade of a database to the present schema.

Theory of operation. `schema` alone says which tables there are. An upgrade makes what the database lacks of them:
tables, indexes, and columns that may be empty. Any other change of a version is a step of its own, which comes after
that. A step is never changed: databases may be between any two.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, delete, inspect, select, text
from sqlalchemy.schema import CreateColumn

from tidegate.experiments.storage import stage_sums
from tidegate.experiments.storage.schema import execution_configs, experiments, metadata, tallies


def upgrade(connection: Connection, found: str | None) -> None:
    """Bring the schema from the version `found` (None: there is no schema) to the newest one."""
    if found is None:
        metadata.create_all(connection, checkfirst=False)
        return
    metadata.create_all(connection)
    known = inspect(connection)
    for table in metadata.sorted_tables:
        there = {column["name"] for column in known.get_columns(table.name)}
        for column in table.c:
            if column.name not in there:
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {added}"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    for number, step in STEPS.items():
        if number > found:
            step(connection)


def _count_results(connection: Connection) -> None:
    """Tally the results of every experiment: older tallies, if any, have other sums."""
    connection.execute(delete(tallies))
    for number in connection.execute(select(experiments.c.id)).scalars().all():
        stage_sums.build(connection, number)


def _without_watermarks(connection: Connection) -> None:
    """Drop the rows from which on results might be missing: a resume finds these from the first row on.

    Experiments of an older version got their tallies when they were first asked for, so some have none yet.
    """
    missing = select(experiments.c.id).where(experiments.c.id.not_in(select(tallies.c.experiment_id)))
    for number in connection.execute(missing).scalars().all():
        stage_sums.build(connection, number)
    for name in ("low_water", "task_water"):
        connection.execute(text(f"ALTER TABLE {execution_configs.name} DROP COLUMN {name}"))


STEPS: dict[str, Callable[[Connection], None]] = {"0009": _count_results, "0010": _without_watermarks}
"""Steps by the version that each one leads to."""
