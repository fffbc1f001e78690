"""Who is cancelled in the middle of the store leaves nothing of it behind: no connection, no transaction, no lock."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from tests.effort import effort
from tests.storage.places import Place
from tidegate.errors import StoreError
from tidegate.experiments.storage import Store
from tidegate.experiments.storage.database import Database

TURNS = 40
"""Turns of the loop after which a call is cancelled, one more each time: a call has fewer than these."""

pytestmark = pytest.mark.anyio


async def cancelled_after(turns: int, call: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store: store.experiments.every(), id="reading"),
        pytest.param(lambda store: store.experiments.create("e", {}, 1, "rows"), id="writing"),
        pytest.param(lambda store: store.claims.stop(1), id="acting"),
    ],
)
async def test_a_call_that_is_cancelled_at_any_turn_gives_its_connection_back(
    place: Place, call: Callable[[Store], Coroutine[Any, Any, Any]]
) -> None:
    for turns in range(0, TURNS, effort(4, 1)):
        store = await Store.open(place.url)
        await asyncio.gather(*(cancelled_after(turns, call(store)) for _ in range(3)))
        await store.close()
    # What is left open complains when it is collected, and warnings are errors here.
    gc.collect()
    store = await Store.open(place.url)
    await store.experiments.create("e", {}, 1, "rows")
    assert [each.name for each in await store.experiments.every()] == ["e"]
    await store.close()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store: store.experiments.find("e"), id="reading"),
        pytest.param(lambda store: store.experiments.create("e", {}, 1, "rows"), id="writing"),
        pytest.param(lambda store: store.claims.stop(1), id="acting"),
    ],
)
async def test_store_that_is_closed_opens_no_connection(
    place: Place, call: Callable[[Store], Coroutine[Any, Any, Any]]
) -> None:
    """A run that a shutdown left behind goes on for a moment: nobody would close what it opens then."""
    store = await Store.open(place.url)
    await store.close()
    with pytest.raises(StoreError, match="the store was closed before"):
        await call(store)
    gc.collect()


async def test_store_that_is_closed_ends_the_writes_before(place: Place) -> None:
    store = await Store.open(place.url)
    begun = [asyncio.ensure_future(store.experiments.create(name, {}, 1, "rows")) for name in "abc"]
    await asyncio.sleep(0)
    await store.close()
    assert {(await each).name for each in begun} == set("abc")
    gc.collect()


def test_event_loop_ends_in_which_a_statement_was_cancelled(tmp_path: Path) -> None:
    """As Ctrl-C does: the task is cancelled in its statement, and again while its connection is closed."""
    path = tmp_path / "runs.db"
    sqlite3.connect(path).close()
    reached, released = threading.Event(), threading.Event()

    def pause() -> int:
        reached.set()
        released.wait()
        return 1

    async def read(database: Database) -> None:
        async with database.reading() as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            assert raw is not None
            await raw.create_function("pause", 0, pause)
            await connection.execute(text("SELECT pause()"))

    async def main() -> None:
        reading = asyncio.ensure_future(read(Database(make_url(f"sqlite+aiosqlite:///{path}"))))
        await asyncio.to_thread(reached.wait)
        reading.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        # `asyncio.run` cancels what is left first, then the statement ends.
        asyncio.get_running_loop().call_later(0.05, released.set)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
