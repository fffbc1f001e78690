"""The databases that the runner is measured on: made for it, and gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.postgres import served

DURABLE = {"fsync": "on", "shared_buffers": "128MB"}
"""As a server has them by default: a commit is on the disk when it returns."""

Fresh = Callable[[], str]
"""Makes a database in which nothing is, and returns its URL."""


@contextlib.contextmanager
def sqlite() -> Iterator[Fresh]:
    """SQLite files in a folder of their own."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        yield lambda: str(Path(folder) / f"{next(numbers)}.db")


@contextlib.contextmanager
def postgresql() -> Iterator[Fresh]:
    """Databases of a PostgreSQL server that is started here."""
    numbers = itertools.count()
    with served(**DURABLE) as server:

        def fresh() -> str:
            name = f"bench_{next(numbers)}"
            server.sql(f"CREATE DATABASE {name}")
            return server.url(name)

        yield fresh


PLACES = {"SQLite": sqlite, "PostgreSQL": postgresql}
