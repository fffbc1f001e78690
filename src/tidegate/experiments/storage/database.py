"""One database: its engines, reads and writes through them, and the classification of its failures.

A text names the database: a path, `sqlite:///…` or `postgresql://…`. The representation of an engine shows its URL and
masks only the password before the host. Other secrets of a URL therefore move to the connection arguments, which are
never shown.

On SQLite one thread runs each writing transaction as a single job. If a transaction returned to the event loop after
each statement, each would wait behind the loop's other work. The file would stay locked for other processes all that
time. Two writing threads would each sleep while the other holds the lock.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool
from sqlalchemy.util.concurrency import in_greenlet

from tidegate.errors import ConfigurationError, DatabaseFileLost, StoreError
from tidegate.experiments.storage.sqlite_file import SQLiteFile

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
SECRETS = ("password", "sslpassword")
"""Secrets that libpq also accepts as parameters of the URL (libpq, section 34.1.2)."""

BOUND = "a path, sqlite:///path or postgresql://user@host/name"


def parsed(url: str) -> URL:
    """Return the named database, with our driver; raise `ConfigurationError`, which shows no secret."""
    if "://" not in url:
        return _file(url)
    scheme = url.partition("://")[0]
    if scheme not in DRIVERS:
        raise ConfigurationError("db", f"{scheme}://…", BOUND)
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("db", f"{scheme}://…", BOUND) from None
    if found.get_backend_name() == "sqlite":
        return _file(found.database or "").update_query_dict(dict(found.query))
    return found.set(drivername=DRIVERS[scheme])


def shown(url: URL) -> str:
    """Return the URL for people: without its driver, and with `***` for every secret."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    hidden = {name: "***" for name in SECRETS if name in url.query}
    plain = url.set(drivername=url.get_backend_name()).update_query_dict(hidden)
    return plain.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def has_secret(url: URL) -> bool:
    return url.password is not None or any(name in url.query for name in SECRETS)


def _file(path: str) -> URL:
    if not path or path == ":memory:":
        raise ConfigurationError("db", path, "the path of a file: a database in memory is not kept")
    return URL.create(DRIVERS["sqlite"], database=str(Path(path).expanduser()))


KEPT_CONNECTIONS = 5
"""Connections kept open at most; as many more may be open for a while. The last used one is used next. Precedent:
SQLAlchemy's `pool_size`."""

LOCK_SECONDS = 30.0
"""Seconds for which SQLite waits for another process's transaction before it reports "database is locked". Chosen:
above any batch, as a busy file must not fail a run."""

IDLE_SECONDS = 30.0
"""Seconds after which PostgreSQL ends an idle transaction. Chosen: half of `engine.replica.STALE_SECONDS`, as for
`ALIVE`."""

