"""The state that all experiments of one runner share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.admission.registry import RateLimitRegistry
from tidegate.runner.events import SubscriberHub
from tidegate.runner.fair_queue import FairQueue
from tidegate.runner.key_gates import KeyGates
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.writer import ResultWriter
from tidegate.storage import Store


@dataclass(slots=True)
class RunnerContext:
    """The shared parts. `wake` makes the dispatcher look again soon; `slots` are those that are free.

    `draw` is uniform in [0, 1); instants are those of `loop.time()`, in seconds.
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
    slots: int
