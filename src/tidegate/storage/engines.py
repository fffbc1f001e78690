"""The connections to a database: the engine whose connections the loop shares, and plain ones for threads.

What an engine was given it shows to whoever prints it, but for the password before the host: what else is secret in a
URL goes into its arguments, which nobody is shown.

The database that a text names (a path, `sqlite:///…` or `postgresql://…`), and its name without a password.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import in_greenlet

from tidegate.errors import ConfigurationError, StoreError
from tidegate.storage.exact_sums import SummingConnection

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
SECRETS = ("password", "sslpassword")
"""What libpq also takes as a parameter of the URL (libpq, section 34.1.2)."""

BOUND = "a database is a path, sqlite:///path or postgresql://user@host/name"


def parsed(url: str) -> URL:
    """The database that is meant, with the driver that we use. Raises `ConfigurationError`, which shows no secret."""
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
    """The URL for people: without its driver, and with `***` for every secret."""
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
        raise ConfigurationError("db", path, "an SQLite database is a file: what is only in memory is not kept")
    return URL.create(DRIVERS["sqlite"], database=str(Path(path).expanduser()))


CONNECTIONS = 5
"""Kept open at the most (SQLAlchemy's `pool_size`); as many more may be had for a while. The one that was used last is
used next: each that has seen a row of megabytes keeps buffers of that size (libpq's never shrink)."""

LOCK_SECONDS = 30.0
"""For how long SQLite waits for another process's transaction before it says "database is locked"."""

IDLE_SECONDS = 30.0
"""After which PostgreSQL ends a transaction in which nothing happens: a replica that has gone to sleep in the middle of
a batch would keep its claim from everybody until it wakes."""

CONNECT_SECONDS = 10
"""libpq's `connect_timeout`; it would wait for ever by itself."""

ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""Seconds, and milliseconds, after which a host that has gone without a word is given up: in half the time that a claim
lasts. By themselves systems ask after two hours, and send for a quarter of one (libpq, section 34.1.2; tcp(7))."""

SQLITE_ARGUMENTS: dict[str, Any] = {
    "isolation_level": None,
    "timeout": LOCK_SECONDS,
    "factory": SummingConnection,
}
SQLITE_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    # A commit is on the disk when it returns: in WAL mode NORMAL would lose the last ones with the power.
    "PRAGMA synchronous = FULL",
    # Four megabytes for each connection: more made a long run no faster.
    "PRAGMA cache_size = -4000",
    "PRAGMA temp_store = MEMORY",
)
POSTGRESQL_SETTINGS = (
    # Every query of ours is a walk along an index and a look into others. While a table grows, the statistics say for a
    # minute that it is empty, and a plan made for that reads the whole of it, page after page.
    *(f"SET enable_{way} = off" for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material")),
    # What is switched off counts as dear, and for dear queries code is compiled: longer than most of them take.
    "SET jit = off",
)
CURES = {True: "pip install 'tidegate[runner]'", False: "pip install 'tidegate[postgres]'"}


def shared_engine(url: URL) -> AsyncEngine:
    """The engine of a loop. Raises `StoreError` where the driver is not installed."""
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

    SQLAlchemy 2.1.9 stops the connection's thread twice when the task is cancelled again meanwhile, as `asyncio.run`
    does at its end. The second stop is never answered, and the event loop waits for it for ever.
    """
    if in_greenlet():
        connection.close()
    else:
        connection.terminate()  # the garbage collector's: nothing can be awaited


def plain_engine(url: URL) -> Engine:
    """An engine for one thread, whose transactions write: on SQLite each has the write lock at once."""
    sqlite = url.get_backend_name() == "sqlite"
    engine: Engine = (
        # The thread keeps its one connection; to anybody else it is only lent.
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
        raise StoreError(f"{shown(url)}: {error.name} is missing: {CURES[sqlite]}") from error


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
