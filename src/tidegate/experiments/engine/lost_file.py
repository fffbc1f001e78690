"""Loss of a runner's SQLite file (deleted, moved or replaced): runs end with ERROR, and the contents are saved.

No answer is lost while the process lives: the open file accepts results until the last run has ended. The copy is made
when the loss is noticed. It is updated whenever a run has written its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from tidegate.errors import DatabaseFileLost
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunPhase
from tidegate.experiments.storage import Status, Store

logger = logging.getLogger("tidegate")


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
        """End every run if the file is lost."""
        if self.error is not None:
            return
        lost = await self._store.lost()
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
        if self.error is None and await self._store.lost() is not None:
            await self.save()
        if self.error is None:
            return False
        if not run.fenced_off:
            run.final = Status.ERROR
            self._set_reason(run)
        return True

    async def save(self) -> None:
        """Save the current contents of the file."""
        async with self._saving:
            before, self.error = self.error, await self._store.save_lost()
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
