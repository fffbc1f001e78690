"""An SQLite file that is deleted, moved or replaced while a store has it open: what it holds is saved beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.places import SQLite
from tests.storage.values import claimed, experiment, run
from tidegate.errors import DatabaseFileLost
from tidegate.experiments.storage import Store
from tidegate.experiments.storage.sqlite_file import SQLiteFile

pytestmark = pytest.mark.anyio


def delete(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink()


def delete_only_the_wal(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def delete_only_the_shm(path: Path) -> None:
    path.with_name(path.name + "-shm").unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE other (x)")
    other.replace(path)


LOSSES = [delete, delete_only_the_wal, delete_only_the_shm, move, replace]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def outputs(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT output FROM tidegate_runs ORDER BY ordinal").fetchall()


@pytest.mark.parametrize("lose", LOSSES)
async def test_store_whose_file_is_lost_saves_all_it_holds(sqlite: SQLite, lose: Callable[[Path], None]) -> None:
    """Also what is written after the loss; the copy is beside the original."""
    store = await Store.open(sqlite.url)
    try:
        claim = await claimed(store, (await experiment(store)).id)
        await store.write([run(claim, 0)])
        assert await store.database.lost() is None
        lose(sqlite.path)
        await store.write([run(claim, 1)])
        lost = await store.database.lost()
        assert isinstance(lost, DatabaseFileLost)
        saved = (await store.database.save_lost()).saved
    finally:
        await store.close()
    assert saved == sqlite.path.with_name("store.saved.db")
    assert outputs(saved) == [('"42"',)] * 2
    again = await Store.open(str(saved))
    assert await again.experiments.find("capitals") is not None
    await again.close()


async def test_saved_file_has_the_mode_of_the_original(sqlite: SQLite) -> None:
    sqlite.path.chmod(0o640)
    store = await Store.open(sqlite.url)
    delete(sqlite.path)
    saved = (await store.database.save_lost()).saved
    await store.close()
    assert saved is not None
    assert saved.stat().st_mode & 0o777 == 0o640


async def test_save_with_a_name_in_use_takes_the_next(sqlite: SQLite) -> None:
    """Nothing is ever overwritten but a copy of this store's own that nobody has changed."""
    taken = sqlite.path.with_name("store.saved.db")
    taken.write_text("mine")
    store = await Store.open(sqlite.url)
    claim = await claimed(store, (await experiment(store)).id)
    delete(sqlite.path)
    first = (await store.database.save_lost()).saved
    await store.write([run(claim, 0)])
    second = (await store.database.save_lost()).saved
    assert first == second == sqlite.path.with_name("store.saved-2.db")
    assert outputs(second) == [('"42"',)]
    with closing(sqlite3.connect(second)) as connection:
        connection.execute("CREATE TABLE somebodys (x)")
    third = (await store.database.save_lost()).saved
    await store.close()
    assert third == sqlite.path.with_name("store.saved-3.db")
    assert taken.read_text() == "mine"


async def test_save_without_the_folder_goes_to_the_next_above(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "today"
    folder.mkdir(parents=True)
    store = await Store.open(str(folder / "a.db"))
    shutil.rmtree(tmp_path / "runs")
    lost = await store.database.save_lost()
    await store.close()
    assert lost.saved == tmp_path / "a.saved.db"
    assert str(lost.saved) in str(lost)


async def test_save_that_fails_says_why_and_leaves_no_file(
    sqlite: SQLite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = "database or disk is full"

    def fail(self: SQLiteFile, target: Path) -> None:
        target.write_bytes(b"half")
        raise sqlite3.OperationalError(full)

    store = await Store.open(sqlite.url)
    delete(sqlite.path)
    before = files(tmp_path)
    monkeypatch.setattr(SQLiteFile, "_vacuum_into", fail)
    monkeypatch.setattr("tidegate.experiments.storage.sqlite_file._folders", lambda path: [tmp_path])
    lost = await store.database.save_lost()
    await store.close()
    assert lost.saved is None
    assert full in str(lost)
    assert "was deleted" in str(lost)
    assert files(tmp_path) == before


async def test_database_reached_by_a_symlink_is_no_loss_until_the_link_moves(sqlite: SQLite, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(sqlite.path)
    store = await Store.open(str(link))
    assert await store.database.lost() is None
    link.unlink()
    assert await store.database.lost() is not None
    await store.close()


async def test_relative_path_is_found_again_after_chdir(
    sqlite: SQLite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sqlite.path.parent)
    store = await Store.open(sqlite.path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert await store.database.lost() is None
    delete(sqlite.path)
    assert (await store.database.save_lost()).saved == sqlite.path.with_name("store.saved.db")
    await store.close()


async def test_connection_made_after_the_loss_never_makes_a_new_file(sqlite: SQLite) -> None:
    """A new connection would read an empty file, or another run's."""
    store = await Store.open(sqlite.url)
    delete(sqlite.path)
    await store.database._engine.dispose()
    with pytest.raises(DatabaseFileLost):
        await store.experiments.find("capitals")
    await store.close()
    assert not sqlite.path.exists()


async def test_lost_without_inode_numbers_is_never_claimed(sqlite: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems of Windows have none."""
    real = os.stat

    def without(path: object, *args: object, **named: object) -> os.stat_result:
        found = real(path, *args, **named)  # type: ignore[arg-type, call-overload]
        return os.stat_result((found[0], 0, *found[2:]))

    monkeypatch.setattr("tidegate.experiments.storage.sqlite_file.os.stat", without)
    store = await Store.open(sqlite.url)
    monkeypatch.undo()
    replace(sqlite.path)
    assert await store.database.lost() is None
    await store.close()


async def test_reader_of_a_lost_file_waits_for_a_connection_that_is_open(sqlite: SQLite) -> None:
    """No connection is made to a file that is lost: two readers at once share those there are."""
    store = await Store.open(sqlite.url)
    try:
        made = await experiment(store, 1)
        async with store.database.reading():
            delete(sqlite.path)
            second = asyncio.ensure_future(store.experiments.find(made.id))
            await asyncio.wait({second}, timeout=0.05)
        assert await second is not None
    finally:
        await store.close()