CONNECT_SECONDS = 10
"""Seconds of libpq's `connect_timeout`. Chosen: libpq's default waits for ever."""

ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""Seconds (`tcp_user_timeout`: milliseconds) after which a silent host is given up. Derived from half of
`engine.replica.STALE_SECONDS`. Systems probe after two hours by default, and resend for a quarter of an hour (libpq,
section 34.1.2; tcp(7))."""

SQLITE_ARGUMENTS: dict[str, Any] = {"isolation_level": None, "timeout": LOCK_SECONDS}
SQLITE_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    # A commit is on the disk when it returns: in WAL mode NORMAL loses the last ones in a power failure.
    "PRAGMA synchronous = FULL",
    # Four megabytes for each connection: more made a long run no faster.
    "PRAGMA cache_size = -4000",
    "PRAGMA temp_store = MEMORY",
)
POSTGRESQL_SETTINGS = (
    # Every query here walks along one index and looks rows up in others. While a table grows, the statistics show it as
    # empty for a minute. A plan for an empty table scans the whole of it for every page.
    *(f"SET enable_{way} = off" for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material")),
    # A disabled plan counts as expensive, and PostgreSQL compiles code for expensive queries. The compilation takes
    # longer than most of them.
    "SET jit = off",
)
CURES = {True: "pip install 'tidegate[experiments]'", False: "pip install 'tidegate[postgres]'"}


def shared_engine(url: URL) -> AsyncEngine:
    """Return the engine of an event loop; raise `StoreError` where the driver is not installed."""
    engine: AsyncEngine = _made(
        url, create_async_engine, pool_size=KEPT_CONNECTIONS, max_overflow=KEPT_CONNECTIONS, pool_use_lifo=True
    )
    dialect = engine.sync_engine.dialect
    if url.get_backend_name() == "sqlite" and dialect.has_terminate:
        dialect.do_terminate = _close_in_turn  # type: ignore[method-assign, assignment]
    event.listen(engine.sync_engine, "connect", _settler(url))
    return engine


def _close_in_turn(connection: Any) -> None:
    """Close a connection of aiosqlite whose task was cancelled, after the statement that it runs.

    SQLAlchemy 2.1.9 stops the connection's thread again when the task is cancelled again, as `asyncio.run` does at its
    end. The second stop never gets an answer, and the event loop waits for it for ever.
    """
    if in_greenlet():
        connection.close()
    else:
        connection.terminate()  # a call of the garbage collector: nothing can be awaited


def plain_engine(url: URL) -> Engine:
    """Return an engine for one thread whose transactions write: on SQLite each takes the write lock at its start."""
    sqlite = url.get_backend_name() == "sqlite"
    engine: Engine = (
        # The thread keeps its one connection; other users only borrow it.
        _made(url.set(drivername="sqlite+pysqlite"), create_engine, pool_size=1)
        if sqlite
        else _made(url, create_engine, poolclass=NullPool)
    )
    event.listen(engine, "connect", _settler(url))
    if sqlite:
        event.listen(engine, "begin", _begin)
    return engine


def _made(url: URL, create: Any, **more: Any) -> Any:
    sqlite = url.get_backend_name() == "sqlite"
    secrets = {name: url.query[name] for name in SECRETS if name in url.query}
    try:
        given = SQLITE_ARGUMENTS if sqlite else _postgresql_arguments()
        return create(
            url.difference_update_query(SECRETS),
            connect_args={name: value for name, value in given.items() if name not in url.query} | secrets,
            hide_parameters=True,
            **more,
        )
    except ModuleNotFoundError as error:
        raise StoreError(f"database {shown(url)} not opened: {error.name} is missing; {CURES[sqlite]}") from error


def _postgresql_arguments() -> dict[str, Any]:
    from psycopg import adapters
    from psycopg.adapt import AdaptersMap
    from psycopg.types.array import ListBinaryDumper

    # In text form every quote in an array is escaped by a regular expression: a second for an answer of megabytes.
    adapting = AdaptersMap(adapters)
    adapting.register_dumper(list, ListBinaryDumper)
    return {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "tidegate",
        "client_encoding": "UTF8",
        # A prepared statement would keep the plan that was made for a smaller table.
        "prepare_threshold": None,
        "context": adapting,
        **ALIVE,
    }


def _settler(url: URL) -> Any:
    idle = f"SET idle_in_transaction_session_timeout = {IDLE_SECONDS * 1000:.0f}"
    statements = SQLITE_PRAGMAS if url.get_backend_name() == "sqlite" else (*POSTGRESQL_SETTINGS, idle)

    def settle(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    return settle


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


PASSING = frozenset({"25P03", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "57P05"})
"""SQLSTATEs of temporary failures (PostgreSQL, appendix A): the same call may succeed later.

