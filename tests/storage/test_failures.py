"""A database that is away, comes back, is locked, or was never there; and what is never shown of it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from tests.postgres import Server, served
from tests.storage.places import PostgreSQL, SQLite
from tests.storage.values import claimed, experiment, run
from tidegate.errors import ConfigurationError, StoreError
from tidegate.experiments.storage import RunResult, Store, database
from tidegate.experiments.storage.database import parsed, passes, shown

pytestmark = pytest.mark.anyio

SECRET = "s3cret/word"


@pytest.fixture
async def away(postgresql: PostgreSQL) -> AsyncIterator[tuple[Store, PostgreSQL]]:
    """A store on PostgreSQL, and the means to cut it off."""
    store = await Store.open(postgresql.url)
    yield store, postgresql
    await store.close()


async def persist(store: Store, result: RunResult) -> None:
    """Writes as the runner does: again, as long as it can be retried."""
    for _ in range(20):
        try:
            await store.write([result])
        except StoreError as error:
            if not error.retryable:
                raise
        else:
            return
    raise AssertionError("it was never written")


async def test_a_lost_connection_can_be_retried_and_then_succeeds(away: tuple[Store, PostgreSQL]) -> None:
    store, place = away
    claim = await claimed(store, (await experiment(store)).id)
    place.disconnect()
    with pytest.raises(StoreError) as lost:
        await store.write([run(claim, 0)])
    assert lost.value.retryable
    assert isinstance(lost.value.__cause__, psycopg.Error)
    assert await store.write([run(claim, 0)]) == frozenset()
    assert len(await store.reports.results(claim.experiment_id, after=None, limit=10)) == 1


async def test_a_connection_that_is_lost_in_a_batch_loses_the_batch_whole(away: tuple[Store, PostgreSQL]) -> None:
    store, place = away
    claim = await claimed(store, (await experiment(store)).id)
    same = (
        "INSERT INTO tidegate_runs (experiment_id, ordinal, repetition, status, attempts, seconds, epoch, finished_at) "
        f"VALUES ({claim.experiment_id}, 1, 1, 'error', 1, 1, 1, clock_timestamp())"
    )
    with place.begun(same) as held:
        writing = asyncio.create_task(store.write([run(claim, 0), run(claim, 1)]))
        await place.waiting(1)
        place.sql("SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with pytest.raises(StoreError) as lost:
            await writing
        held.rollback()
    assert lost.value.retryable
    assert await store.reports.results(claim.experiment_id, after=None, limit=10) == []
    assert await store.write([run(claim, 0), run(claim, 1)]) == frozenset()


async def test_a_server_that_is_restarted_is_waited_out_by_trying_again() -> None:
    with served() as server:
        store = await Store.open(server.url("postgres"))
        claim = await claimed(store, (await experiment(store)).id)
        server.stop()
        for _ in range(2):
            with pytest.raises(StoreError) as refused:
                await store.write([run(claim, 0)])
            assert refused.value.retryable
        server.start()
        await persist(store, run(claim, 0))
        assert len(await store.reports.results(claim.experiment_id, after=None, limit=10)) == 1
        await store.close()


async def test_a_server_that_is_not_there_is_told_by_its_address() -> None:
    with pytest.raises(StoreError, match=r"postgresql://me:\*\*\*@127\.0\.0\.1:1/none") as told:
        await Store.open(f"postgresql://me:{SECRET.replace('/', '%2F')}@127.0.0.1:1/none")
    assert told.value.retryable
    assert SECRET not in "".join(traceback.format_exception(told.value))


async def test_a_database_that_is_not_there_is_told_and_not_waited_for(server: Server) -> None:
    with pytest.raises(StoreError, match="does not exist") as told:
        await Store.open(server.url("no_such_database"))
    assert not told.value.retryable


async def test_a_user_that_is_not_there_is_told_and_not_waited_for(server: Server) -> None:
    with pytest.raises(StoreError, match='role "nobody_we_know" does not exist') as told:
        await Store.open(server.url("postgres").replace("//tidegate@", "//nobody_we_know@"))
    assert not told.value.retryable


async def test_a_password_that_is_refused_is_told_and_not_waited_for(server: Server) -> None:
    server.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    server.lock_out("guarded")
    for given in ("guarded:wrong", "guarded"):
        with pytest.raises(StoreError, match="password") as told:
            await Store.open(server.url("postgres").replace("//tidegate@", f"//{given}@"))
        assert not told.value.retryable
        assert "wrong" not in "".join(traceback.format_exception(told.value))


async def test_a_store_whose_database_is_removed_under_it_waits_once_and_is_told_then(server: Server) -> None:
    place = PostgreSQL.made(server)
    store = await Store.open(place.url)
    claim = await claimed(store, (await experiment(store)).id)
    place.drop()
    with pytest.raises(StoreError) as lost:
        await store.write([run(claim, 0)])
    with pytest.raises(StoreError, match="does not exist") as told:
        await store.write([run(claim, 0)])
    assert (lost.value.retryable, told.value.retryable) == (True, False)
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret%2Fword@127.0.0.1:1/none",
        "postgresql://127.0.0.1:1/none?user=me&password=s3cret%2Fword",
        "postgres://me:s3cret%2Fword@127.0.0.1:1/none?sslpassword=s3cret%2Fword&connect_timeout=1",
        "postgresql://me:s3cret%2Fword@127.0.0.1:port/none",
        "mysql://me:s3cret%2Fword@127.0.0.1/none",
        "postgresql+asyncpg://me:s3cret%2Fword@127.0.0.1/none",
    ],
)
async def test_no_password_is_ever_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreError, ConfigurationError)) as told:
        await Store.open(url)
    whole = "".join(traceback.format_exception(told.value)) + repr(told.value) + caplog.text
    assert "s3cret" not in whole


async def test_a_store_names_its_database_without_the_password(server: Server) -> None:
    url = server.url("postgres").replace("@", ":s3cret@")
    store = await Store.open(url)
    assert repr(store) == f"Store('{server.url('postgres').replace('@', ':***@')}')"
    assert "s3cret" not in f"{store!r} {vars(store)!r} {vars(store.database)!r}"
    await store.close()


def test_a_password_among_the_parameters_of_a_url_is_not_shown_by_what_holds_it() -> None:
    kept = database.Database(parsed("postgresql://127.0.0.1/none?user=me&password=s3cret&sslpassword=s3cret"))
    assert "s3cret" not in f"{kept!r} {vars(kept)!r} {kept._engine.url!r}"


async def test_what_a_statement_was_given_is_not_in_its_error(sqlite: SQLite) -> None:
    store = await Store.open(sqlite.url)
    made = await experiment(store)
    claim = await claimed(store, made.id)
    sqlite.sql("DROP TABLE tidegate_runs")
    with pytest.raises(StoreError) as told:
        await store.write([run(claim, 0, output="-".join(["own", "words"]))])
    assert "own-words" not in "".join(traceback.format_exception(told.value))
    assert isinstance(told.value.__cause__, sqlite3.Error)
    assert not told.value.retryable
    await store.close()


async def test_an_sqlite_file_that_stays_locked_can_be_retried(sqlite: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.SQLITE_ARGUMENTS, "timeout", 0.05)
    store = await Store.open(sqlite.url)
    claim = await claimed(store, (await experiment(store)).id)
    with sqlite.locked() as held:
        with pytest.raises(StoreError, match="locked") as told:
            await store.write([run(claim, 0)])
        assert told.value.retryable
        # Readers do not wait for writers.
        assert len(await store.pending.tasks(claim.experiment_id, after=None, limit=10, retry_failed=False)) == 3
        held.rollback()
    assert await store.write([run(claim, 0)]) == frozenset()
    await store.close()


async def test_an_sqlite_file_that_cannot_be_made_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no folder .*/nowhere$") as told:
        await Store.open(str(tmp_path / "nowhere" / "store.db"))
    assert not told.value.retryable
    assert not (tmp_path / "nowhere").exists()


async def test_a_task_that_goes_to_another_folder_does_not_take_the_store_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = await Store.open("store.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    made = await experiment(store)
    # More readers at once than there were connections before.
    assert (
        await asyncio.gather(*(store.experiments.find(made.id) for _ in range(8)))
        == [await store.experiments.find(made.id)] * 8
    )
    await store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_file_that_is_no_database_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and not a database at all\n" * 100)
    with pytest.raises(StoreError, match="not a database"):
        await Store.open(str(path))
    assert path.read_text().startswith("these are notes")


async def test_without_psycopg_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"tidegate\[postgres\]"):
        await Store.open("postgresql://127.0.0.1/none")


def test_without_sqlalchemy_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tidegate.experiments.storage")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImportError, match=r"tidegate\[experiments\]"):
        importlib.import_module("tidegate.experiments.storage")


@pytest.mark.parametrize("url", ["", ":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_no_store(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not kept"):
        parsed(url)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("runs.db", "sqlite:///runs.db"),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
        ("sqlite:////var/runs.db", "sqlite:////var/runs.db"),
        ("/var/my runs.db", "sqlite:////var/my runs.db"),
        ("postgres://me:word@host:5433/name", "postgresql://me:***@host:5433/name"),
        ("postgresql+psycopg://me@host/name?sslmode=require", "postgresql://me@host/name?sslmode=require"),
        ("postgresql://host/name?password=word", "postgresql://host/name?password=***"),
    ],
)
def test_a_database_is_named_by_a_path_or_a_url(given: str, named: str) -> None:
    assert shown(parsed(given)) == named


@pytest.mark.parametrize(
    ("state", "passing"),
    [
        ("57P01", True),
        ("57P03", True),
        ("57014", True),
        ("08006", True),
        ("40P01", True),
        ("53100", True),
        ("53300", True),
        ("23505", False),
        ("42P01", False),
        ("28P01", False),
        ("3D000", False),
    ],
)
def test_what_passes_is_known_by_its_state(state: str, passing: bool) -> None:
    error = psycopg.errors.lookup(state)("said") if state != "08006" else psycopg.errors.ConnectionFailure("said")
    assert passes(DBAPIError("SELECT 1", None, error)) is passing


@pytest.mark.parametrize(
    ("said", "passing"),
    [
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is shutting down", True),
        ("FATAL:  the database system is in recovery mode", True),
        ("FATAL:  sorry, too many clients already", True),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", True),
        ("server closed the connection unexpectedly", True),
        ("FATAL:  no existe nada que sepamos", True),
        ('FATAL:  password authentication failed for user "me"', False),
        ("fe_sendauth: no password supplied", False),
        ('FATAL:  Peer authentication failed for user "me"', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "me", database "runs", no encryption', False),
        ('FATAL:  role "me" is not permitted to log in', False),
        ('FATAL:  database "runs" does not exist', False),
        ('FATAL:  permission denied for database "runs"', False),
    ],
)
def test_a_connection_that_is_not_made_passes_unless_the_server_has_refused_us(said: str, passing: bool) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "127.0.0.1", port 1 failed: {said}')
    assert passes(DBAPIError("SELECT 1", None, error)) is passing


async def test_a_full_disk_is_waited_for_and_loses_nothing(sqlite: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SQLITE_PRAGMAS", (*database.SQLITE_PRAGMAS, "PRAGMA max_page_count = 200"))
    store = await Store.open(sqlite.url)
    claim = await claimed(store, (await experiment(store)).id)
    large = run(claim, 1, output="x" * 1_000_000)
    with pytest.raises(StoreError, match="full") as full:
        await store.write([run(claim, 0), large])
    assert full.value.retryable
    await store.close()
    monkeypatch.undo()
    store = await Store.open(sqlite.url)
    assert await store.reports.results(claim.experiment_id, after=None, limit=10) == []
    assert await store.write([run(claim, 0), large]) == frozenset()
    assert len(await store.reports.results(claim.experiment_id, after=None, limit=10)) == 2
    await store.close()
