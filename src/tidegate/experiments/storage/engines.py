"""Connections to a database: the shared engine of an event loop, and plain ones for threads.

A text names the database: a path, `sqlite:///…` or `postgresql://…`. The representation of an engine shows its URL and
masks only the password before the host. Other secrets of a URL therefore move to the connection arguments, which are
never shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import in_greenlet

from tidegate.errors import ConfigurationError, StoreError

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
    """Return whether the URL holds a password, also as a parameter."""
    return url.password is not None or any(name in url.query for name in SECRETS)


def _file(path: str) -> URL:
    if not path or path == ":memory:":
        raise ConfigurationError("db", path, "the path of a file: a database in memory is not kept")
    return URL.create(DRIVERS["sqlite"], database=str(Path(path).expanduser()))


CONNECTIONS = 5
"""Connections kept open at most; as many more may be open for a while. Raising it uses more memory, since each one that
read a row of megabytes keeps buffers of that size (libpq's never shrink). The last used one is used next. Precedent:
SQLAlchemy's `pool_size`."""

LOCK_SECONDS = 30.0
"""Seconds for which SQLite waits for another process's transaction before it reports "database is locked". Raising it
reports a hung writer later. Chosen: above any batch, as a busy file must not fail a run."""

IDLE_SECONDS = 30.0
"""Seconds after which PostgreSQL ends an idle transaction. Raising it blocks a claim for longer where a replica is
suspended in the middle of a batch. Chosen: half of `engine.replica.STALE_SECONDS`, as for `ALIVE`."""

CONNECT_SECONDS = 10
"""Seconds of libpq's `connect_timeout`. Raising it reports an unreachable server later. Chosen: libpq's default waits
for ever."""

ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""Seconds (`tcp_user_timeout`: milliseconds) after which a silent host is given up. Raising them notices a lost host
later. Derived from half of `engine.replica.STALE_SECONDS`. Systems probe after two hours by default, and resend for a
quarter of an hour (libpq, section 34.1.2; tcp(7))."""

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
CURES = {True: "pip install 'tidegate[runner]'", False: "pip install 'tidegate[postgres]'"}


def shared_engine(url: URL) -> AsyncEngine:
    """Return the engine of an event loop; raise `StoreError` where the driver is not installed."""
    engine: AsyncEngine = _made(
        url, create_async_engine, pool_size=CONNECTIONS, max_overflow=CONNECTIONS, pool_use_lifo=True
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
