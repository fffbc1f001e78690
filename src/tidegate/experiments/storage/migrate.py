"""Migration of a database's schema to the newest version, done by the first process that opens it.

The migration is one transaction under a lock: on SQLite its write lock, on PostgreSQL an advisory one. A second process
waits, and then finds it done. No experiment is claimed or written meanwhile, and none may run before: replicas of the
older version do not know the new schema.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select, text

from tidegate.errors import SchemaMismatch, StoreError
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.engines import LOCK_SECONDS
from tidegate.experiments.storage.schema import PREFIX, RUNNING, execution_configs, experiments
from tidegate.experiments.storage.sql_clock import ago, since

HEAD = "0009"
"""Newest migration in `versions/`."""

VERSION_TABLE = f"{PREFIX}version"
ADVISORY_LOCK = 0x7469_6465_6761_7465
"""The letters "tidegate" as a number."""

IN_TURN = threading.Lock()
"""Alembic keeps its state in module variables: a process may run only one migration at a time."""

LIVE_SECONDS = 60.0
"""Seconds since the last heartbeat for which a claim counts as live. Raising it refuses upgrades longer after a replica
died. Derived from `engine.replica.STALE_SECONDS`."""

version = Table(VERSION_TABLE, MetaData(), Column("version_num", Text))


async def migrate(database: Database) -> None:
    """Create the schema, or bring it to `HEAD`.

    Raise `SchemaMismatch` for an unknown version, and `StoreError` while an older version runs experiments.
    """
    if database.sqlite:
        await _prepare(database)
    async with database.reading() as connection:
        if not database.sqlite:
            encoding = (await connection.execute(text("SHOW server_encoding"))).scalar_one()
            if encoding != "UTF8":
                raise StoreError(
                    f"database {database.shown} not opened: its encoding is {encoding}; only UTF8 has every character"
                )
        if await connection.run_sync(found) == HEAD:
            return
    await asyncio.to_thread(_upgrade_in_turn, database)


def found(connection: Connection) -> str | None:
    """Return the schema's version; None where there is none yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(version.c.version_num)).scalar()


async def _prepare(database: Database) -> None:
    """Switch an SQLite file to WAL mode, which it keeps: then readers and the writer do not wait for each other."""
    try:
        await asyncio.to_thread(_to_wal, database)
    except sqlite3.Error as error:
        raise StoreError(f"database {database.shown} not opened: {error}", retryable="locked" in str(error)) from error


def _to_wal(database: Database) -> None:
    folder = Path(database.path).absolute().parent
    if not folder.is_dir():
        raise StoreError(f"database {database.shown} not opened: there is no folder {folder}")
    # SQLite does not wait for a lock here: it reports a locked file at once.
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            with closing(sqlite3.connect(database.path, timeout=LOCK_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _upgrade_in_turn(database: Database) -> None:
    with IN_TURN, database.plain() as connection:
        _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    at = found(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if at is not None and at not in known:
        raise SchemaMismatch(found=at, expected=HEAD)
    if at is not None and at != HEAD:
        _refuse_live_claims(connection)
    command.upgrade(config, "head")


def _refuse_live_claims(connection: Connection) -> None:
    """Raise `StoreError` where a replica runs an experiment; until the transaction ends, none can claim one."""
    config = execution_configs.c
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {execution_configs.name} IN SHARE ROW EXCLUSIVE MODE"))
    live = (
        select(experiments.c.name, config.claimed_by, since(config.claimed_at).label("quiet"))
        .join(experiments, experiments.c.id == config.experiment_id)
        .where(RUNNING, config.claimed_at > ago(LIVE_SECONDS))
        .order_by(config.claimed_at.desc())
    )
    row = connection.execute(live).first()
    if row is not None:
        raise StoreError(
            f"database not upgraded: an older tidegate runs experiment {row.name} (replica {row.claimed_by}, last "
            f"heartbeat {row.quiet:.0f} s ago); stop it, or try again {LIVE_SECONDS:g} s after its end",
            retryable=False,
        )
