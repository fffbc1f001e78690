"""On SQLite whatever writes is one visit to a thread: no transaction stays open while the loop is busy elsewhere.

Each test lets an act begin, and then keeps the loop from turning until another connection sees that it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.storage.places import PATIENCE, SQLite
from tests.storage.values import STALE, claimed, experiment, rows, run
from tidegate.experiments.storage import Claim, ExperimentRow, Status, Store

pytestmark = pytest.mark.anyio

ENDED, UNREAD = 2, 3
"""The experiments, and their datasets, that are made after the first one."""

Act = Callable[[Store, ExperimentRow, Claim], Awaitable[object]]

ACTS: dict[str, Act] = {
    "claim": lambda store, made, held: store.claims.claim(made.id, "a", STALE),
    "renew": lambda store, made, held: store.claims.renew("a", {made.id: held.epoch}),
    "release": lambda store, made, held: store.claims.release(held, Status.COMPLETED),
    "stop": lambda store, made, held: store.claims.stop(made.id),
    "resume": lambda store, made, held: store.claims.resume(ENDED, "a"),
    "amend": lambda store, made, held: store.experiments.amend(held, {"task": "other.py:answer"}, 2),
    "create": lambda store, made, held: store.experiments.create("another", {}, 1, ""),
    "add_rows": lambda store, made, held: store.datasets.add_rows(UNREAD, rows(100)),
    "complete": lambda store, made, held: store.datasets.complete(UNREAD, 0),
    "write": lambda store, made, held: store.write([run(held, 0)]),
}


class Observer:
    """Another connection, which sees when somebody has committed."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._before = self._version()

    def sees_a_commit(self) -> bool:
        """Waits for one without giving the loop a turn."""
        until = time.monotonic() + PATIENCE
        while self._version() == self._before:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


async def begun(act: Awaitable[object]) -> asyncio.Future[object]:
    """The act, given the few turns in which it is handed to the thread."""
    beginning = asyncio.ensure_future(act)
    for _ in range(3):
        await asyncio.sleep(0)
    return beginning


@pytest.mark.parametrize("name", list(ACTS))
async def test_an_act_that_has_begun_needs_no_turn_of_the_loop_to_be_committed(sqlite: SQLite, name: str) -> None:
    store = await Store.open(sqlite.url)
    made = await experiment(store)
    held = await claimed(store, made.id)
    await store.claims.release(await claimed(store, (await experiment(store, name="ended")).id), Status.ERROR)
    await store.experiments.create("unread", {}, 1, "")
    with contextlib.closing(Observer(sqlite.path)) as witness:
        act = await begun(ACTS[name](store, made, held))
        assert witness.sees_a_commit()
        await act
    await store.close()
