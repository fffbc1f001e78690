"""The mark below which a run is wholly done, written now and then: a resume begins there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidegate.runner.patience import patiently

if TYPE_CHECKING:
    from tidegate.runner.running import Running

logger = logging.getLogger("tidegate")

EVERY = 1000
"""Durable results after which it is written."""


class Water:
    """The water marks of one run, as far as they are written. A mark that could not be written costs only time."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._written = (running.claim.low_water, running.claim.task_water)
        self._settled = 0
        self._task: asyncio.Task[None] | None = None

    def rose(self) -> None:
        """One more result is durable."""
        self._settled += 1
        if self._settled % EVERY == 0 and (self._task is None or self._task.done()):
            self._task = self._running.floor.loop.create_task(self.write(), context=self._running.context.copy())

    async def end(self) -> None:
        """Writes the last of it."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()

    async def write(self) -> None:
        """Writes the marks, where they have risen."""
        running = self._running
        low, tasks = running.books.water()
        if (low, tasks) <= self._written:
            return
        try:
            await patiently(lambda: running.floor.store.advance(running.claim, low, tasks), "the low water")
        except Exception:
            logger.exception("experiment %s: how far it is could not be written", running.experiment.name)
        else:
            self._written = low, tasks