25P03 idle in a transaction; 40001 and 40P01 lost a race; 53100 disk full; 53300 too many connections; 55P03 lock not
available; 57014 cancelled; 57P01 shutdown; 57P02 crash; 57P03 starting; 57P05 idle too long. Class 08, lost
connections, counts too.
"""

SQLITE_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
"""Codes of temporary failures: a lock was not available, or the disk is full (SQLite, "Result and Error Codes"). A full
disk quota is reported as a failed write."""

REFUSALS = (
    ("28P01", re.compile(r'password authentication failed for user "|no password supplied')),
    ("28000", re.compile(r'authentication failed for user "|pg_hba\.conf|role ".*" (does not exist|is not permitted)')),
    ("3D000", re.compile(r'database ".*" does not exist|currently not accepting connections')),
    ("42501", re.compile(r'permission denied for database "')),
)
"""Texts with which a server rejects a connection, by SQLSTATE. Before a connection exists, libpq keeps its SQLSTATE to
itself (psycopg issue 1188). It passes on the text alone (PostgreSQL 18: auth.c, postinit.c, miscinit.c; libpq:
fe-auth.c). A server that answers in another language is treated as one that is away."""


def passes(error: DBAPIError) -> bool:
    """Return whether the same call may succeed later: connection lost, server away, or lock not available."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorname", None)
    if code is not None:
        return str(code).startswith(SQLITE_PASSING)
    state = state_of(error.orig)
    if state is not None:
        return state in PASSING or state.startswith("08")
    # Without a SQLSTATE: libpq could not connect.
    return type(error.orig).__name__ == "OperationalError"


