"""A database on its first use, on every later one, and one that somebody else made."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.postgres import Server
from tests.storage.places import Place, PostgreSQL, SQLite
from tests.warm import WarmProcess
from tidegate.errors import SchemaMismatch, StoreError
from tidegate.experiments.storage import Store
from tidegate.experiments.storage.schema import HEAD, PREFIX, VERSION_TABLE, metadata
from tidegate.experiments.storage.store import ADVISORY_LOCK

pytestmark = pytest.mark.anyio

OPEN = """
import asyncio, sys
from tidegate.experiments.storage import Store

async def main():
    store = await Store.open(sys.argv[1])
    print((await store.experiments.create("capitals", {}, 1, "")).id)
    await store.close()

sys.stdin.read()
asyncio.run(main())
"""


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from tidegate.errors import StoreError
from tidegate.experiments.storage import Store

async def main():
    try:
        await (await Store.open(str(path))).create("capitals", {}, 1, "")
    except StoreError as error:
        print(error, error.retryable)

path = Path(sys.argv[1])
os.chmod(path, 0o444)
os.chmod(path.parent, 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main())
"""


async def opened(url: str) -> None:
    await (await Store.open(url)).close()


async def test_the_first_use_makes_the_schema_and_the_next_finds_it(bare_place: Place) -> None:
    await opened(bare_place.url)
    assert bare_place.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]
    store = await Store.open(bare_place.url)
    made = await store.experiments.create("capitals", {}, 1, "")
    await store.close()
    store = await Store.open(bare_place.url)
    assert await store.experiments.find("capitals") == made
    await store.close()


def test_every_table_has_our_name_before_its_own() -> None:
    assert all(name.startswith(PREFIX) for name in metadata.tables)


def test_many_processes_may_use_a_new_database_first(bare_place: Place) -> None:
    started = [
        WarmProcess(["-c", OPEN, bare_place.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    # Each waits for the end of its input, so that all begin together.
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    told = []
    for process in started:
        assert process.stdout is not None
        told.append(process.stdout.read().strip())
        process.stdout.close()
        assert process.wait(300) == 0
    assert told == ["1"] * 4


async def test_one_process_may_use_several_new_databases_first(server: Server, tmp_path: Path) -> None:
    bare = [PostgreSQL.made(server) for _ in range(3)]
    urls = [*(place.url for place in bare), *(str(tmp_path / f"{n}.db") for n in range(3))]
    # As often as not in threads, each with a loop of its own.
    await asyncio.gather(*map(opened, urls[::2]), *(asyncio.to_thread(asyncio.run, opened(url)) for url in urls[1::2]))
    for place in [*bare, *(SQLite(tmp_path / f"{n}.db") for n in range(3))]:
        assert place.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]
        if isinstance(place, PostgreSQL):
            place.drop()


async def test_who_comes_while_somebody_migrates_waits_for_him(bare_place: Place) -> None:
    lock = () if bare_place.on_sqlite else (f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})",)
    with bare_place.begun(*lock) as held:
        opening = asyncio.create_task(opened(bare_place.url))
        await bare_place.waiting(1)
        assert not opening.done()
        held.rollback()
        await opening
    await opened(bare_place.url)


async def test_a_database_of_a_newer_schema_is_left_alone(bare_place: Place) -> None:
    await opened(bare_place.url)
    bare_place.sql(f"UPDATE {VERSION_TABLE} SET version_num = '0999'")
    with pytest.raises(SchemaMismatch, match="0999") as told:
        await Store.open(bare_place.url)
    assert (told.value.found, told.value.expected, told.value.retryable) == ("0999", HEAD, False)
    assert bare_place.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [("0999",)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_character_is_refused_at_once(server: Server, encoding: str) -> None:
    name = f"of_{encoding.lower()}"
    server.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    with pytest.raises(StoreError, match="only UTF8") as told:
        await Store.open(server.url(name))
    assert not told.value.retryable


async def test_a_migration_that_fails_leaves_nothing_behind(bare_place: Place) -> None:
    bare_place.sql("CREATE TABLE tidegate_logs (x INTEGER)")
    with pytest.raises(StoreError, match="tidegate_logs"):
        await Store.open(bare_place.url)
    bare_place.sql("DROP TABLE tidegate_logs")
    await opened(bare_place.url)


async def test_other_peoples_tables_are_no_concern_of_ours(bare_place: Place) -> None:
    bare_place.sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    bare_place.sql("CREATE TABLE runs (id INTEGER)")
    await opened(bare_place.url)
    assert bare_place.sql("SELECT count(*) FROM alembic_version") == [(0,)]


async def test_an_sqlite_file_is_in_wal_mode_from_the_first_use_on(tmp_path: Path) -> None:
    await opened(str(tmp_path / "new.db"))
    connection = sqlite3.connect(tmp_path / "new.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
async def test_a_file_that_may_only_be_read_is_told_and_not_waited_for(journal: str) -> None:
    # Where anybody may go: whoever is root becomes somebody else there.
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        path = Path(folder) / "store.db"
        await opened(str(path))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
        refused = [sys.executable, "-c", READ_ONLY, str(path)]
        told = await asyncio.to_thread(subprocess.run, refused, capture_output=True, text=True, check=False)
        path.parent.chmod(0o700)
    assert told.returncode == 0, told.stderr
    assert "read" in told.stdout or "unable to open" in told.stdout
    assert told.stdout.endswith("False\n")


async def test_a_path_with_every_kind_of_character_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "50% of å?#&"
    folder.mkdir()
    await opened(str(folder / "my store.db"))
    assert (folder / "my store.db").is_file()
