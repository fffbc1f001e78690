"""Who is throttled holds nobody else up, over HTTP: ten slots, real SDK clients, a provider in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai

from bench.runner.places import Fresh
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment, ExperimentRunner, RunnerSettings
from tidegate.experiments.storage import RunResult
from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

FAST, SLOW = 100.0, 1.0
"""Calls a second that the two providers admit."""

SLOTS = 10
LATENCY = Distribution.constant(0.05)

Ask = Callable[..., Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What one round came to: seconds of the fast experiment alone, beside the slow one, and with the slow one as its
    judge (its tasks); calls a second that the slow provider admitted beside it; and by how many of any hundred calls
    two experiments on one key differed at most.
    """

    alone: float
    beside: float
    judged: float
    slow_rate: float
    apart: int


class Provider:
    """A provider of so many calls a second, and the client that asks it."""

    def __init__(self, rate: float, registry: RateLimitRegistry) -> None:
        # Its bucket is empty at first: it can be at its limit from the beginning to the end.
        self._simulator = SimulatorProcess(
            Scenario(dialect="openai", limiters=(Limit(limit=rate * 60, initial=0),), latency=LATENCY)
        ).start()
        made = openai.AsyncOpenAI(base_url=self._simulator.openai_url, api_key="k")
        self._client = registry.wrap(made)
        self.truth = self._simulator.truth

    def asked_by(self, who: str) -> Ask:
        """A task, or an evaluator, whose calls the provider knows by `who`."""
        numbers = itertools.count()

        async def ask(row: Any, output: Any = None) -> float:
            await self._client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": str(row)}],
                extra_headers={"x-row": f"{who} {next(numbers)}"},
            )
            return 1.0

        return ask

    async def close(self) -> None:
        """Ends both."""
        await self._client.close()
        self._simulator.close()


@dataclass(frozen=True, slots=True)
class Scene:
    """A runner of ten slots and the two providers, all of them new."""

    runner: ExperimentRunner
    fast: Provider
    slow: Provider


@asynccontextmanager
async def scene(fresh: Fresh, rates: tuple[float, float]) -> AsyncIterator[Scene]:
    """One scene, for a while."""
    registry = RateLimitRegistry()
    fast, slow = (Provider(rate, registry) for rate in rates)
    settings = RunnerSettings(max_concurrency=SLOTS, grace=0.0)
    try:
        async with ExperimentRunner(fresh(), registry=registry, settings=settings, recover=False) as runner:
            yield Scene(runner, fast, slow)
    finally:
        await fast.close()
        await slow.close()


async def sharing(fresh: Fresh, rows: int, rates: tuple[float, float] = (FAST, SLOW)) -> Sharing:
    """One round of each; `rows` are those of the fast experiment, `rates` the two providers' calls a second."""
    async with scene(fresh, rates) as one:
        alone = await _seconds(one, rows)
    async with scene(fresh, rates) as one:
        throttled = await one.runner.start(Experiment("slow", list(range(rows)), one.slow.asked_by("slow")))
        beside = await _seconds(one, rows)
        admitted_at = one.slow.truth().admitted_at
        one.runner.leave(throttled)
    async with scene(fresh, rates) as one:
        judged = await _seconds(one, rows, Evaluator(one.slow.asked_by("judge"), name="judge"))
    async with scene(fresh, rates) as one:
        pair = [Experiment(name, list(range(rows // 2)), one.fast.asked_by(name)) for name in ("a", "b")]
        await asyncio.gather(*map(one.runner.run, pair))
        order = [who.split()[0] for who in one.fast.truth().order]
    # The bucket was empty at first: before its second call the client was learning that.
    slow_rate = (len(admitted_at) - 2) / (admitted_at[-1] - admitted_at[1])
    return Sharing(alone, beside, judged, slow_rate, _apart(order))


async def _seconds(one: Scene, rows: int, *judges: Evaluator) -> float:
    """Seconds until all rows of an experiment at the fast provider are answered, and durable."""
    events = one.runner.subscribe("fast")
    began = time.monotonic()
    number = await one.runner.start(Experiment("fast", list(range(rows)), one.fast.asked_by("fast"), list(judges)))
    answered = 0
    async for event in events:
        answered += isinstance(event, RunResult)
        if answered == rows:
            break
    seconds = time.monotonic() - began
    one.runner.leave(number)
    await one.runner.wait(number)
    return seconds


def _apart(order: list[str]) -> int:
    # The first ones were learning what the key is, and at the end one of the two is alone.
    both = order[2 * SLOTS : -2 * SLOTS]
    parts = (both[begin : begin + 100] for begin in range(len(both) - 99))
    return max(abs(part.count("a") - part.count("b")) for part in parts)
