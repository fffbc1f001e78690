"""Keeps what this replica has claimed, and finds what dead ones have left: two tasks, and the database's clock.

Neither stops for anything but its own end: a database that is away is waited for, and the fencing epoch of the claims
sees to it that nothing is written under a claim that somebody else has taken meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from tidegate.errors import CannotLoad, StoreError
from tidegate.runner.background import BackgroundTask
from tidegate.runner.lost_file import LostFile
from tidegate.runner.run import ExperimentRun
from tidegate.runner.run_state import RunPhase
from tidegate.runner.settings import RunnerSettings
from tidegate.storage import Status, Store

logger = logging.getLogger("tidegate")

MOST_ORPHANS = 100
"""Orphans that one pass takes up: the others are there for other replicas, and for the next pass."""


MOST_LOOKS_BETWEEN = 10
"""Orphan passes between two tries to load what could not be loaded: more save work, fewer find new code sooner."""


class DeferredOrphan(NamedTuple):
    """An orphan whose code is not here: it is tried again with the orphan pass `again`."""

    again: int
    tries: int
    reason: str


class Heartbeat:
    """The heartbeat and the orphan pass of one replica. `recover` takes up one orphan; `draw` is uniform in [0, 1)."""

    def __init__(
        self,
        store: Store,
        replica: str,
        settings: RunnerSettings,
        running: Mapping[int, ExperimentRun],
        recover: Callable[[int], Awaitable[None]] | None,
        draw: Callable[[], float],
        lost_file: LostFile,
    ) -> None:
        self._store = store
        self._replica = replica
        self._settings = settings
        self._running = running
        self._recover = recover
        self._draw = draw
        self._lost_file = lost_file
        self._looks = 0
        self._left: dict[int, DeferredOrphan] = {}
        self._beating: BackgroundTask | None = None
        self._looking: BackgroundTask | None = None

    def start(self) -> None:
        """Begins; the first orphan pass is made at once."""
        self._beat_again()
        if self._recover is not None:
            self._look_again()

    async def stop_looking(self) -> None:
        """Takes up no more orphans; what is claimed is kept."""
        looking, self._looking = self._looking, None
        if looking is not None:
            await looking.stop(self._settings.cancel_grace)

    async def stop(self) -> None:
        """Ends the heartbeat too."""
        await self.stop_looking()
        if self._beating is not None:
            await self._beating.stop(self._settings.cancel_grace)

    def _beat_again(self, error: BaseException | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._beating = BackgroundTask(loop, self._beat_on(), "the heartbeat", self._beat_again)

    def _look_again(self, error: BaseException | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._looking = BackgroundTask(loop, self._look_on(error is not None), "the look for orphans", self._look_again)

    async def beat(self) -> None:
        """One heartbeat: claims that the database no longer knows as this replica's stop here."""
        held = {each.id: each for each in self._running.values() if each.phase is not RunPhase.ENDED}
        if not held:
            return
        await self._lost_file.look(held.values())
        claims = {number: running.claim.epoch for number, running in held.items()}
        kept = await self._store.renew(self._replica, claims)
        for number in claims.keys() - kept:
            # One that has come to its end meanwhile has given its claim back.
            if held[number].live:
                await self._ended_elsewhere(held[number])

    async def _ended_elsewhere(self, running: ExperimentRun) -> None:
        row = await self._store.find(running.id)
        if row is not None and row.status is Status.STOPPED and row.epoch == running.claim.epoch:
            logger.warning("experiment %s is stopped by a user: nothing new is started", row.name)
            running.stopped_elsewhere()
        else:
            logger.warning("experiment %s: its claim was lost", running.experiment.name)
            running.lost()

    async def look(self) -> None:
        """One orphan pass."""
        if self._recover is None:
            return
        self._looks += 1
        orphans = await self._store.orphans(self._settings.stale_after, MOST_ORPHANS)
        self._left = {number: left for number, left in self._left.items() if number in orphans}
        # What could not be loaded before goes last: it may hold the others up.
        for number in sorted(orphans, key=self._left.__contains__):
            left = self._left.get(number)
            if number in self._running or (left is not None and self._looks < left.again):
                continue
            try:
                await self._recover(number)
                self._left.pop(number, None)
            except CannotLoad as error:
                self._leave(number, error, left)
            except StoreError as error:
                logger.warning("experiment %s could not be taken up: %s", number, error)
            except Exception:
                # The next ones are not to wait behind it.
                logger.exception("experiment %s could not be taken up", number)

    def _leave(self, number: int, error: CannotLoad, before: DeferredOrphan | None) -> None:
        """Leave an orphan to a replica that has its code; this one looks again later and later."""
        if before is None or before.reason != str(error):
            logger.warning("experiment %s is left to replicas that have its code: %s", error.experiment, error)
        tries = 0 if before is None else before.tries
        again = self._looks + min(2**tries, MOST_LOOKS_BETWEEN)
        self._left[number] = DeferredOrphan(again, tries + 1, str(error))

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

    async def _look_on(self, later: bool) -> None:
        while True:
            if later:
                await asyncio.sleep(self._settings.orphan_scan * (1.0 + 0.1 * self._draw()))
            later = True
            try:
                await self.look()
            except StoreError as error:
                logger.warning("a look for orphans failed and is repeated: %s", error)
            except Exception:
                logger.exception("a look for orphans failed and is repeated")
