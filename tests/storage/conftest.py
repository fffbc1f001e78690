"""Every test of the store is run on SQLite and on PostgreSQL, each time on a database in which nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.postgres import Server, served
from tests.storage.places import Place, PostgreSQL, SQLite, empty_store
from tidegate.experiments.storage import Store, claims

LONG = 3600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def long_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cool-down is over before a test lets it be, however slow the machine is."""
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", LONG)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server for this process."""
    # Statistics that appear during a test change the plans that it looks at.
    with served(autovacuum="off") as server:
        yield server


@pytest.fixture(scope="session")
def stored(server: Server) -> PostgreSQL:
    """A PostgreSQL database that has the schema."""
    place = PostgreSQL.made(server)
    asyncio.run(_opened_once(place.url))
    return place


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLite:
    """An SQLite file with an empty store in it."""
    place = SQLite(tmp_path / "store.db")
    place.path.write_bytes(empty_store())
    return place


@pytest.fixture
def postgresql(stored: PostgreSQL) -> PostgreSQL:
    """A PostgreSQL database with an empty store in it."""
    stored.empty()
    return stored


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    """A database with an empty store in it, of each kind in turn."""
    place: Place = request.getfixturevalue(request.param)
    return place


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database with nothing in it, of each kind in turn."""
    if request.param == "sqlite":
        yield SQLite(tmp_path / "bare.db")
        return
    bare = PostgreSQL.made(request.getfixturevalue("server"))
    yield bare
    bare.drop()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """A store at the place."""
    store = await Store.open(place.url)
    yield store
    await store.close()


@pytest.fixture
async def other(place: Place) -> AsyncIterator[Store]:
    """A second store at the same place, as another replica has it."""
    store = await Store.open(place.url)
    yield store
    await store.close()


async def _opened_once(url: str) -> None:
    await (await Store.open(url)).close()
