"""`Store`: all durable data of one database, in parts by kind. One store belongs to one event loop.

Every method of a part is async, and raises `StoreError` where the database fails. Where that is `retryable`, the caller
can repeat the same call: after a lost connection, a restart of the server, or a lock that was not available in time.

A reader may be unable to write the file or its folder. A database in WAL mode is read through its log and the log's
index, which SQLite creates where they are missing. Where it may not create them and no log exists, the file is
complete, and is opened as immutable. Where a log exists, its transactions belong to the database: both are copied, and
the copy is read and finally removed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import URL

from tidegate.errors import DatabaseFileLost, SchemaMismatch, StoreError
from tidegate.experiments.storage.batches import Batches
from tidegate.experiments.storage.chunks import Chunks
from tidegate.experiments.storage.claims import Claims
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.datasets import Datasets
from tidegate.experiments.storage.deletion import Deletion
from tidegate.experiments.storage.engines import parsed
from tidegate.experiments.storage.experiments import Experiments
from tidegate.experiments.storage.migrate import HEAD, found, migrate
from tidegate.experiments.storage.pending import Pending
from tidegate.experiments.storage.records import AnnotationResult, ClaimStats, ItemAttempts, LogLine, RunResult
from tidegate.experiments.storage.reports import Reports
from tidegate.experiments.storage.results import write
from tidegate.experiments.storage.tally_table import Tallies
from tidegate.experiments.storage.usages import Usages


class Store:
    """Database of experiments. Only `open` and `open_to_read` create one."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.batches = Batches(database)
        self.chunks = Chunks(database)
        self.claims = Claims(database)
        self.datasets = Datasets(database)
        self.deletion = Deletion(database)
        self.experiments = Experiments(database)
        self.pending = Pending(database)
        self.reports = Reports(database)
        self.tallies = Tallies(database)
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
        """Close every connection."""
        await self.database.close()
        await asyncio.to_thread(self._closing)

    async def lost(self) -> DatabaseFileLost | None:
        """Return the error for an SQLite file that was deleted, moved or replaced since it was opened; else None."""
        return await self.database.lost()

    async def save_lost(self) -> DatabaseFileLost:
        """Save the content of a lost SQLite file to a new file next to it.

        The result names that file, or states why there is none. A later call updates the same copy.
        """
        return await self.database.save_lost()

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
