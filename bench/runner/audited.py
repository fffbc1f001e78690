"""Durable results a second of a task that makes one governed call, by the attempts that the database keeps."""

from __future__ import annotations

import time
from typing import Literal

from bench.runner.places import Fresh
from bench.runner.speed import Rate, row
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings

MODES: tuple[Literal["off", "refusals", "all"], ...] = ("off", "refusals", "all")
"""Values of the setting `RunnerSettings.audit`."""


async def run(fresh: Fresh, audit: Literal["off", "refusals", "all"], rows: int) -> Rate:
    """Return the rate of one run on a database of its own; each row makes one call, which is answered at once."""
    registry = RateLimitRegistry()

    async def reply() -> str:
        return "Paris."

    async def answer(given: dict[str, object]) -> str:
        return await registry.aexecute("capital", reply)

    experiment = Experiment("audited", [row(number) for number in range(rows)], task=answer)
    settings = RunnerSettings(audit=audit)
    async with ExperimentRunner(fresh(), registry=registry, settings=settings, recover=False) as runner:
        began, spent = time.perf_counter(), time.process_time()
        summary = await runner.run(experiment)
        wall, cpu = time.perf_counter() - began, time.process_time() - spent
    if not summary.complete or summary.answered != rows:
        raise RuntimeError(f"the run did not come to its end: {summary}")
    return Rate(rows, wall, cpu)
