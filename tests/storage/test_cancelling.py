"""Who is cancelled in the middle of the store leaves nothing of it behind: no connection, no transaction, no lock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.storage.places import Place
from tidegate.errors import StoreError
from tidegate.storage import Store

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
        pytest.param(lambda store: store.list(), id="reading"),
        pytest.param(lambda store: store.create("e", {}, 1, "rows"), id="writing"),
        pytest.param(lambda store: store.stop(1), id="acting"),
    ],
)
async def test_a_call_that_is_cancelled_at_any_turn_gives_its_connection_back(
    place: Place, call: Callable[[Store], Coroutine[Any, Any, Any]]
) -> None:
    for turns in range(TURNS):
        store = await Store.open(place.url)
        await asyncio.gather(*(cancelled_after(turns, call(store)) for _ in range(3)))
        await store.close()
    # What is left open complains when it is collected, and warnings are errors here.
    gc.collect()
    store = await Store.open(place.url)
    await store.create("e", {}, 1, "rows")
    assert [each.experiment.name for each in await store.list()] == ["e"]
    await store.close()


async def test_store_that_is_closed_opens_no_connection(place: Place) -> None:
    """A run that a shutdown left behind goes on for a moment: nobody would close what it opens then."""
    store = await Store.open(place.url)
    await store.close()
    with pytest.raises(StoreError, match="the store was closed before"):
        await store.find("e")
    gc.collect()
