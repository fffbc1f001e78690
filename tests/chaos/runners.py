"""A runner in virtual time, and what is read off its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings
from tidegate.testing import Distribution

SLOTS = 10
LATENCY = Distribution.constant(0.05)


def now() -> float:
    return asyncio.get_running_loop().time()


def registry(**changes: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(**changes), clock=asyncio.get_running_loop().time, draw=lambda: 0.5)


def runner_of(registry: RateLimitRegistry, path: Path, **changes: Any) -> ExperimentRunner:
    """A runner of ten slots on the database below `path`."""
    settings = RunnerSettings(**{"max_concurrency": SLOTS, **changes})
    return ExperimentRunner(str(path / "runs.db"), registry=registry, settings=settings, recover=False)


async def seconds_of(runner: ExperimentRunner, experiment: Experiment) -> float:
    """For how long an experiment runs until all of it is answered."""
    began = now()
    assert (await runner.run(experiment)).complete
    return now() - began


def apart(admitted_at: Sequence[float]) -> float:
    return (admitted_at[-1] - admitted_at[0]) / (len(admitted_at) - 1)
