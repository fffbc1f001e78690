"""Deletion of an experiment with everything that belongs to it.

Theory of operation. A deletion is one transaction. It locks the experiment's tally and its row of `execution_configs`
first, as every batch of results does, so no batch is written half. After it the row is missing: a late result has an
epoch that is not the newest, and is refused. SQLite would give the number to the next experiment, so `deleted` keeps
it.

A content is deleted with the last row that has it. PostgreSQL finds such rows by an index; contents that an import has
locked are in use. SQLite has no such index, and would scan all rows to check each content. So its checks are off, and
the transaction deletes what depends on the experiment itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, text

from tidegate.experiments.storage import claims, tally_table
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.records import Status
from tidegate.experiments.storage.schema import (
    NOT_ENDED,
    PREFIX,
    annotation_rows,
    attempts,
    batches,
    chunks,
    contents,
    dataset_rows,
    datasets,
    deleted,
    execution_configs,
    experiments,
    logs,
    run_stats,
    runs,
    spend,
    tallies,
    usages,
)
from tidegate.experiments.storage.sql_clock import ago, now

DELETION_LOCK = 0x7469_6465_6465_6C65
"""The letters "tidedele" as a number: PostgreSQL's advisory lock, under which one deletion runs at a time."""

OF_EXPERIMENT = (
    usages, spend, tallies, chunks, batches, attempts, run_stats, logs, annotation_rows, runs, execution_configs
)  # fmt: skip
"""Tables with the number of the experiment, in an order in which their rows can be deleted."""

UNUSED, LOCKED, SHARED = (f"{PREFIX}{name}" for name in ("unused", "locked", "shared"))
"""Temporary tables of digests: those of the deleted rows, those of them that no import uses, and those still in use."""


class Deletion(StorePart):
    """Deletion of experiments."""

    async def remove(self, experiment_id: int) -> bool:
        """Delete an experiment with its rows, results, attempts and log; contents that others have stay.

        Return False and change nothing where it is RUNNING or does not exist. Its number is not used again.
        """
        return await self._database.transacted_unchecked(partial(_remove, self._database.sqlite, experiment_id))

    async def is_ending(self, experiment_id: int, patience: float) -> bool:
        """Return whether the run that a user has stopped in the last `patience` seconds has not written its end yet."""
        config = execution_configs.c
        stats = run_stats.c
        ended = exists().where(
            stats.experiment_id == config.experiment_id, stats.epoch == config.epoch, stats.ended_at > NOT_ENDED
        )
        query = select(config.experiment_id).where(
            config.experiment_id == experiment_id,
            config.status == Status.STOPPED,
            config.epoch > 0,
            config.cooldown_until > ago(patience - claims.COOL_DOWN),
            ~ended,
        )
        async with self._database.reading() as connection:
            return (await connection.execute(query)).first() is not None


def next_number(table: Any, freed: ColumnElement[int]) -> ColumnElement[int]:
    """Return an unused number for a row of `table` on SQLite, above those in use and the `freed` ones."""
    used = select(func.coalesce(func.max(table.c.id), 0)).scalar_subquery()
    before = select(func.coalesce(func.max(freed), 0)).scalar_subquery()
    return func.max(used, before) + 1


def _remove(sqlite: bool, experiment_id: int, connection: Connection) -> bool:
    if not sqlite:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({DELETION_LOCK})"))
    tally_table.lock(connection, [experiment_id])
    config = execution_configs.c
    state = select(config.status).where(config.experiment_id == experiment_id).with_for_update()
    status = connection.execute(state).scalar_one_or_none()
    if status is None or status == Status.RUNNING:
        return False
    of_experiment = experiments.c.id == experiment_id
    dataset_id = connection.execute(select(experiments.c.dataset_id).where(of_experiment)).scalar_one()
    # An import that goes on would add rows after their contents are noted.
    connection.execute(select(datasets.c.id).where(datasets.c.id == dataset_id).with_for_update())
    rows = dataset_rows.c.dataset_id == dataset_id
    _note_unused(sqlite, connection, rows)
    for table in OF_EXPERIMENT:
        connection.execute(delete(table).where(table.c.experiment_id == experiment_id))
    connection.execute(delete(experiments).where(of_experiment))
    connection.execute(delete(dataset_rows).where(rows))
    connection.execute(delete(datasets).where(datasets.c.id == dataset_id))
    for statement in _without_unused(sqlite):
        connection.execute(text(statement))
    if sqlite:
        # PostgreSQL's sequences give no number twice.
        connection.execute(insert(deleted).values(experiment_id=experiment_id, dataset_id=dataset_id, deleted_at=now()))
    return True


def _note_unused(sqlite: bool, connection: Connection, rows: ColumnElement[bool]) -> None:
    of_rows = select(dataset_rows.c.digest).where(and_(rows, dataset_rows.c.digest.isnot(None))).distinct()
    digests = of_rows.compile(connection, compile_kwargs={"literal_binds": True})
    kind = "BLOB" if sqlite else "bytea"
    at_end = "" if sqlite else " ON COMMIT DROP"
    connection.execute(text(f"CREATE TEMPORARY TABLE {UNUSED} (digest {kind} PRIMARY KEY){at_end}"))
    connection.execute(text(f"INSERT INTO {UNUSED} {digests}"))


def _without_unused(sqlite: bool) -> Iterator[str]:
    """Yield the statements that delete the noted contents which no other row has."""
    of_rows, of_contents = dataset_rows.name, contents.name
    if sqlite:
        # A cross join has a fixed order: one scan of the rows, with a look at each noted digest.
        shared = f"SELECT DISTINCT u.digest FROM {of_rows} r CROSS JOIN {UNUSED} u ON u.digest = r.digest"
        yield f"CREATE TEMPORARY TABLE {SHARED} AS {shared}"
        yield f"DELETE FROM {UNUSED} WHERE digest IN (SELECT digest FROM {SHARED})"
        yield f"DELETE FROM {of_contents} WHERE digest IN (SELECT digest FROM {UNUSED})"
        yield f"DROP TABLE {SHARED}"
        yield f"DROP TABLE {UNUSED}"
        return
    # Once a content is locked, no import can begin to use it. One that was locked before is in use.
    free = f"SELECT c.digest FROM {UNUSED} u JOIN {of_contents} c ON c.digest = u.digest FOR UPDATE OF c SKIP LOCKED"
    yield f"CREATE TEMPORARY TABLE {LOCKED} ON COMMIT DROP AS {free}"
    used = f"SELECT 1 FROM {of_rows} r WHERE r.digest = c.digest"
    yield f"DELETE FROM {of_contents} c USING {LOCKED} l WHERE c.digest = l.digest AND NOT EXISTS ({used})"