def state_of(error: Any) -> str | None:
    """Return the SQLSTATE of a driver's error; None where no server answered, or its answer is unknown."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state)
    said = str(error)
    return next((state for state, words in REFUSALS if words.search(said)), None)


T = TypeVar("T")
AnyEngine = TypeVar("AnyEngine", Engine, AsyncEngine)

CLOSE_SECONDS = 5.0
"""Seconds for which `close` waits for calls under way. Chosen: writes usually end within it; a connection that is
returned later is not closed."""

RETURN_SECONDS = 0.01
"""Seconds between two checks for a returned connection. Chosen: a person notices no delay."""


class Database:
    """Engine and connections of one database. On SQLite `path` is the file, and `uri` states how to open it."""

    def __init__(self, url: URL, *, uri: str | None = None) -> None:
        self.shown = shown(url)
        self._uri = uri
        self.sqlite = url.get_backend_name() == "sqlite"
        if self.sqlite:
            # Resolve the path now: later connections may be made after the process has changed its folder.
            url = url.set(database=str(Path(url.database or "").absolute()))
        self.path = url.database or ""
        self.file = SQLiteFile(self.path) if self.sqlite else None
        self._engine = self._of_file(shared_engine(url))
        self._plain_engine: Callable[[], Engine] = lambda: self._of_file(plain_engine(url))
        self._writer = self._of_file(plain_engine(url)) if self.sqlite else None
        self._thread = ThreadPoolExecutor(1, "tidegate-store")
        self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._lending: set[asyncio.Task[Any]] = set()
        self._held = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with self.translated():
            async with self._borrowed(self._reading) as connection:
                yield connection

    async def transacted(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, run in a transaction: committed at its end, rolled back by an exception.

        On SQLite it takes the write lock at its start.
        """
        self._require_open()
        with self.translated():
            if self._writer is not None:
                return await self._in_thread(partial(_transacted, self._writer, work))
            async with self._borrowed(self._engine) as connection, connection.begin():
                return await connection.run_sync(work)

    async def transacted_unchecked(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, run in a transaction that on SQLite checks no references between tables.

        There it has its own connection, so that it delays no other write for longer than its write lock lasts.
        """
        if not self.sqlite:
            return await self.transacted(work)
        return await asyncio.to_thread(self._unchecked, work)

    async def hold(self) -> None:
        """Keep an SQLite file open from now on, and note its identity."""
        self._require_open()
        if self.file is not None and self._writer is not None:
            try:
                await asyncio.to_thread(self.file.hold)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"database {self.shown} not opened: {error}", retryable="locked" in str(error)
                ) from error
            # Open the writer's connection too: after a loss no new connection can be made.
            await self._in_thread(partial(_connect, self._writer))

    async def lost(self) -> DatabaseFileLost | None:
        """Return the error for an SQLite file that is no longer in its place; else None."""
        what = await asyncio.to_thread(self.file.lost) if self.file is not None else None
        return None if what is None else DatabaseFileLost(self.path, what)

    async def save_lost(self) -> DatabaseFileLost:
        """Save the content of a lost SQLite file to a new file; return the error that describes both."""
        file = self.file
        if file is None:
            raise StoreError(f"database {self.shown} not saved: only an SQLite file can be lost")
        what = await asyncio.to_thread(file.lost) or "was in its place again"
        try:
            return DatabaseFileLost(self.path, what, saved=await asyncio.to_thread(file.save))
        except (OSError, sqlite3.Error) as error:
            return DatabaseFileLost(self.path, what, failure=str(error))

    async def close(self) -> None:
        """Close every connection for good, after the writes under way; any later use raises `StoreError`."""
        self._closed = True
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_SECONDS
        while (self._lending or self._held) and (left := until - loop.time()) > 0.0:
            if self._lending:
                await asyncio.wait(self._lending, timeout=left)
            else:
                await asyncio.sleep(RETURN_SECONDS)
        await self._engine.dispose()
        writer, self._writer = self._writer, None
        if writer is not None:
            # After the queued work: a cancelled caller may have left some.
            await self._in_thread(writer.dispose)
            # The thread has nothing left to do; a wait for its end would block the event loop.
            self._thread.shutdown(wait=False)
        if self.file is not None:
            await asyncio.to_thread(self.file.close)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in the writing thread; a cancelled caller does not learn its outcome."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _of_file(self, engine: AnyEngine) -> AnyEngine:
        """Return the engine; on SQLite it connects only to an existing file, and only to the one held open."""
        if self.file is not None:
            file, uri = self.file, self._uri or f"{Path(self.path).as_uri()}?mode=rw"

            def connect(dialect: object, record: object, arguments: list[Any], options: dict[str, Any]) -> None:
                file.require()
                arguments[0], options["uri"] = uri, True

            event.listen(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "do_connect", connect)
        return engine

    @asynccontextmanager
    async def _borrowed(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """Yield a connection of the pool. A task that is cancelled at checkout or return does not keep it.

        Without the shield the pool would lose a connection whose checkout was cancelled.
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
        """Raise `StoreError` once the database is closed: an engine would silently open it again."""
        if self._closed:
            raise StoreError(f"database {self.shown} closed: the store was closed before; nothing is read or written")

    async def _connected(self, engine: AsyncEngine) -> AsyncConnection:
        """Return a connection; for a lost file, wait until one that was open before is returned to the pool."""
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
        """Convert the driver's errors into `StoreError`, with the driver's error as the cause."""
        try:
            yield
        except DBAPIError as error:
            said = str(error.orig).strip().partition("\n")[0]
            retryable = passes(error)
            state = "unavailable" if retryable else "failed"
            raise StoreError(f"database {self.shown} {state}: {said}", retryable=retryable) from error.orig
        except PoolTimeout as error:
            raise StoreError(
                f"database {self.shown} unavailable: no connection was free in time", retryable=True
            ) from error
        except SQLAlchemyError as error:
            raise StoreError(f"database {self.shown} failed: {error}") from error

    def _unchecked(self, work: Callable[[Connection], T]) -> T:
        with self.plain(checked=False) as connection:
            return work(connection)

    @contextmanager
    def plain(self, *, checked: bool = True) -> Iterator[Connection]:
        """Yield a blocking transaction on its own connection, usable in any thread; commit at the end.

        Unless it is `checked`, it checks no references between tables on SQLite. An exception rolls it back, and
        database errors are raised as `StoreError`.
        """
        self._require_open()
        engine = self._plain_engine()
        if not checked:
            event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA foreign_keys = OFF"))
        try:
            with self.translated(), engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()


def _transacted(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def _connect(engine: Engine) -> None:
    engine.raw_connection().close()


class StorePart:
    """Data of one kind, read and written through the connections of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
