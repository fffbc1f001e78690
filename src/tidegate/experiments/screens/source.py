"""Source of the experiments view: the database, the speed of its running experiments, and comparisons.

This module imports no database library; `ExperimentSource.store` does, so that the page is up before. Every answer is
made from tallies, whose size does not depend on the number of results. A process that a user starts by the page
outlives the server.

Comparisons are made one at a time, and other answers go on between the pages of rows. The page asks each second, and
the answers say how long it has been computing. The last comparisons are kept, with the progress of both experiments at
their start, so that the page can say that results have been added since.
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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidegate.core.wait_text import RecentRate
from tidegate.errors import ConfigurationError, DatabaseFileLost, Error, StoreError

if TYPE_CHECKING:
    from tidegate.experiments.storage import ExperimentRow, Store

RETRY_SECONDS = 2.0
"""Seconds after which a database that could not be opened is tried again."""

NEEDED = {"sqlalchemy": "sqlalchemy", "aiosqlite": "aiosqlite"}

SHOWN_LINE_CHARACTERS = 300
"""Characters that are shown of the last line of a started process."""

RUN = ("from tidegate.cli.main import main; main()", "experiment", "run")


class SourceProblem(Exception):
    """Reason, for people, why there is nothing to show; `missing` where there is no database yet.

    The `status` is 400 where the request itself cannot be used.
    """

    def __init__(self, reason: str, *, missing: bool = False, status: int = 200) -> None:
        super().__init__(reason)
        self.missing = missing
        self.status = status


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
        with contextlib.suppress(OSError):
            lines = self.output.read_bytes()[-8192:].decode(errors="replace").split("\n")
            return next((line.strip()[:SHOWN_LINE_CHARACTERS] for line in reversed(lines) if line.strip()), "")
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

    async def store(self) -> Store:
        """Return the open database; raise `SourceProblem` where it cannot be read."""
        async with self._opening:
            if self._store is not None and await self._store.database.lost() is not None:
                await self.close()
            if self._store is None:
                if self._problem is not None and self.clock() < self._problem[0]:
                    raise self._problem[1]
                try:
                    self._store = await self._opened()
                except SourceProblem as problem:
                    self._problem = self.clock() + RETRY_SECONDS, problem
                    raise
            return self._store

    async def close(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def _opened(self) -> Store:
        if missing := [package for module, package in NEEDED.items() if find_spec(module) is None]:
            raise SourceProblem(f"{', '.join(missing)} not installed; run: pip install 'tidegate[experiments]'")
        # In a thread: the import takes half a second, in which other answers go on.
        await asyncio.to_thread(importlib.import_module, "tidegate.experiments.storage")
        from tidegate.experiments.storage import Store
        from tidegate.experiments.storage.database import parsed

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


SHOWN_ROWS = 20
"""Most different rows that are shown of each output. Chosen: one screen."""

KEPT_COMPARISONS = 16
"""Comparisons that are kept."""

Pair: TypeAlias = tuple[int, int]


class ComparisonResult(NamedTuple):
    """Facts of a comparison, or the `problem` that prevented it; `made` is its time in seconds since 1970.

    `progress` is that of both experiments when it began.
    """

    facts: dict[str, Any] | None
    problem: str
    made: float
    progress: Hashable


class ExperimentComparisons:
    """Comparisons of the experiments of one database. It belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[Pair, ComparisonResult] = {}
        self._running: tuple[Pair, float, asyncio.Task[None]] | None = None

    def forget(self, pair: Pair) -> None:
        self._kept.pop(pair, None)

    def of(self, store: Store, sides: tuple[ExperimentRow, ExperimentRow], progress: Hashable) -> dict[str, Any]:
        """Return what is known of a comparison, which begins if it is not kept and no other one is being made."""
        if find_spec("scipy") is None:
            raise SourceProblem("comparison not made: scipy not installed; run: pip install 'tidegate[compare]'")
        pair = sides[0].id, sides[1].id
        kept = self._kept.get(pair)
        if kept is not None:
            told = {"comparison": kept.facts, "failure": kept.problem, "made": kept.made}
            return {**told, "computing": None, "queued": False, "changed": kept.progress != progress}
        if self._running is None:
            work = asyncio.create_task(self._make(store, sides, progress))
            self._running = pair, time.monotonic(), work
        running, began, _ = self._running
        own = running == pair
        computing = time.monotonic() - began if own else None
        told = {"comparison": None, "failure": "", "made": None, "changed": False}
        return {**told, "computing": computing, "queued": not own}

    async def close(self) -> None:
        if self._running is not None:
            work = self._running[2]
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _make(self, store: Store, sides: tuple[ExperimentRow, ExperimentRow], progress: Hashable) -> None:
        a, b = sides
        facts, problem = None, ""
        try:
            # In a thread: the import takes a while, in which other answers go on.
            await asyncio.to_thread(importlib.import_module, "scipy.special")
            from tidegate.experiments.comparison import compare

            facts = (await compare(store, a, store, b)).facts(SHOWN_ROWS)
        except Error as error:
            problem = str(error)
        except Exception as error:
            problem = f"comparison not made: {type(error).__name__}: {error}"
        finally:
            self._running = None
        self._kept.pop((a.id, b.id), None)
        self._kept[a.id, b.id] = ComparisonResult(facts, problem[:SHOWN_LINE_CHARACTERS], time.time(), progress)
        while len(self._kept) > KEPT_COMPARISONS:
            del self._kept[next(iter(self._kept))]
