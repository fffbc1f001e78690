"""The state that all experiments of one runner share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.admission.registry import RateLimitRegistry
from tidegate.runner.events import Hub
from tidegate.runner.fair_queue import Roster
from tidegate.runner.key_gates import Gates
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.writer import Writer
from tidegate.storage import Store


@dataclass(slots=True)
class Floor:
    """The shared parts. `poke` makes the dispatcher look again soon; `slots` are those that are free.

    `draw` is uniform in [0, 1); instants are those of `loop.time()`, in seconds.
    """

    store: Store
    registry: RateLimitRegistry
    settings: RunnerSettings
    loop: asyncio.AbstractEventLoop
    roster: Roster
    gates: Gates
    writer: Writer
    hub: Hub
    draw: Callable[[], float]
    poke: Callable[[], None]
    slots: int
