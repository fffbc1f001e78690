"""One experiment on one replica and on four: rows a second where no limit binds, and the use of a limit where one does.

    python -m bench.runner.replicas DATABASE SIMULATOR ROWS    is one replica: it reads `start` or `join`

Each replica is a process with `SLOTS` functions at most, and answers take a second. The simulator says when the first
and the last call were admitted, so the start of a process does not count.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

import tidegate
from bench.runner.places import Fresh
from bench.runner.reach import RATE, free, quota
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings
from tidegate.testing import Scenario, SimulatorProcess

SLOTS = 50
"""Functions at once on a replica."""

REPLICAS = 4
LATENCY = 1.0
"""Seconds of an answer."""

NAME = "replicas"
PATIENCE = 600.0
"""Seconds after which a replica is given up."""

JOIN_EVERY = 0.05
"""Seconds between two attempts to join an experiment that is not there yet."""


@dataclass(frozen=True, slots=True)
class Part:
    """One experiment: rows answered, seconds from the first admission to the last answer, refusals and rows a replica.

    `repeated` counts the admitted calls beyond one a row.
    """

    rows: int
    seconds: float
    refused: int
    repeated: int
    shares: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Return rows a second."""
        return self.rows / self.seconds


async def _replica(database: str, url: str, dataset: str) -> None:
    tidegate.install()
    answered = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(row: Any) -> Any:
            nonlocal answered
            body = {"model": "m", "messages": [{"role": "user", "content": str(row)}]}
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                text = (await answer.json())["choices"][0]["message"]["content"]
            answered += 1
            return text

        experiment = Experiment(NAME, dataset, ask, spread=True)
        settings = RunnerSettings(max_concurrency=SLOTS)
        async with ExperimentRunner(
            database, settings=settings, recover=False, restore=lambda spec: experiment
        ) as runner:
            print("ready", flush=True)
            order = (await asyncio.to_thread(sys.stdin.readline)).strip()
            if order == "start":
                await runner.run(experiment)
            else:
                while await runner.store.experiments.find(NAME) is None or not await runner.join(NAME):  # noqa: ASYNC110
                    await asyncio.sleep(JOIN_EVERY)
                await runner.wait(NAME)
    print(json.dumps({"answered": answered}), flush=True)


@contextmanager
def _started(database: str, url: str, dataset: Path, share: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.runner.replicas", database, url, str(dataset)]
    environment = {**os.environ, "TIDEGATE_SHARE": share, "TIDEGATE_LOG": "off"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(database: str, scenario: Scenario, rows: int, replicas: int, share: str = "auto") -> Part:
    """Run one experiment of that number of rows on that number of replicas. `share` may name the `database`."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, SimulatorProcess(scenario) as simulator:
        dataset = Path(folder) / "rows.jsonl"
        dataset.write_text("".join(f'{{"n": {number}}}\n' for number in range(rows)))
        with ExitStack() as stack:
            started = [
                stack.enter_context(_started(database, simulator.openai_url, dataset, share)) for _ in range(replicas)
            ]
            for each in started:
                assert each.stdout is not None, "opened as a pipe"
                if each.stdout.readline().strip() != "ready":
                    raise RuntimeError("a replica did not start")
            simulator.reset()
            told = ["start", *["join"] * (replicas - 1)]
            for each, word in zip(started, told, strict=True):
                assert each.stdin is not None, "opened as a pipe"
                each.stdin.write(f"{word}\n")
                each.stdin.flush()
            shares = tuple(json.loads(each.communicate(timeout=PATIENCE)[0])["answered"] for each in started)
        truth = simulator.truth()
    if truth.total.admitted < rows:
        raise RuntimeError(f"{rows - truth.total.admitted} rows were not asked")
    seconds = truth.admitted_at[-1] - truth.admitted_at[0] + LATENCY
    return Part(rows, seconds, truth.total.refusals, truth.total.admitted - rows, shares)


def unlimited(fresh: Fresh, rows: int) -> tuple[Part, Part]:
    """Return the run of one replica, and that of four with as many rows for each."""
    scenario = free(LATENCY)
    return run(fresh(), scenario, rows, 1), run(fresh(), scenario, rows * REPLICAS, REPLICAS)


def limited(fresh: Fresh, rows: int, *, at_server: bool) -> Part:
    """Return the run of four replicas at a limit, shared on this machine or at the database's server."""
    database = fresh()
    return run(database, quota(LATENCY), rows, REPLICAS, database if at_server else "auto")


def ideal(rows: int) -> float:
    """Return the seconds that the limit allows for: the bucket is empty at first."""
    return (rows - 1) / RATE + LATENCY


if __name__ == "__main__":
    asyncio.run(_replica(*sys.argv[1:4]))
