"""A process that runs a long experiment, or goes on with it, and says how far it is.

    python -m bench.runner.part DATABASE DATASET

Prints `first` with the monotonic instant at which the first task was called, `done` with the number of durable results
once a second, and at the end `ended` with the status and how many rows were answered.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner

NAME = "million"


def say(*words: object) -> None:
    """A line for whoever started this process, without whom it ends."""
    try:
        print(*words, flush=True)
    except BrokenPipeError:
        os._exit(1)


def first_said() -> Any:
    """The task, which does nothing but for saying when it is called first."""
    calls = 0

    async def answer(row: dict[str, Any]) -> str:
        nonlocal calls
        if not calls:
            say("first", time.monotonic())
        calls += 1
        return f"The capital of {row['id']}."

    return answer


async def run(database: str, dataset: Path) -> None:
    """To the end, or until this process is killed."""
    async with ExperimentRunner(database, registry=RateLimitRegistry(), recover=False) as runner:
        number = await runner.start(Experiment(NAME, dataset, first_said()))
        telling = asyncio.create_task(_tell(runner, number))
        summary = await runner.wait(number)
        telling.cancel()
        say("ended", summary.status, summary.answered)


async def _tell(runner: ExperimentRunner, number: int) -> None:
    while (seen := runner.progress(number)) is not None:
        say("done", seen.stages[0].finished)
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
