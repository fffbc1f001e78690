"""The database that a command means, and the experiments in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate.errors import StoreError, UnknownExperiment
from tidegate.storage import ExperimentRow, Store
from tidegate.storage.engines import parsed


@asynccontextmanager
async def existing(url: str, *, to_read: bool = False) -> AsyncIterator[Store]:
    """The store at a URL that somebody has made; an SQLite file is not made by looking for it.

    One that is only opened `to_read` need not be writable.
    """
    must_be_there(url)
    store = await (Store.open_to_read(url) if to_read else Store.open(url))
    try:
        yield store
    finally:
        await store.close()


def must_be_there(url: str) -> None:
    """Raises `StoreError` where an SQLite file is not there."""
    place = parsed(url)
    if place.get_backend_name() == "sqlite" and not Path(place.database or "").exists():
        raise StoreError(
            f"there is no database {place.database!r}: `tidegate experiment run` makes it, "
            "--db or TIDEGATE_DB names another"
        )


async def found(store: Store, name: str) -> ExperimentRow:
    """The experiment of that name or number. Raises `UnknownExperiment`."""
    row = await store.find(name)
    if row is None:
        raise UnknownExperiment(name)
    return row
