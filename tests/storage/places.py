"""The databases of the tests, as the tests themselves reach into them: with the plain driver, beside the store."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.postgres import Server
from tidegate.experiments.storage import Store

NUMBERS = itertools.count(1)
PATIENCE = 300.0
CONFIGS = "tidegate_execution_configs"


@functools.cache
def empty_store() -> bytes:
    """Return an SQLite file that has the schema and no experiment: a copy costs a fifth of all migrations."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        path = Path(folder) / "store.db"
        # The caller may be in an event loop.
        thread.submit(asyncio.run, _opened_once(str(path))).result()
        return path.read_bytes()


async def _opened_once(url: str) -> None:
    await (await Store.open(url)).close()


class Place(abc.ABC):
    """One database: where it is, and what a test may do to it behind the store's back."""

    on_sqlite: bool
    url: str

    @abc.abstractmethod
    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs one statement and returns its rows."""

    @abc.abstractmethod
    def begun(self, *statements: str) -> contextlib.AbstractContextManager[OpenTransaction]:
        """A transaction that has run these statements and is still open."""

    @abc.abstractmethod
    async def waiting(self, count: int) -> None:
        """Returns when so many transactions wait for a lock, as far as the database can tell."""

    @abc.abstractmethod
    def ago(self, seconds: float) -> str:
        """The instant so many seconds ago, as SQL."""

    def now(self) -> Any:
        """The instant by the database's clock, as the database gives it back."""
        return self.sql(f"SELECT {self.ago(0)}")[0][0]

    def later_than(self, instant: Any) -> None:
        """Returns when the database's clock has gone on."""
        while self.now() <= instant:
            pass

    def age(self, experiment_id: int, seconds: float) -> None:
        """Makes a claim so much older."""
        self.sql(f"UPDATE {CONFIGS} SET claimed_at = {self.ago(seconds)} WHERE experiment_id = {experiment_id}")

    def cool(self, experiment_id: int) -> None:
        """Lets the cool-down be over."""
        self.sql(f"UPDATE {CONFIGS} SET cooldown_until = {self.ago(1)} WHERE experiment_id = {experiment_id}")

    def locked(self) -> contextlib.AbstractContextManager[OpenTransaction]:
        """A transaction that keeps everybody else from changing who runs what."""
        return self.begun(f"UPDATE {CONFIGS} SET epoch = epoch")

    def claimed(self, experiment_id: int, replica: str) -> str:
        """The statement by which a replica takes an experiment."""
        return (
            f"UPDATE {CONFIGS} SET epoch = epoch + 1, claimed_by = '{replica}', claimed_at = {self.ago(0)}, "
            f"status = 'RUNNING' WHERE experiment_id = {experiment_id}"
        )

    def renewed(self, experiment_id: int) -> str:
        """The statement by which its owner keeps an experiment."""
        return f"UPDATE {CONFIGS} SET claimed_at = {self.ago(0)} WHERE experiment_id = {experiment_id}"

    def freed(self, experiment_id: int, status: str) -> str:
        """The statement by which an experiment is nobody's any more."""
        return (
            f"UPDATE {CONFIGS} SET status = '{status}', claimed_by = NULL, claimed_at = NULL "
            f"WHERE experiment_id = {experiment_id}"
        )

    def many_experiments(self, replica: str) -> None:
        """Experiments 1000 to 1999, claimed long ago by a replica in their epoch 7."""
        self.sql(
            "INSERT INTO tidegate_datasets (id, source, rows, complete, created_at) "
            f"VALUES (1000, '', 0, {'1' if self.on_sqlite else 'true'}, {self.ago(0)})"
        )
        self.sql(
            "INSERT INTO tidegate_experiments (id, name, dataset_id, repetitions, spec, created_at) "
            "WITH RECURSIVE n(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM n WHERE n < 1999) "
            f"SELECT n, CAST(n AS text), 1000, 1, '{{}}', {self.ago(0)} FROM n"
        )
        self.sql(
            f"INSERT INTO {CONFIGS} "
            "(experiment_id, status, claimed_by, claimed_at, epoch, created_at) "
            f"SELECT id, 'RUNNING', '{replica}', {self.ago(5000)}, 7, created_at "
            "FROM tidegate_experiments WHERE id >= 1000"
        )


class OpenTransaction:
    """An open transaction; `commit` or `rollback` end it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()


@dataclass
class SQLite(Place):
    """One file."""

    path: Path
    on_sqlite = True

    @property
    def url(self) -> str:  # type: ignore[override]
        return str(self.path)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    @contextlib.contextmanager
    def begun(self, *statements: str) -> Iterator[OpenTransaction]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in statements:
                connection.execute(statement)
            yield OpenTransaction(connection)

    async def waiting(self, count: int) -> None:
        # SQLite shows nobody who waits. Whoever writes comes after the transaction that is open, however late he asks.
        for _ in range(20):
            await asyncio.sleep(0)

    def ago(self, seconds: float) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f', 'now', '{-seconds} seconds')"


@dataclass
class PostgreSQL(Place):
    """One database of a server."""

    server: Server
    name: str
    on_sqlite = False

    @classmethod
    def made(cls, server: Server) -> PostgreSQL:
        """A new database, in which nothing is."""
        name = f"store_{next(NUMBERS)}"
        server.sql(f"CREATE DATABASE {name}")
        return cls(server, name)

    def drop(self) -> None:
        """Removes it, whoever is still connected."""
        self.server.sql(f"DROP DATABASE {self.name} WITH (FORCE)")

    def empty(self) -> None:
        """Leaves the schema alone, without a row: twenty times as fast as another database."""
        self.disconnect()
        self.sql("TRUNCATE tidegate_contents, tidegate_datasets, tidegate_experiments RESTART IDENTITY CASCADE")

    def disconnect(self) -> None:
        """Ends every connection to it."""
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        self.sql(f"SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE {others}")

    @property
    def url(self) -> str:  # type: ignore[override]
        return self.server.url(self.name)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, self.name)

    @contextlib.contextmanager
    def begun(self, *statements: str) -> Iterator[OpenTransaction]:
        with contextlib.closing(psycopg.connect(self.url)) as connection:
            for statement in statements:
                connection.execute(statement.encode())
            yield OpenTransaction(connection)

    async def waiting(self, count: int) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.sql(query) == [(count,)]:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{count} transactions were to wait for a lock: {self.sql(query)}")

    def ago(self, seconds: float) -> str:
        return f"clock_timestamp() - interval '{seconds} seconds'"
