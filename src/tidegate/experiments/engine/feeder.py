"""Feeding of a running experiment with pages from the store, and the import of its dataset.

A page is read when a stage has few items and the store may have more. The dataset is imported while its first rows are
already answered.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, TypeVar

from tidegate.errors import CannotRead, StoreError
from tidegate.experiments.engine.background import retry_while_unavailable
from tidegate.experiments.engine.dataset import batches
from tidegate.experiments.engine.experiment import Dataset
from tidegate.experiments.engine.item import TASK, Item, Place
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunPhase
from tidegate.experiments.storage import PendingEval, PendingTask
from tidegate.experiments.storage.paging import PageSizer

logger = logging.getLogger("tidegate")

SIZE = 1000
"""Rows of a batch. Raising it needs fewer transactions, each of which is longer and holds more. Chosen: one of this
size takes some tens of milliseconds."""


Pending = TypeVar("Pending", PendingTask, PendingEval)


async def ingest(run: ExperimentRun, feeder: Feeder, dataset: Dataset, dataset_id: int) -> None:
    """Store every row and notify the feeder; rows that an earlier import stored are skipped.

    A dataset that cannot be read to its end fails the run; its stored rows stay. With a limit of the run, the import
    ends at the first row beyond it, and a later run continues it.
    """
    store, limit = run.shared.store, run.limit
    what = f"experiment {run.experiment.name}: import of its dataset"
    count = 0
    try:
        async for batch in batches(dataset, SIZE if limit is None else min(SIZE, limit + 1)):
            if not run.live:
                return
            rows = batch if limit is None else batch[: limit - count]
            if rows:
                await retry_while_unavailable(partial(store.datasets.add_rows, dataset_id, rows), what)
                count += len(rows)
                run.tally.rows += len(rows)
                feeder.on_rows_stored()
            if len(rows) < len(batch):
                run.limited = run.tally.all_rows = True
                feeder.on_rows_stored(complete=True)
                return
        if not run.live:
            # A cancelled source may end as if it were complete.
            return
        await retry_while_unavailable(partial(store.datasets.complete, dataset_id, count), what)
        run.tally.all_rows = True
        feeder.on_rows_stored(complete=True)
    except Exception as error:
        if not isinstance(error, CannotRead | StoreError):
            logger.exception("%s failed: %s was raised; the run ends with ERROR", what, type(error).__name__)
        run.fail(error)


class Feeder:
    """Feeder of one run. `complete` means that the dataset no longer grows."""

    def __init__(self, run: ExperimentRun, *, complete: bool) -> None:
        self._run = run
        self._store = run.shared.store
        self._complete = complete
        self._stage_read = False
        self._cursor: tuple[int, int] | None = None
        self._since = run.began_at
        self._sizers = [PageSizer() for _ in run.stages]

    def on_rows_stored(self, complete: bool = False) -> None:
        """Record that the store has more rows, or all of them."""
        self._complete = self._complete or complete
        self._stage_read = False
        self._since = self._run.shared.loop.time()
        self._run.page_wanted.set()

    async def feed(self) -> None:
        """Feed the run until it is no longer live; an error ends the run."""
        run = self._run
        try:
            while run.phase is RunPhase.LIVE:
                await run.page_wanted.wait()
                run.page_wanted.clear()
                await self._load_tasks()
                for stage in range(1, len(run.stages)):
                    await self._load_evals(stage)
        except Exception as error:
            if not isinstance(error, StoreError):
                logger.exception(
                    "experiment %s: read of its items failed: %s was raised; the run ends with ERROR",
                    run.experiment.name,
                    type(error).__name__,
                )
            run.fail(error)

    async def _load_tasks(self) -> None:
        run, tracker = self._run, self._run.tracker
        if (
            tracker.tasks_exhausted
            or self._stage_read
            or run.phase is not RunPhase.LIVE
            or not run.work_queue.runs_low(TASK)
        ):
            return
        if not run.shared.writer.room:
            # Invalid rows become results at once, so the writer needs room. When it has room again, every run requests
            # work.
            return
        complete = self._complete
        limit = self._sizers[TASK].limit(max(1, run.work_queue.room(TASK)))
        self._stage_read = True
        page = await retry_while_unavailable(
            partial(self._store.pending.tasks, run.id, after=self._cursor, limit=limit, retry_failed=run.retry_failed),
            f"experiment {run.experiment.name}: read of its rows",
        )
        if not run.live:
            # These rows are dropped: the watermark stays below them.
            return
        self._sizers[TASK].saw([each.size for each in page])
        tasks = self._below_limit(page)
        at_limit = len(tasks) < len(page)
        at_end = at_limit or (len(page) < limit and not page.more)
        if tasks:
            self._cursor = tasks[-1].cursor
            last = tasks[-1].ordinal
            tracker.reached(last + (tasks[-1].repetition >= run.experiment.repetitions))
        if not at_end:
            self._stage_read = False
        tracker.tasks_exhausted = at_end and (complete or at_limit)
        self._take(tasks)
        if run.work_queue.runs_low(TASK) and not self._stage_read:
            # Invalid rows do not fill the queue.
            run.page_wanted.set()

    def _below_limit(self, page: list[Pending]) -> list[Pending]:
        """Return the items of a page that the run's limit lets it try."""
        limit = self._run.limit
        if limit is None or not page or page[-1].ordinal < limit:
            return page
        self._run.limited = True
        return [each for each in page if each.ordinal < limit]

    def _take(self, page: list[PendingTask]) -> None:
        run = self._run
        items = []
        for task in page:
            item = Item(TASK, Place(task.ordinal, task.repetition), task.row, size=task.size)
            if task.invalid is not None:
                run.add_invalid(item, _reason(task))
            else:
                items.append(item)
        run.add_new(items, self._since)
        run.check_progress()

    async def _load_evals(self, index: int) -> None:
        run, tracker = self._run, self._run.tracker
        if (
            not tracker.backlogs[index - 1].may_have_more
            or not run.work_queue.runs_low(index)
            or run.phase is not RunPhase.LIVE
        ):
            return
        stage = run.stages[index]
        limit = self._sizers[index].limit(max(1, run.work_queue.room(index)))
        after, retry_failed = tracker.scan(index)
        page = await retry_while_unavailable(
            partial(
                self._store.pending.evals,
                run.id,
                {stage.name: stage.outputs},
                after=(*after, stage.name) if after is not None else None,
                limit=limit,
                retry_failed=retry_failed,
            ),
            f"experiment {run.experiment.name}: read of its evaluations",
        )
        if not run.live:
            return
        self._sizers[index].saw([each.size for each in page])
        evals = self._below_limit(page)
        at_end = len(evals) < len(page) or (len(page) < limit and not page.more)
        found: dict[Place, Any] = {Place(each.ordinal, each.repetition): each for each in evals}
        new = tracker.scanned(index, list(found), at_end=at_end)
        items = [Item(index, place, found[place].row, found[place].output, found[place].size) for place in new]
        run.add_new(items, run.rejected_at[index])
        if run.work_queue.runs_low(index) and tracker.backlogs[index - 1].may_have_more and evals:
            run.page_wanted.set()
        run.check_progress()


def _reason(task: PendingTask) -> str:
    where = f"line {task.line}: " if task.line is not None else ""
    return f"{where}{task.invalid}"
