"""State that all experiments of one runner share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments.engine.events import SubscriberHub
from tidegate.experiments.engine.fair_queue import FairQueue
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.experiments.engine.writer import ResultWriter
from tidegate.experiments.storage import Store
from tidegate.pool.function_limit import FunctionLimit
from tidegate.pool.key_gates import KeyGates


@dataclass(slots=True)
class RunnerContext:
    """Shared parts of one runner.

    `wake` makes the dispatcher look for work again soon. `functions` counts those in flight, and says whether more
    may start. `draw` returns a uniform number in [0, 1). Instants are seconds of `loop.time()`.
    """

    store: Store
    registry: RateLimitRegistry
    settings: RunnerSettings
    loop: asyncio.AbstractEventLoop
    fair_queue: FairQueue
    gates: KeyGates
    writer: ResultWriter
    hub: SubscriberHub
    draw: Callable[[], float]
    wake: Callable[[], None]
    functions: FunctionLimit

    @property
    def slots(self) -> int:
        """Return the number of free slots: functions that could start now."""
        return self.functions.free
