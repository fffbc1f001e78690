"""Read-only access to an SQLite file, also where this process may write neither the file nor its folder.

Theory of operation. A database in WAL mode is read through its log and the log's index, which SQLite creates where they
are missing. Where it may not create them and no log exists, the file is complete, and is opened as immutable. Where a
log exists, its transactions belong to the database: both are copied, and the copy is read and finally removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import URL

from tidegate.errors import SchemaMismatch, StoreError
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.migrate import HEAD, found


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
