"""Source of the experiments view: the database, opened by the first request, and the speed of what runs in it.

Theory of operation. This module imports no database library; `open` does, so that the page is up before. Every answer
is made from tallies, whose size does not depend on the number of results. An experiment without a tally, which an older
version has made, gets one in the background, once. A process that a user starts by the page outlives the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.row_results import RecentRate
from tidegate.errors import ConfigurationError, DatabaseFileLost, StoreError

if TYPE_CHECKING:
    from tidegate.experiments.storage import Store

AGAIN = 2.0
"""Seconds after which a database that could not be opened is tried again."""

NEEDED = {"sqlalchemy": "sqlalchemy", "alembic": "alembic", "aiosqlite": "aiosqlite"}

SAID = 300
"""Characters that are shown of the last line of a started process."""

RUN = ("from tidegate.cli.main import main; main()", "experiment", "run")


class SourceProblem(Exception):
    """Reason, for people, why there are no experiments to show; `missing` where there is no database yet."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(slots=True)
class StartedRun:
    """Process that the page has started to resume an experiment, and the file with its output."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def said(self) -> str:
        """Return the last line that it wrote."""
        with contextlib.suppress(OSError):
            lines = self.output.read_bytes()[-8192:].decode(errors="replace").split("\n")
            return next((line.strip()[:SAID] for line in reversed(lines) if line.strip()), "")
        return ""


@dataclass(slots=True)
class ExperimentSource:
    """Database at `url`, and what the page knows of its experiments beside it. It belongs to one event loop."""

    url: str
    clock: Callable[[], float] = time.monotonic
    started: dict[int, StartedRun] = field(default_factory=dict)
    _store: Store | None = None
    _problem: tuple[float, SourceProblem] | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rates: dict[tuple[int, str], tuple[int, RecentRate]] = field(default_factory=dict)
    _building: asyncio.Task[None] | None = None

    async def store(self) -> Store:
        """Return the open database; raise `SourceProblem` where it cannot be read."""
        async with self._opening:
            if self._store is not None and await self._store.lost() is not None:
                await self.close()
            if self._store is None:
                if self._problem is not None and self.clock() < self._problem[0]:
                    raise self._problem[1]
                try:
                    self._store = await self._opened()
                except SourceProblem as problem:
                    self._problem = self.clock() + AGAIN, problem
                    raise
            return self._store

    async def close(self) -> None:
        """Close the database; a build of a tally that is under way is undone."""
        if self._building is not None:
            self._building.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._building
            self._building = None
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def _opened(self) -> Store:
        if missing := [package for module, package in NEEDED.items() if find_spec(module) is None]:
            raise SourceProblem(f"{', '.join(missing)} not installed; run: pip install 'tidegate[runner]'")
        # In a thread: the import takes half a second, in which other answers go on.
        await asyncio.to_thread(importlib.import_module, "tidegate.experiments.storage")
        from tidegate.experiments.storage import Store
        from tidegate.experiments.storage.engines import parsed

        try:
            place = parsed(self.url)
            if place.get_backend_name() == "sqlite" and not await asyncio.to_thread(Path(place.database or "").exists):
                raise SourceProblem(f"there is no database {place.database}", missing=True)
            try:
                return await Store.open(self.url)
            except StoreError as error:
                if error.retryable or place.get_backend_name() != "sqlite":
                    raise
                return await Store.open_to_read(self.url)
        except (StoreError, ConfigurationError, DatabaseFileLost) as error:
            raise SourceProblem(str(error)) from error

    def eta(self, number: int, epoch: int, stage: str, done: int, total: int) -> float | None:
        """Return the seconds until a stage is done, by its speed in the last minute under the claim `epoch`."""
        known, rate = self._rates.get((number, stage), (0, RecentRate()))
        if known != epoch:
            rate = RecentRate()
        self._rates[number, stage] = epoch, rate
        rate.note(done, self.clock())
        return rate.seconds(total - done) if done < total else 0.0

    def build(self, store: Store, number: int) -> None:
        """Build the tally of an experiment in the background, unless one is being built."""
        if self._building is None or self._building.done():
            self._building = asyncio.create_task(self._built(store, number))

    async def _built(self, store: Store, number: int) -> None:
        # A failure shows in the next answer: the experiment still has no tally.
        with contextlib.suppress(StoreError):
            await store.tallies.build(number)

    def resume(self, number: int, name: str) -> StartedRun:
        """Start a process that resumes an experiment; it continues when this server ends."""
        descriptor, output = tempfile.mkstemp(prefix="tidegate-resume-", suffix=".log")
        with os.fdopen(descriptor, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", *RUN, "--", name],
                # Not an option: a URL may have a password, and commands are visible to all users.
                env=os.environ | {"TIDEGATE_DB": self.url},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started[number] = StartedRun(process, Path(output))
        return self.started[number]
