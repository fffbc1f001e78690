"""What the tests of the running runner share: a loop with an end, a database of their own, and functions that wait."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tidegate
from tests import constants
from tests.storage.places import empty_store
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings, Summary
from tidegate.experiments.storage import ResultStatus, Store, StoredRun

TOO_LONG = 300.0
"""Seconds after which a test that waits for what never comes is ended: no test is near it."""

QUICK = {
    "WRITE_SECONDS": 0.001,
    "FIRST_BACKOFF_SECONDS": 0.001,
    "CANCEL_GRACE_SECONDS": 0.05,
    "FOLLOW_SECONDS": 0.05,
    "LOOK_SECONDS": 0.05,
}
"""Constants under which nothing is waited for longer than it must be."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), TOO_LONG))

    return run


def settings(**changes: Any) -> RunnerSettings:
    """Quick settings with some changes; a name in capitals is a constant, and holds until the end of the test."""
    given = {name: changes.pop(name) for name in list(changes) if name.isupper()}
    quick = {name: value for name, value in QUICK.items() if not constants.is_replaced(name)}
    constants.replace(**{**quick, **given})
    return RunnerSettings(**{"grace": 60.0, **changes})


@asynccontextmanager
async def runner_at(path: Path, **changes: Any) -> AsyncIterator[ExperimentRunner]:
    """A runner on the database below `path`, with a registry of its own; `changes` are those of `settings`."""
    made = make(path, **changes)
    async with made:
        yield made


def make(path: Path, *, restore: Any = None, recover: bool = False, **changes: Any) -> ExperimentRunner:
    """A runner that is not opened yet, on a database that has the schema already."""
    file = path / "runs.db"
    if path.is_dir() and not file.exists():
        file.write_bytes(empty_store())
    registry = changes.pop("registry", None) or RateLimitRegistry(tidegate.Settings())
    given = {} if restore is None else {"restore": restore}
    return ExperimentRunner(str(file), registry=registry, settings=settings(**changes), recover=recover, **given)


def rows(count: int) -> list[dict[str, Any]]:
    """So many rows, each with its number."""
    return [{"n": number} for number in range(count)]


async def stored(store: Store, number: int) -> list[StoredRun]:
    """Every run of an experiment."""
    return await store.reports.results(number, after=None, limit=100_000)


async def ran(path: Path, experiment: Experiment, **changes: Any) -> tuple[Summary, list[StoredRun]]:
    """Run an experiment to its end by a runner of its own."""
    async with runner_at(path, **changes) as runner:
        summary = await runner.run(experiment)
        return summary, await stored(runner.store, summary.experiment.id)


async def statuses(store: Store, number: int) -> dict[ResultStatus, int]:
    """How many runs have which status."""
    return dict((await store.reports.counts(number)).runs)


class HeldTask:
    """A task that can be held: it counts its calls, and who is inside it at once."""

    def __init__(self, held: bool = False) -> None:
        self.calls: Counter[int] = Counter()
        self.inside = 0
        self.most = 0
        self.go = asyncio.Event()
        self._one: asyncio.Event | None = None
        self._moved = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self, row: Any, output: Any = None) -> Any:
        self.calls[row["n"]] += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._moved.set()
        gate = self.go if self._one is None else self._one
        self._one = None
        try:
            await gate.wait()
            await asyncio.sleep(0)
        finally:
            self.inside -= 1
            self._moved.set()
        return row["n"]

    def first_apart(self) -> asyncio.Event:
        """What the first call waits for, instead of what all wait for."""
        self._one = asyncio.Event()
        return self._one

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds that can only change with a call's beginning or end."""
        while not holds():
            self._moved.clear()
            if not holds():
                await self._moved.wait()


def held(count: int = 50, **fields: Any) -> tuple[HeldTask, Experiment]:
    """An experiment whose task waits to be let go."""
    task = HeldTask(held=True)
    return task, Experiment("e", rows(count), task, **fields)


class Refused(Exception):
    """What a client raises that was refused: its status, and when to come again."""

    def __init__(self, status: int = 429, retry_after: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


def refusal(retry_after: str | None, content: bytes = b"") -> Refused:
    """The error of a client whose response says when to come again, and what this is about."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    refused = Refused()
    refused.response = SimpleNamespace(status_code=429, headers=headers, content=content)  # type: ignore[attr-defined]
    return refused
