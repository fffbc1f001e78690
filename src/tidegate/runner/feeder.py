"""Feeding of a running experiment with pages from the store, and the import of its dataset.

A page is read when a stage has few items and the store may have more. The dataset is imported while its first rows are
already answered.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from tidegate.errors import CannotRead, StoreError
from tidegate.runner.background import retry_while_unavailable
from tidegate.runner.dataset import batches
from tidegate.runner.experiment import Dataset
from tidegate.runner.item import TASK, Item, Place
from tidegate.runner.run import ExperimentRun
from tidegate.runner.run_state import RunPhase
from tidegate.storage import PendingTask
from tidegate.storage.paging import PageSizer

logger = logging.getLogger("tidegate")

SIZE = 1000
"""Rows of a batch. Raising it needs fewer transactions, each of which is longer and holds more. Chosen: one of this
size takes some tens of milliseconds."""


async def ingest(running: ExperimentRun, feeder: Feeder, dataset: Dataset, dataset_id: int) -> None:
    """Store every row and notify the feeder; rows that an earlier import stored are skipped.

    A dataset that cannot be read to its end fails the run; its stored rows stay.
    """
    store = running.shared.store
    what = f"experiment {running.experiment.name}: import of its dataset"
    count = 0
    try:
        async for rows in batches(dataset, SIZE):
            if not running.live:
                return
            await retry_while_unavailable(partial(store.add_rows, dataset_id, rows), what)
            count += len(rows)
            running.tally.rows += len(rows)
            feeder.rows_came()
        if not running.live:
            # A cancelled source may end as if it were complete.
            return
        await retry_while_unavailable(partial(store.complete_dataset, dataset_id, count), what)
        running.tally.all_rows = True
        feeder.rows_came(complete=True)
    except Exception as error:
        if not isinstance(error, CannotRead | StoreError):
            logger.exception("%s failed: %s was raised; the run ends with ERROR", what, type(error).__name__)
        running.fail(error)


class Feeder:
    """Feeder of one run. `complete` means that the dataset no longer grows."""

    def __init__(self, running: ExperimentRun, *, complete: bool) -> None:
        self._running = running
        self._store = running.shared.store
        self._complete = complete
        self._dry = False
        self._cursor: tuple[int, int] | None = None
        self._since = running.began_at
        self._sizers = [PageSizer() for _ in running.stages]

    def rows_came(self, complete: bool = False) -> None:
        """Record that the store has more rows, or all of them."""
        self._complete = self._complete or complete
        self._dry = False
        self._since = self._running.shared.loop.time()
        self._running.wanted.set()

    async def feed(self) -> None:
        """Feed the run until it is no longer live; an error ends the run."""
        running = self._running
        try:
            while running.phase is RunPhase.LIVE:
                await running.wanted.wait()
                running.wanted.clear()
                await self._page_of_tasks()
                for stage in range(1, len(running.stages)):
                    await self._page_of_evals(stage)
        except Exception as error:
            if not isinstance(error, StoreError):
                logger.exception(
                    "experiment %s: read of its items failed: %s was raised; the run ends with ERROR",
                    running.experiment.name,
                    type(error).__name__,
                )
            running.fail(error)

    async def _page_of_tasks(self) -> None:
        running, tracker = self._running, self._running.tracker
        if (
            tracker.tasks_exhausted
            or self._dry
            or running.phase is not RunPhase.LIVE
            or not running.work_queue.runs_low(TASK)
        ):
            return
        if not running.shared.writer.room:
            # Invalid rows become results at once, so the writer needs room. When it has room again, every run requests
            # work.
            return
        complete = self._complete
        limit = self._sizers[TASK].limit(max(1, running.work_queue.room(TASK)))
        self._dry = True
        page = await retry_while_unavailable(
            partial(self._store.pending_tasks, running.id, after=self._cursor, limit=limit, again=running.again),
            f"experiment {running.experiment.name}: read of its rows",
        )
        if not running.live:
            # These rows are dropped: the watermark stays below them.
            return
        self._sizers[TASK].saw([each.size for each in page])
        at_end = len(page) < limit and not page.more
        if page:
            self._cursor = page[-1].cursor
            last = page[-1].ordinal
            tracker.reached(last + (page[-1].repetition >= running.experiment.repetitions))
        if not at_end:
            self._dry = False
        tracker.tasks_exhausted = at_end and complete
        self._take(page)
        if running.work_queue.runs_low(TASK) and not self._dry:
            # Invalid rows do not fill the queue.
            running.wanted.set()

    def _take(self, page: list[PendingTask]) -> None:
        running = self._running
        items = []
        for task in page:
            item = Item(TASK, Place(task.ordinal, task.repetition), task.row, size=task.size)
            if task.invalid is not None:
                running.came_invalid(item, _reason(task))
            else:
                items.append(item)
        running.came(items, self._since)
        running.look_around()

    async def _page_of_evals(self, index: int) -> None:
        running, tracker = self._running, self._running.tracker
        if (
            not tracker.backlogs[index - 1].owing
            or not running.work_queue.runs_low(index)
            or running.phase is not RunPhase.LIVE
        ):
            return
        stage = running.stages[index]
        limit = self._sizers[index].limit(max(1, running.work_queue.room(index)))
        after, again = tracker.scan(index)
        page = await retry_while_unavailable(
            partial(
                self._store.pending_evals,
                running.id,
                {stage.name: stage.outputs},
                after=(*after, stage.name) if after is not None else None,
                limit=limit,
                again=again,
            ),
            f"experiment {running.experiment.name}: read of its evaluations",
        )
        if not running.live:
            return
        self._sizers[index].saw([each.size for each in page])
        found: dict[Place, Any] = {Place(each.ordinal, each.repetition): each for each in page}
        new = tracker.scanned(index, list(found), at_end=len(page) < limit and not page.more)
        items = [Item(index, place, found[place].row, found[place].output, found[place].size) for place in new]
        running.came(items, running.turned_away_at[index])
        if running.work_queue.runs_low(index) and tracker.backlogs[index - 1].owing and page:
            running.wanted.set()
        running.look_around()


def _reason(task: PendingTask) -> str:
    where = f"line {task.line}: " if task.line is not None else ""
    return f"{where}{task.invalid}"
