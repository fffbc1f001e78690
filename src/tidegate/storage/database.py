"""One database's connections: how to read, how to write, and what its failures mean.

On SQLite whatever writes is one visit to one thread. Statement by statement each would stand in line with all that the
loop is busy with, and its transaction would keep the file from every other process meanwhile; two threads that met in
the file would sleep in turns.

The failures of a database that pass: the same call, made again, may succeed.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool

from tidegate.errors import DatabaseFileLost, StoreError
from tidegate.storage.engines import plain_engine, shared_engine, shown
from tidegate.storage.sqlite_file import SQLiteFile

PASSING = frozenset({"25P03", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "57P05"})
"""SQLSTATEs that pass: idle in a transaction, lost a race, disk full, too many connections, lock not available,
cancelled by somebody, shutdown, crash, starting, idle too long (PostgreSQL, appendix A). Class 08 are lost connections.
"""

SQLITE_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
"""Codes that pass: a lock was not had, or the disk is full, which of a quota is told as a failed write (SQLite, "Result
and Error Codes")."""

REFUSALS = (
    ("28P01", re.compile(r'password authentication failed for user "|no password supplied')),
    ("28000", re.compile(r'authentication failed for user "|pg_hba\.conf|role ".*" (does not exist|is not permitted)')),
    ("3D000", re.compile(r'database ".*" does not exist|currently not accepting connections')),
    ("42501", re.compile(r'permission denied for database "')),
)
"""What a server says that knows us not. libpq keeps the SQLSTATE of a connection that was not made to itself (psycopg
issue 1188), and hands on the text alone (PostgreSQL 18: auth.c, postinit.c, miscinit.c; libpq: fe-auth.c). A server
that says it in another language is waited for as one that is away."""


def passes(error: DBAPIError) -> bool:
    """Return whether the same call may succeed later: connection lost, server away, or lock not had."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorname", None)
    if code is not None:
        return str(code).startswith(SQLITE_PASSING)
    state = state_of(error.orig)
    if state is not None:
        return state in PASSING or state.startswith("08")
    # Without a state: libpq could not connect.
    return type(error.orig).__name__ == "OperationalError"


def state_of(error: Any) -> str | None:
    """The SQLSTATE of a driver's error; None where nobody answered, or what was answered is not known."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state)
    said = str(error)
    return next((state for state, words in REFUSALS if words.search(said)), None)


T = TypeVar("T")
AnyEngine = TypeVar("AnyEngine", Engine, AsyncEngine)

CLOSE_SECONDS = 5.0
"""Seconds for which closing waits for calls that are under way. Raising it delays the end of a process whose database
does not answer. A connection that comes back later is closed by nobody."""

RETURN_SECONDS = 0.01
"""Between two looks for a connection to a lost file: longer makes the end of such a run later, by that."""


class Database:
    """An engine and its ways in. `path` is the file's, on SQLite; `uri` says how to open that."""

    def __init__(self, url: URL, *, uri: str | None = None) -> None:
        self.shown = shown(url)
        self._uri = uri
        self.sqlite = url.get_backend_name() == "sqlite"
        if self.sqlite:
            # As it is found now: connections are made later too, when a task may have gone to another folder.
            url = url.set(database=str(Path(url.database or "").absolute()))
        self.path = url.database or ""
        self.file = SQLiteFile(self.path) if self.sqlite else None
        self._engine = self._of_file(shared_engine(url))
        self._plain_engine: Callable[[], Engine] = lambda: self._of_file(plain_engine(url))
        self._thread = WritingThread(self._of_file(plain_engine(url))) if self.sqlite else None
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._lending: set[asyncio.Task[Any]] = set()
        self._held = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection on which each statement is for itself."""
        with self.translated():
            async with self._borrowed(self._reading) as connection:
                yield connection

    async def transacted(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, in a transaction: committed at its end, rolled back by an exception.

        On SQLite it has the write lock at once.
        """
        self._require_open()
        with self.translated():
            if self._thread is not None:
                return await self._thread.run(work)
            async with self._borrowed(self._engine) as connection, connection.begin():
                return await connection.run_sync(work)

    async def acted(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, one statement; where a statement is a transaction by itself, it is left so."""
        if self._thread is not None:
            return await self.transacted(work)
        async with self.reading() as connection:
            return await connection.run_sync(work)

    async def hold(self) -> None:
        """Keep an SQLite file open from now on, and note which one it is."""
        self._require_open()
        if self.file is not None and self._thread is not None:
            try:
                await asyncio.to_thread(self.file.hold)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"{self.shown}: {error}", retryable="locked" in str(error)) from error
            # The writer's connection too: after a loss none is made any more.
            await self._thread.connected()

    async def lost(self) -> DatabaseFileLost | None:
        """Return what became of an SQLite file that is not in its place any more; None where it is."""
        what = await asyncio.to_thread(self.file.lost) if self.file is not None else None
        return None if what is None else DatabaseFileLost(self.path, what)

    async def save_lost(self) -> DatabaseFileLost:
        """Save what a lost SQLite file holds to a new file; returns what became of both."""
        file = self.file
        if file is None:
            raise StoreError(f"{self.shown}: only an SQLite file can be lost")
        what = await asyncio.to_thread(file.lost) or "was in its place again"
        try:
            return DatabaseFileLost(self.path, what, saved=await asyncio.to_thread(file.save))
        except (OSError, sqlite3.Error) as error:
            return DatabaseFileLost(self.path, what, failure=str(error))

    async def close(self) -> None:
        """Close every connection, for good, after the writes that were begun; any later use raises `StoreError`."""
        self._closed = True
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_SECONDS
        while (self._lending or self._held) and (left := until - loop.time()) > 0.0:
            if self._lending:
                await asyncio.wait(self._lending, timeout=left)
            else:
                await asyncio.sleep(RETURN_SECONDS)
        await self._engine.dispose()
        if self._thread is not None:
            await self._thread.close()
        if self.file is not None:
            await asyncio.to_thread(self.file.close)

    def _of_file(self, engine: AnyEngine) -> AnyEngine:
        """The engine; on SQLite its connections are made only to a file that is there, and is the one held open."""
        if self.file is not None:
            file, uri = self.file, self._uri or f"{Path(self.path).as_uri()}?mode=rw"

            def connect(dialect: object, record: object, arguments: list[Any], options: dict[str, Any]) -> None:
                file.require()
                arguments[0], options["uri"] = uri, True

            event.listen(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "do_connect", connect)
        return engine

    @asynccontextmanager
    async def _borrowed(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """A connection of the pool's. Who is cancelled while he gets it, or gives it back, does not keep it: a pool
        forgets what a cancelled checkout had taken out.
        """
        self._require_open()
        getting = self._lent(self._connected(engine))
        try:
            connection = await asyncio.shield(getting)
        except asyncio.CancelledError:
            getting.add_done_callback(self._returned)
            raise
        self._held += 1
        try:
            yield connection
        finally:
            self._held -= 1
            await asyncio.shield(self._lent(connection.close()))

    def _require_open(self) -> None:
        """Raise `StoreError` once the database is closed: an engine would open it again, for good."""
        if self._closed:
            raise StoreError(f"{self.shown} closed: the store was closed before; nothing is read or written")

    async def _connected(self, engine: AsyncEngine) -> AsyncConnection:
        """Return a connection; of a file that is lost, one that was open before, as soon as it is given back."""
        returned = engine.sync_engine.pool
        while True:
            try:
                return await engine.connect()
            except DatabaseFileLost:
                if not isinstance(returned, QueuePool) or not returned.checkedout():
                    raise
            await asyncio.sleep(RETURN_SECONDS)

    def _lent(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(step)
        self._lending.add(task)
        task.add_done_callback(self._lending.discard)
        return task

    def _returned(self, getting: asyncio.Task[AsyncConnection]) -> None:
        if not getting.cancelled() and getting.exception() is None:
            self._lent(getting.result().close())

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns the driver's errors into `StoreError`, with the driver's as its cause."""
        try:
            yield
        except DBAPIError as error:
            said = str(error.orig).strip().partition("\n")[0]
            raise StoreError(f"{self.shown}: {said}", retryable=passes(error)) from error.orig
        except PoolTimeout as error:
            raise StoreError(f"{self.shown}: no connection was free in time", retryable=True) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.shown}: {error}") from error

    @contextmanager
    def plain(self) -> Iterator[Connection]:
        """A transaction as `transacted` has it, for whoever is in a thread of his own, on a connection of its own."""
        self._require_open()
        engine = self._plain_engine()
        try:
            with self.translated(), engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


class WritingThread:
    """A thread with a connection of its own to an SQLite file, for transactions that are one visit each."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "tidegate-store")
        self._closed = False

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, in a transaction; who is cancelled meanwhile does not learn how it ended."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def connected(self) -> None:
        """Make its connection, which it keeps."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)

    async def close(self) -> None:
        """Ends it, in its turn: whoever was cancelled while he waited has left it at work."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
            # It has nothing left to do; to wait for its end here would keep the event loop from running.
            self._thread.shutdown(wait=False)

    def _connect(self) -> None:
        self._engine.raw_connection().close()

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)
