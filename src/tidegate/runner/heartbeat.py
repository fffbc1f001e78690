"""Heartbeat that renews this replica's claims, and the scan for orphans of dead replicas.

Theory of operation. Both tasks run until the runner stops them, and retry while the database is unavailable. Claims
become stale by the database's clock. The fencing epoch of each claim ensures that no replica writes under a claim that
another one has taken.
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
"""Maximum orphans that one scan claims. Raising it takes more at once from replicas that are free. Chosen: the rest are
left to other replicas and to the next scan."""


MOST_LOOKS_BETWEEN = 10
"""Maximum scans between two attempts to load an orphan whose code is missing. Raising it saves work and finds new code
later. Chosen: the interval doubles from one scan to this."""


class DeferredOrphan(NamedTuple):
    """Orphan whose code is missing here; scan number `again` retries it."""

    again: int
    tries: int
    reason: str


class Heartbeat:
    """Heartbeat and orphan scan of one replica.

    `recover` claims one orphan and continues it. `draw` returns a uniform number in [0, 1).
    """

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
        """Start both tasks; the first orphan scan runs at once."""
        self._beat_again()
        if self._recover is not None:
            self._look_again()

    async def stop_looking(self) -> None:
        """Stop the orphan scan; keep the claims."""
        looking, self._looking = self._looking, None
        if looking is not None:
            await looking.stop(self._settings.cancel_grace)

    async def stop(self) -> None:
        """Stop the orphan scan and the heartbeat."""
        await self.stop_looking()
        if self._beating is not None:
            await self._beating.stop(self._settings.cancel_grace)

    def _beat_again(self, error: BaseException | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._beating = BackgroundTask(loop, self._beat_on(), "heartbeat", self._beat_again, "it starts again")

    def _look_again(self, error: BaseException | None = None) -> None:
        loop = asyncio.get_running_loop()
        scan = self._look_on(error is not None)
        self._looking = BackgroundTask(loop, scan, "orphan scan", self._look_again, "it starts again")

    async def beat(self) -> None:
        """Renew the claims once; stop each run whose claim the database no longer assigns to this replica."""
        held = {each.id: each for each in self._running.values() if each.phase is not RunPhase.ENDED}
        if not held:
            return
        await self._lost_file.look(held.values())
        claims = {number: running.claim.epoch for number, running in held.items()}
        kept = await self._store.renew(self._replica, claims)
        for number in claims.keys() - kept:
            # A run that is no longer live may have released its claim already.
            if held[number].live:
                await self._ended_elsewhere(held[number])

    async def _ended_elsewhere(self, running: ExperimentRun) -> None:
        row = await self._store.find(running.id)
        if row is not None and row.status is Status.STOPPED and row.epoch == running.claim.epoch:
            logger.warning("experiment %s stops: a user stopped it; jobs in flight may finish", row.name)
            running.stopped_elsewhere()
        else:
            logger.warning(
                "experiment %s: claim lost: the database no longer assigns it to this replica; "
                "the run stops and writes nothing more",
                running.experiment.name,
            )
            running.lost()

    async def look(self) -> None:
        """Run one orphan scan."""
        if self._recover is None:
            return
        self._looks += 1
        orphans = await self._store.orphans(self._settings.stale_after, MOST_ORPHANS)
        self._left = {number: left for number, left in self._left.items() if number in orphans}
        # Orphans that could not be loaded before go last, because they may delay the others.
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
                logger.warning("experiment %s not taken up: %s; the next scan tries again", number, error)
            except Exception as error:
                # A failure must not block the next orphans.
                reason = type(error).__name__
                logger.exception("experiment %s not taken up: %s was raised; the next scan tries again", number, reason)

    def _leave(self, number: int, error: CannotLoad, before: DeferredOrphan | None) -> None:
        """Defer an orphan to replicas that have its code; this replica retries at growing intervals."""
        if before is None or before.reason != str(error):
            text = "experiment %s not taken up: %s: %s; it is left to replicas that have its code, and tried again here"
            logger.warning(text, error.experiment, error.source, error.reason)
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
                wait = self._settings.heartbeat * (0.1 + 0.1 * self._draw())
                logger.warning("heartbeat failed: %s; retrying in %.1f s", error, wait)
                due = loop.time() + wait
            except Exception as error:
                wait, reason = self._settings.heartbeat, type(error).__name__
                logger.exception("heartbeat failed: %s was raised; retrying in %g s", reason, wait)
                due = loop.time() + wait

    async def _look_on(self, later: bool) -> None:
        every = self._settings.orphan_scan
        while True:
            if later:
                await asyncio.sleep(every * (1.0 + 0.1 * self._draw()))
            later = True
            try:
                await self.look()
            except StoreError as error:
                logger.warning("orphan scan failed: %s; retrying in about %g s", error, every)
            except Exception as error:
                reason = type(error).__name__
                logger.exception("orphan scan failed: %s was raised; retrying in about %g s", reason, every)
