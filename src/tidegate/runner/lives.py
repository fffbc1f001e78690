"""The lives of the runs of one runner: each is one task, from its claim to what is written of its end."""

from __future__ import annotations

import asyncio
import logging

from tidegate.errors import StoreError
from tidegate.runner.dispatch import Dispatcher
from tidegate.runner.experiment import Experiment
from tidegate.runner.feeding import Feeder
from tidegate.runner.floor import Floor
from tidegate.runner.ingest import ingest
from tidegate.runner.lost_file import LostFile
from tidegate.runner.minding import Minded, within
from tidegate.runner.patience import patiently
from tidegate.runner.running import Phase, Running
from tidegate.runner.subscribers import StateChanged
from tidegate.storage import Claim, ExperimentRow, Status

logger = logging.getLogger("tidegate")


class Lives:
    """All of them; `running` has the runs that have not ended, by the numbers of their experiments."""

    def __init__(self, floor: Floor, dispatcher: Dispatcher, lost_file: LostFile) -> None:
        self.running = dispatcher.running
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._floor = floor
        self._dispatcher = dispatcher
        self._lost_file = lost_file

    def fit(self) -> None:
        """Raises `RuntimeError` where a run would only stand still: where what all runs share is broken."""
        broken = self._dispatcher.broken or self._floor.writer.broken
        if broken is not None:
            raise RuntimeError("this runner is broken: make another one") from broken

    def begin(self, experiment: Experiment, row: ExperimentRow, claim: Claim, *, again: bool) -> None:
        """Runs a claimed experiment; `row` is how it stood under that claim."""
        running = Running(self._floor, experiment, claim, again=again)
        self.running[row.id] = running
        self.tasks[row.id] = self._floor.loop.create_task(self._live(running, row))

    async def ended(self, number: int) -> None:
        """Waits for the end of a run that is here; at once where there is none."""
        life = self.tasks.get(number)
        if life is not None:
            # A shutdown may cancel it: that is no cancellation of whoever waits here.
            await asyncio.wait({life})

    async def let_end(self, number: int) -> None:
        """A run that is draining ends first: one experiment runs once."""
        running = self.running.get(number)
        if running is not None and running.phase is not Phase.LIVE:
            await self.ended(number)

    async def _live(self, running: Running, row: ExperimentRow) -> None:
        minded: list[Minded] = []
        status: Status | None = None
        try:
            try:
                await self._begin(running, row, minded)
            except Exception as error:
                logger.exception("experiment %s could not begin", row.name)
                running.fail(error)
            await running.drained
            status = await self._written_end(running)
        finally:
            try:
                await self._close(running, row, minded, status)
            finally:
                # Until now the next run of it waits: what is closed and whose streams end is this one's.
                self.running.pop(row.id, None)
                self.tasks.pop(row.id, None)

    async def _close(self, running: Running, row: ExperimentRow, minded: list[Minded], status: Status | None) -> None:
        running.phase = Phase.ENDED
        grace = self._floor.settings.cancel_grace
        for each in minded:
            await each.stop(grace)
        await within(grace, running.experiment.aclose(), f"experiment {row.name}: closing what it held")
        await self._told_end(running, status)

    async def _begin(self, running: Running, row: ExperimentRow, minded: list[Minded]) -> None:
        loop, name = self._floor.loop, row.name
        if running.claim.epoch > 1:
            await self._count(running, row)
        if not running.live:
            return
        running.begin()
        feeder = Feeder(running, complete=row.complete)
        minded.append(Minded(loop, feeder.feed(), f"experiment {name}: feeding it", running.fail))
        if not row.complete:
            reading = ingest(running, feeder, running.experiment.dataset, row.dataset_id)
            minded.append(Minded(loop, reading, f"experiment {name}: reading its dataset", running.fail))

    async def _count(self, running: Running, row: ExperimentRow) -> None:
        """Tell those who watch how far an earlier run came."""
        try:
            counts = await self._floor.store.counts(row.id)
        except StoreError:
            logger.warning("experiment %s: how far it is could not be read", row.name)
            return
        running.tally.begin(counts, running.stages, running.again)
        if row.complete:
            running.tally.rows, running.tally.all_rows = counts.rows, True

    async def _written_end(self, running: Running) -> Status | None:
        """Gives the claim back, where that is to be done; the status that it has then, None where that is not known."""
        await running.water.end()
        lost = await self._lost_file.at_end(running)
        try:
            return await self._released(running)
        finally:
            if lost:
                # With its end in it.
                await self._lost_file.save()

    async def _released(self, running: Running) -> Status | None:
        final = running.final
        if final is None:
            return None
        release = self._floor.store.release
        try:
            released = await patiently(lambda: release(running.claim, final, running.reason), "the end of a run")
        except Exception:
            logger.exception("experiment %s: its end could not be written", running.experiment.name)
            return None
        return final if released else None

    async def _told_end(self, running: Running, status: Status | None) -> None:
        if status is None:
            try:
                row = await self._floor.store.find(running.id)
                status = row.status if row is not None else None
            except Exception:
                logger.exception("experiment %s: how it stands could not be read", running.experiment.name)
        try:
            if status is not None:
                running.tell(StateChanged(status, running.reason))
        finally:
            self._floor.hub.end(running.id, running.experiment.name)
