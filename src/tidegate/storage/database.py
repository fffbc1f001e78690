"""One database's connections: how to read, how to write, and what its failures mean.

On SQLite whatever writes is one visit to one thread. Statement by statement each would stand in line with all that the
loop is busy with, and its transaction would keep the file from every other process meanwhile; two threads that met in
the file would sleep in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tidegate.errors import StoreError
from tidegate.storage.passing import passes
from tidegate.storage.urls import SECRETS, shown

T = TypeVar("T")

CONNECTIONS = 5
"""Kept open at the most (SQLAlchemy's `pool_size`); as many more may be had for a while."""

LOCK_SECONDS = 30.0
"""For how long SQLite waits for another process's transaction before it says "database is locked"."""

IDLE_SECONDS = 30.0
"""After which PostgreSQL ends a transaction in which nothing happens: a replica that has gone to sleep in the middle of
a batch would keep its claim from everybody until it wakes."""

CONNECT_SECONDS = 10
"""libpq's `connect_timeout`; it would wait for ever by itself."""

SQLITE_ARGUMENTS: dict[str, Any] = {"isolation_level": None, "timeout": LOCK_SECONDS}
SQLITE_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    # A commit is on the disk when it returns: in WAL mode NORMAL would lose the last ones with the power.
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -16000",
    "PRAGMA temp_store = MEMORY",
)
POSTGRESQL_SETTINGS = tuple(
    # Every query of ours is a walk along an index and a look into others. While a table grows, the statistics say for a
    # minute that it is empty, and a plan made for that reads the whole of it, page after page.
    f"SET enable_{way} = off"
    for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material")
)
CURES = {True: "pip install 'tidegate[runner]'", False: "pip install 'tidegate[postgres]'"}


class Database:
    """An engine and its ways in. `path` is the file's, on SQLite."""

    def __init__(self, url: URL) -> None:
        self.shown = shown(url)
        self.sqlite = url.get_backend_name() == "sqlite"
        self.path = url.database or ""
        self._engine = self._opened(url)
        self._thread = WritingThread(url) if self.sqlite else None
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._lending: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection on which each statement is for itself."""
        with self.translated():
            async with self._borrowed(self._reading) as connection:
                yield connection

    async def transacted(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, in a transaction: committed at its end, rolled back by an exception.

        On SQLite it has the write lock at once.
        """
        with self.translated():
            if self._thread is not None:
                return await self._thread.run(work)
            async with self._borrowed(self._engine) as connection, connection.begin():
                return await connection.run_sync(work)

    async def acted(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, which is one statement: where a statement is a transaction by itself, it is left so."""
        if self._thread is not None:
            return await self.transacted(work)
        async with self.reading() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Closes every connection, for good."""
        while self._lending:
            await asyncio.wait(self._lending)
        await self._engine.dispose()
        if self._thread is not None:
            await self._thread.close()

    @asynccontextmanager
    async def _borrowed(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """A connection of the pool's. Who is cancelled while he gets it, or gives it back, does not keep it: a pool
        forgets what a cancelled checkout had taken out.
        """
        getting = self._lent(engine.connect().start())
        try:
            connection = await asyncio.shield(getting)
        except asyncio.CancelledError:
            getting.add_done_callback(self._returned)
            raise
        try:
            yield connection
        finally:
            await asyncio.shield(self._lent(connection.close()))

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

    def _opened(self, url: URL) -> AsyncEngine:
        # What an engine was given it shows to whoever prints it, but for the password before the host.
        secrets = {name: url.query[name] for name in SECRETS if name in url.query}
        try:
            given: dict[str, Any] = SQLITE_ARGUMENTS if self.sqlite else _postgresql_arguments()
            engine = create_async_engine(
                url.difference_update_query(SECRETS),
                connect_args={name: value for name, value in given.items() if name not in url.query} | secrets,
                pool_size=CONNECTIONS,
                max_overflow=CONNECTIONS,
                hide_parameters=True,
            )
        except ModuleNotFoundError as error:
            raise StoreError(f"{self.shown}: {error.name} is missing: {CURES[self.sqlite]}") from error
        idle = f"SET idle_in_transaction_session_timeout = {IDLE_SECONDS * 1000:.0f}"
        settings = SQLITE_PRAGMAS if self.sqlite else (*POSTGRESQL_SETTINGS, idle)
        event.listen(engine.sync_engine, "connect", _settler(settings))
        return engine


class WritingThread:
    """A thread with a connection of its own to an SQLite file, for transactions that are one visit each."""

    def __init__(self, url: URL) -> None:
        given = {name: value for name, value in SQLITE_ARGUMENTS.items() if name not in url.query}
        self._engine = create_engine(
            url.set(drivername="sqlite+pysqlite"),
            connect_args={**given, "check_same_thread": False},
            hide_parameters=True,
        )
        self._thread = ThreadPoolExecutor(1, "tidegate-store")
        self._closed = False
        event.listen(self._engine, "connect", _settler(SQLITE_PRAGMAS))
        event.listen(self._engine, "begin", _begin)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, in a transaction; who is cancelled meanwhile does not learn how it ended."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        """Ends it, in its turn: whoever was cancelled while he waited has left it at work."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
            self._thread.shutdown()

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)


def _postgresql_arguments() -> dict[str, Any]:
    from psycopg import adapters
    from psycopg.adapt import AdaptersMap
    from psycopg.types.array import ListBinaryDumper

    # As text, every quote in an array is escaped by a regular expression: a second for an answer of megabytes.
    adapting = AdaptersMap(adapters)
    adapting.register_dumper(list, ListBinaryDumper)
    return {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "tidegate",
        # A prepared statement would keep the plan that was made for a smaller table.
        "prepare_threshold": None,
        "context": adapting,
    }


def _settler(statements: tuple[str, ...]) -> Any:
    def settle(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    return settle


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
