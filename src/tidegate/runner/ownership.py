"""Keeps what this replica has claimed, and finds what dead ones have left: two tasks, and the database's clock.

Neither stops for anything but its own end: a database that is away is waited for, and the fencing epoch of the claims
sees to it that nothing is written under a claim that somebody else has taken meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidegate.errors import StoreError
from tidegate.runner.running import Phase, Running
from tidegate.runner.settings import RunnerSettings
from tidegate.storage import Store

logger = logging.getLogger("tidegate")

MOST_ORPHANS = 100
"""Orphans that one pass takes up: the others are there for other replicas, and for the next pass."""


class Ownership:
    """The heartbeat and the orphan pass of one replica. `recover` takes up one orphan; `draw` is uniform in [0, 1)."""

    def __init__(
        self,
        store: Store,
        replica: str,
        settings: RunnerSettings,
        running: Mapping[int, Running],
        recover: Callable[[int], Awaitable[None]] | None,
        draw: Callable[[], float],
    ) -> None:
        self._store = store
        self._replica = replica
        self._settings = settings
        self._running = running
        self._recover = recover
        self._draw = draw
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins; the first orphan pass is made at once."""
        loop = asyncio.get_running_loop()
        self._beating = loop.create_task(self._beat_on())
        if self._recover is not None:
            self._looking = loop.create_task(self._look_on())

    async def stop_looking(self) -> None:
        """Takes up no more orphans; what is claimed is kept."""
        await _ended(self._looking)

    async def stop(self) -> None:
        """Ends the heartbeat too."""
        await self.stop_looking()
        await _ended(self._beating)

    async def beat(self) -> None:
        """One heartbeat: claims that the database no longer knows as this replica's stop here."""
        held = {each.id: each for each in self._running.values() if each.phase is not Phase.ENDED}
        if not held:
            return
        claims = {number: running.claim.epoch for number, running in held.items()}
        kept = await self._store.renew(self._replica, claims)
        for number in claims.keys() - kept:
            if held[number].live:
                # One that has come to its end meanwhile has given its claim back.
                logger.warning("experiment %s: its claim was lost", held[number].experiment.name)
                held[number].lost()

    async def look(self) -> None:
        """One orphan pass."""
        if self._recover is None:
            return
        for number in await self._store.orphans(self._settings.stale_after, MOST_ORPHANS):
            if number not in self._running:
                await self._recover(number)

    async def _beat_on(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._settings.heartbeat
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            try:
                await self.beat()
                due = loop.time() + self._settings.heartbeat
            except StoreError as error:
                logger.warning("a heartbeat failed and is repeated: %s", error)
                due = loop.time() + self._settings.heartbeat * (0.1 + 0.1 * self._draw())
            except Exception:
                logger.exception("a heartbeat failed and is repeated")
                due = loop.time() + self._settings.heartbeat

    async def _look_on(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                logger.warning("a look for orphans failed and is repeated: %s", error)
            except Exception:
                logger.exception("a look for orphans failed and is repeated")
            await asyncio.sleep(self._settings.orphan_scan * (1.0 + 0.1 * self._draw()))


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
