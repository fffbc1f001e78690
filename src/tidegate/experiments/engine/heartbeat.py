"""Heartbeat that renews this replica's claims, and the scan for orphans of dead replicas.

Theory of operation. Both tasks run until the runner stops them, and retry while the database is unavailable. Claims
become stale by the database's clock. The fencing epoch of each claim ensures that no replica writes under a claim that
another one has taken.

A lost SQLite file (deleted, moved or replaced) ends the runs with ERROR, and its contents are saved. No answer is lost
while the process lives: the open file accepts results until the last run has ended. The copy is made when the loss is
noticed. It is updated whenever a run has written its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import CannotLoad, DatabaseFileLost, StoreError
from tidegate.experiments.engine.background import BackgroundTask, repeated
from tidegate.experiments.engine.replica import HEARTBEAT_SECONDS, STALE_SECONDS
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunPhase
from tidegate.experiments.storage import Status, Store
from tidegate.pool.execution import CANCEL_GRACE_SECONDS

logger = logging.getLogger("tidegate")

ORPHAN_SCAN_SECONDS = 60.0
"""Seconds between two looks for orphans, up to a tenth more. Chosen: as long as a claim of a dead replica lasts
(Phoenix: 120)."""

MAX_ORPHANS_PER_SCAN = 100
"""Maximum orphans that one scan claims. Chosen: the rest are left to other replicas and to the next scan."""


@dataclass(eq=False)
class Heartbeat:
    """Heartbeat and orphan scan of one replica.

    `recover` claims one orphan and continues it. `join` runs chunks of an experiment of another replica. `draw`
    returns a uniform number in [0, 1).
    """

    _store: Store
    _replica: str
    _runs: Mapping[int, ExperimentRun]
    _recover: Callable[[int], Awaitable[None]] | None
    _draw: Callable[[], float]
    _lost_file: LostFile
    _join: Callable[[int], Awaitable[bool]] | None = None
    _joined: dict[int, int] = field(default_factory=dict)
    _deferred: dict[int, str] = field(default_factory=dict)
    _heartbeat_task: BackgroundTask | None = None
    _scan_task: BackgroundTask | None = None

    def start(self) -> None:
        """Start both tasks; the first orphan scan runs at once."""
        loop = asyncio.get_running_loop()
        self._heartbeat_task = BackgroundTask(loop, self._renew_forever, "heartbeat")
        if self._recover is not None:
            self._scan_task = BackgroundTask(loop, self._scan_forever, "orphan scan")

    async def stop_scans(self) -> None:
        """Stop the orphan scan; keep the claims."""
        if self._scan_task is not None:
            await self._scan_task.stop(CANCEL_GRACE_SECONDS)

    async def stop(self) -> None:
        await self.stop_scans()
        if self._heartbeat_task is not None:
            await self._heartbeat_task.stop(CANCEL_GRACE_SECONDS)

    async def renew_claims(self) -> None:
        """Renew the claims once, and write the statistics of each so far.

        Stop each run whose claim the database no longer assigns to this replica.
        """
        held = {each.id: each for each in self._runs.values() if each.phase is not RunPhase.ENDED}
        if not held:
            return
        await self._lost_file.check(held.values())
        await self._renew_chunks({number: run for number, run in held.items() if run.experiment.spread})
        claims = {number: run.claim.epoch for number, run in held.items() if not run.contributes}
        renewed = await self._store.claims.renew(self._replica, claims)
        for number in renewed:
            if held[number].live:
                held[number].put_stats()
        for number in claims.keys() - renewed:
            # A run that is no longer live may have released its claim already.
            if held[number].live:
                await self._ended_elsewhere(held[number])

    async def _renew_chunks(self, spread: Mapping[int, ExperimentRun]) -> None:
        """Renew the chunks of this replica; end each contribution to an experiment that no longer runs."""
        if not spread:
            return
        held = {number: list(run.held_chunks) for number, run in spread.items()}
        running = await self._store.chunks.renew(self._replica, held)
        for number, run in spread.items():
            if run.contributes and run.live and number not in running:
                logger.info("experiment %s left: it was stopped or has ended elsewhere", run.experiment.name)
                run.stopped_elsewhere()

    async def join_spread(self) -> None:
        """Join each experiment that has chunks to give, once for each claim of its owner."""
        if self._join is None or not self._store.spreads:
            return
        for number in await self._store.chunks.to_join(STALE_SECONDS):
            if number in self._runs:
                continue
            row = await self._store.experiments.find(number)
            if row is None or self._joined.get(number) == row.epoch:
                continue
            try:
                if await self._join(number):
                    self._joined[number] = row.epoch
            except CannotLoad as error:
                self._joined[number] = row.epoch
                logger.warning("experiment %s not joined: %s; other replicas run its rows", row.name, error)

    async def _ended_elsewhere(self, run: ExperimentRun) -> None:
        row = await self._store.experiments.find(run.id)
        if row is not None and row.status is Status.STOPPED and row.epoch == run.claim.epoch:
            logger.warning("experiment %s stops: a user stopped it; jobs in flight may finish", row.name)
            run.stopped_elsewhere()
        else:
            logger.warning(
                "experiment %s: claim lost: the database no longer assigns it to this replica; "
                "the run stops and writes nothing more",
                run.experiment.name,
            )
            run.on_claim_lost()

    async def scan_orphans(self) -> None:
        if self._recover is None:
            return
        orphans = await self._store.claims.orphans(STALE_SECONDS, MAX_ORPHANS_PER_SCAN)
        self._deferred = {number: reason for number, reason in self._deferred.items() if number in orphans}
        # Orphans that could not be loaded before go last, because they may delay the others.
        for number in sorted(orphans, key=self._deferred.__contains__):
            contribution = self._runs.get(number)
            if contribution is not None and contribution.contributes:
                # Its rows in flight are finished first; then this replica owns the experiment.
                logger.warning("experiment %s: its owner is dead; this replica takes it over", number)
                contribution.stopped_elsewhere()
            elif contribution is not None:
                continue
            try:
                await self._recover(number)
                self._deferred.pop(number, None)
            except CannotLoad as error:
                if self._deferred.get(number) != str(error):
                    text = (
                        "experiment %s not taken up: %s: %s; it is left to replicas that have its code, and tried here"
                    )
                    logger.warning(f"{text} again", error.experiment, error.source, error.reason)
                self._deferred[number] = str(error)
            except StoreError as error:
                logger.warning("experiment %s not taken up: %s; the next scan tries again", number, error)
            except Exception as error:
                # A failure must not block the next orphans.
                reason = type(error).__name__
                logger.exception("experiment %s not taken up: %s was raised; the next scan tries again", number, reason)
        await self.join_spread()

    async def _renew_forever(self) -> None:
        await repeated(
            self.renew_claims,
            "heartbeat",
            lambda: HEARTBEAT_SECONDS,
            lambda: HEARTBEAT_SECONDS * (0.1 + 0.1 * self._draw()),
        )

    async def _scan_forever(self) -> None:
        def every() -> float:
            return ORPHAN_SCAN_SECONDS * (1.0 + 0.1 * self._draw())

        await repeated(self.scan_orphans, "orphan scan", every, every)


class LostFile:
    """Loss of one store's file; `error` describes it, None while the file is in place."""

    def __init__(self, store: Store) -> None:
        self.error: DatabaseFileLost | None = None
        self._store = store
        self._saving = asyncio.Lock()

    @property
    def saved(self) -> Path | None:
        """Return the file that has a copy of everything; None if there is no loss or no copy."""
        return self.error.saved if self.error is not None else None

    async def check(self, runs: Iterable[ExperimentRun]) -> None:
        if self.error is not None:
            return
        lost = await self._store.database.lost()
        if lost is None:
            return
        ended = [each for each in runs if each.phase is not RunPhase.ENDED]
        for run in ended:
            run.drain(Status.ERROR, str(lost))
        await self.save()
        for run in ended:
            self._set_reason(run)

    async def at_end(self, run: ExperimentRun) -> bool:
        """Return whether the file is lost when a run ends; if so, set the run's status to ERROR with the reason."""
        if self.error is None and await self._store.database.lost() is not None:
            await self.save()
        if self.error is None:
            return False
        if not run.fenced_off:
            run.final = Status.ERROR
            self._set_reason(run)
        return True

    async def save(self) -> None:
        async with self._saving:
            before, self.error = self.error, await self._store.database.save_lost()
            if self.error.saved is None and before is not None and before.saved is not None:
                logger.error(
                    "copy %s not updated: %s; results since the last update are lost when this process ends",
                    before.saved,
                    self.error.failure,
                )
                self.error = before
            elif before is None or before.saved != self.error.saved:
                logger.error("%s", self.error)

    def _set_reason(self, run: ExperimentRun) -> None:
        if self.error is not None:
            run.reason = str(self.error)
