"""Durable results a second of a task that does nothing, from an empty database to the end of the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bench.runner.places import Fresh
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner


@dataclass(frozen=True, slots=True)
class Rate:
    """One run: results, and the seconds of wall and of CPU that they took. The CPU is this process's alone."""

    results: int
    wall: float
    cpu: float

    @property
    def per_second(self) -> float:
        """Results a second."""
        return self.results / self.wall

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a result."""
        return 1e6 * self.cpu / self.results


def row(number: int) -> dict[str, Any]:
    """What a row holds: a question of some words."""
    return {"id": f"q{number}", "question": f"What is the capital of the country with the number {number}?"}


async def answer(row: dict[str, Any]) -> str:
    """The task: it does nothing."""
    return f"The capital of {row['id']}."


def judge(judged: dict[str, Any], output: str) -> float:
    """The evaluator: in a thread, as every function that is not asynchronous."""
    return float(len(output))


async def ajudge(judged: dict[str, Any], output: str) -> float:
    """The same in the loop."""
    return judge(judged, output)


WAYS: dict[str, dict[str, Any]] = {
    "task": {"task": answer},
    "task and an evaluator": {"task": answer, "evaluators": [ajudge]},
    "task in a thread": {"task": lambda row: f"The capital of {row['id']}."},
}
"""What runs, by what it is called in the table."""


async def run(fresh: Fresh, way: str, rows: int) -> Rate:
    """One run on a database of its own. Its dataset is read, stored and taken up again within the time."""
    given = WAYS[way]
    experiment = Experiment("speed", [row(number) for number in range(rows)], **given)
    async with ExperimentRunner(fresh(), registry=RateLimitRegistry(), recover=False) as runner:
        began, spent = time.perf_counter(), time.process_time()
        summary = await runner.run(experiment)
        wall, cpu = time.perf_counter() - began, time.process_time() - spent
    if not summary.complete or summary.answered != rows:
        raise RuntimeError(f"the run did not come to its end: {summary}")
    return Rate(rows * (1 + len(experiment.evaluators)), wall, cpu)
