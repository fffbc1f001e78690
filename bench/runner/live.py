"""What a dispatch costs with ten and with a thousand experiments live: all of them have work all the time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from bench.common import MICRO
from bench.runner.places import Fresh
from bench.runner.speed import row
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.engine.supervisor import Dispatcher


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds: of the dispatcher for a dispatch, and of the whole process for a result."""

    dispatch: float
    result: float


class Watch:
    """Counts dispatches, the CPU time that the dispatcher takes for them, and the process's meanwhile."""

    def __init__(self, until: int) -> None:
        self.on = False
        self._until = until
        self._dispatches = 0
        self._looking = self._process = 0.0

    def over(self, dispatcher: Dispatcher) -> None:
        """Watches it from now on."""
        look: Any = dispatcher._check

        def watched() -> None:
            began = time.thread_time()
            look()
            if self.on:
                self._looking += time.thread_time() - began

        dispatcher._check = watched  # type: ignore[method-assign]
        self.on = True
        self._process = time.process_time()

    def dispatched(self) -> None:
        """One more, until there were as many as are counted."""
        if self.on:
            self._dispatches += 1
            if self._dispatches == self._until:
                self.on = False
                self._process = time.process_time() - self._process

    def cost(self) -> Cost:
        """What they came to."""
        return Cost(MICRO * self._looking / self._dispatches, MICRO * self._process / self._dispatches)


async def cost(fresh: Fresh, live: int, items: int) -> Cost:
    """Runs so many experiments with `items` between them, held until all are fed; half of these count.

    Turns alternate, so that every experiment has the other half left when the counting ends.
    """
    go, watch = asyncio.Event(), Watch(items // 2)

    async def answer(row: dict[str, Any]) -> str:
        if not go.is_set():
            await go.wait()
        watch.dispatched()
        return str(row["id"])

    async with ExperimentRunner(fresh(), registry=RateLimitRegistry(), recover=False) as runner:
        names = [f"live {number}" for number in range(live)]
        rows = [row(number) for number in range(items // live)]
        for name in names:
            await runner.start(Experiment(name, rows, answer))
        while not all(_fed(runner, name) for name in names):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.05)
        watch.over(runner._dispatcher)
        go.set()
        for name in names:
            await runner.wait(name)
    return watch.cost()


def _fed(runner: ExperimentRunner, name: str) -> bool:
    """Whether an experiment's dataset is stored, and it has work in memory."""
    seen = runner.progress(name)
    return seen is not None and seen.all_rows and seen.stages[0].ready > 0
