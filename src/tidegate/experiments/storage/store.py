"""`Store`: all durable data of one database, in parts by kind. One store belongs to one event loop.

Every method of a part is async, and raises `StoreError` where the database fails. Where that is `retryable`, the caller
can repeat the same call: after a lost connection, a restart of the server, or a lock that was not available in time.

The first process that opens a database migrates its schema to the newest version. The migration is one transaction
under a lock: on SQLite its write lock, on PostgreSQL an advisory one. No experiment may run before: replicas of the
older version do not know the new schema.

A reader may be unable to write the file or its folder. A database in WAL mode is read through its log and the log's
index, which SQLite creates where they are missing. Where it may not create them and no log exists, the file is
complete, and is opened as immutable. Where a log exists, its transactions belong to the database: both are copied, and
the copy is read and finally removed.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Connection, delete, insert, inspect, select, text

from tidegate.errors import SchemaMismatch, StoreError
from tidegate.experiments.storage.claims import Claims
from tidegate.experiments.storage.database import LOCK_SECONDS, Database, parsed
from tidegate.experiments.storage.datasets import Datasets
from tidegate.experiments.storage.experiments import Experiments
from tidegate.experiments.storage.migrations import upgrade
from tidegate.experiments.storage.pending import Pending
from tidegate.experiments.storage.records import AnnotationResult, ClaimStats, ItemAttempts, LogLine, RunResult
from tidegate.experiments.storage.reports import Reports
from tidegate.experiments.storage.results import write
from tidegate.experiments.storage.row_ranges import Batches, Chunks
from tidegate.experiments.storage.schema import HEAD, RUNNING, VERSION_TABLE, execution_configs, experiments, version
from tidegate.experiments.storage.stage_sums import Tallies, Usages
from tidegate.experiments.storage.stored_forms import ago, since

ADVISORY_LOCK = 0x7469_6465_6761_7465
"""The letters "tidegate" as a number."""

LIVE_SECONDS = 60.0
"""Seconds since the last heartbeat for which a claim counts as live. Derived from `engine.replica.STALE_SECONDS`."""


class Store:
    """Database of experiments. Only `open` and `open_to_read` create one."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.batches = Batches(database)
        self.chunks = Chunks(database)
        self.claims = Claims(database)
        self.datasets = Datasets(database)
        self.experiments = Experiments(database)
        self.pending = Pending(database)
        self.tallies = Tallies(database)
        self.reports = Reports(database)
        self.usages = Usages(database)
        self._closing: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"Store({self.database.shown!r})"

    @classmethod
    async def open(cls, url: str) -> Store:
        """Return the store at a path or URL (`sqlite:///…`, `postgresql://…`), with its schema brought up to date.

        Raise `SchemaMismatch` where a newer tidegate has made it, and `StoreError` where it cannot be opened.
        """
        database = Database(parsed(url))
        try:
            await migrate(database)
            await database.hold()
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @classmethod
    async def open_to_read(cls, url: str) -> Store:
        """Return the store at a path or URL, only for reading: also an SQLite file in a read-only folder.

        An older schema is brought up to date, which needs to write. Raise the errors of `open`.
        """
        place = parsed(url)
        if place.get_backend_name() != "sqlite":
            return await cls.open(url)
        database, closing = await readable(place)
        if database is None:
            return await cls.open(url)
        store = cls(database)
        store._closing = closing
        return store

    async def close(self) -> None:
        await self.database.close()
        await asyncio.to_thread(self._closing)

    async def write(
        self, batch: Sequence[RunResult | AnnotationResult | ItemAttempts | ClaimStats | LogLine]
    ) -> frozenset[int]:
        """Write a batch in one transaction, which is durable when this returns.

        Return the experiments whose results had an epoch that is not the newest. Nothing of these is written,
        everything of the others is. A failed result never replaces an ok one. The run of an annotation must be in the
        store or in the batch.
        """
        return await write(self.database, batch)

    @property
    def spreads(self) -> bool:
        """Return whether several replicas can run one experiment at once in this database."""
        return not self.database.sqlite


async def readable(url: URL) -> tuple[Database | None, Callable[[], None]]:
    """Return the database at `url` for reading, and a function to call once it is closed.

    The database is None where it must be written first: its schema is older or missing.
    """
    database = Database(url)
    path = Path(database.path)
    try:
        return await _opened(database), _nothing
    except SchemaMismatch:
        raise
    except StoreError as error:
        if error.retryable:
            raise
        failure = error
    log = path.with_name(f"{path.name}-wal")
    try:
        if not log.exists() or not log.stat().st_size:
            return await _opened(Database(url, uri=f"{path.as_uri()}?mode=ro&immutable=1")), _nothing
        folder = Path(tempfile.mkdtemp(prefix="tidegate-read-"))
        try:
            for each in (path, log):
                # Copy the content without the permissions: the copy must be writable.
                shutil.copyfile(each, folder / each.name)
            return await _opened(Database(url.set(database=str(folder / path.name)))), lambda: shutil.rmtree(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
    except OSError as error:
        raise StoreError(f"{failure}; a copy of it could not be made either: {error}") from error


async def _opened(database: Database) -> Database | None:
    """Return the database after a first read; None where its schema is not the newest."""
    try:
        async with database.reading() as connection:
            version = await connection.run_sync(found)
    except BaseException:
        await database.close()
        raise
    if version == HEAD:
        return database
    await database.close()
    if version is not None and version > HEAD:
        raise SchemaMismatch(found=version, expected=HEAD)
    return None


def _nothing() -> None:
    """Do nothing."""


def found(connection: Connection) -> str | None:
    """Return the schema's version; None where there is none yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(version.c.version_num)).scalar()


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
    await asyncio.to_thread(_upgrade, database)


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


def _upgrade(database: Database) -> None:
    """Bring the schema to `HEAD` in one transaction; a second process waits for its end, and finds it done."""
    with database.plain() as connection:
        if not database.sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        at = found(connection)
        if at == HEAD:
            return
        if at is not None and at > HEAD:
            raise SchemaMismatch(found=at, expected=HEAD)
        if at is not None:
            _refuse_live_claims(connection)
        upgrade(connection, at)
        version.create(connection, checkfirst=True)
        connection.execute(delete(version))
        connection.execute(insert(version).values(version_num=HEAD))


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
