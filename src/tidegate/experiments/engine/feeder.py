"""Feeding of a running experiment with pages from the store, and the import of its dataset.

A page is read when a stage has few items and the store may have more. The dataset is imported while its first rows are
already answered.

Several replicas may run one experiment at once: each of them claims chunks of rows. The owner adds chunks while rows
are stored, and contributors only claim them. A replica claims the next chunk when few of its items wait. A chunk is
done when every item of it has a durable result. Then its owner is free to judge the answers, whoever gave them: the
scan for evaluations begins again at that chunk. While other replicas hold the last chunks, a replica looks again every
`LOOK_SECONDS`, and takes the chunk of one that has died. Only held chunks are renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tidegate.core.token_totals import TokenTotals
from tidegate.errors import CannotRead, StoreError
from tidegate.experiments.engine.background import retry_while_unavailable
from tidegate.experiments.engine.budget import amounts, reached
from tidegate.experiments.engine.dataset import batches
from tidegate.experiments.engine.experiment import Dataset
from tidegate.experiments.engine.queues import TASK, Item, Place
from tidegate.experiments.engine.replica import STALE_SECONDS
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunPhase
from tidegate.experiments.storage import PendingEval, PendingTask, RowChunk, Status
from tidegate.experiments.storage.pending import PageSizer

logger = logging.getLogger("tidegate")

BATCH_ROWS = 1000
"""Rows of a batch. Chosen: one of this size takes some tens of milliseconds."""


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
        async for batch in batches(dataset, BATCH_ROWS if limit is None else min(BATCH_ROWS, limit + 1)):
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
            return
        self._sizers[TASK].saw([each.size for each in page])
        tasks = self._below_limit(page)
        at_limit = len(tasks) < len(page)
        at_end = at_limit or (len(page) < limit and not page.more)
        if tasks:
            self._cursor = tasks[-1].cursor
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
                run.results.add_invalid(item, _reason(task))
            else:
                items.append(item)
        run.results.add_new(items, self._since)
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
                stage.name,
                stage.outputs,
                after=after,
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
        run.results.add_new(items, run.rejected_at[index])
        if run.work_queue.runs_low(index) and tracker.backlogs[index - 1].may_have_more and evals:
            run.page_wanted.set()
        run.check_progress()


def _reason(task: PendingTask) -> str:
    where = f"line {task.line}: " if task.line is not None else ""
    return f"{where}{task.invalid}"


T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Seconds between two looks at the chunks of other replicas. Chosen: as `claims.FOLLOW_SECONDS`."""


@dataclass(slots=True, eq=False)
class HeldChunk:
    """Chunk that this replica holds. Rows below `settled` have no open item.

    `read` says that all its items are known. `cursor` is the (ordinal, repetition) of the last item that was read.
    """

    chunk: RowChunk
    cursor: tuple[int, int] = field(init=False)
    read: bool = False
    settled: int = field(init=False)

    def __post_init__(self) -> None:
        self.cursor = (self.chunk.first, 0)
        self.settled = self.chunk.first


class ChunkFeeder(Feeder):
    """Feeder of one run from the chunks that its replica claims. The owner's also adds chunks."""

    def __init__(self, run: ExperimentRun, *, complete: bool, rows: int) -> None:
        super().__init__(run, complete=complete)
        self._rows = rows
        self._added = 0
        self._all_added = run.contributes
        self._held: dict[int, HeldChunk] = {}
        run.held_chunks = self._held
        self._done_elsewhere: set[int] = set()
        self._look: asyncio.TimerHandle | None = None
        self._looked_at = -LOOK_SECONDS
        self._what = f"experiment {run.experiment.name}: claims of its chunks"

    async def _load_tasks(self) -> None:
        run = self._run
        if not run.contributes:
            await self._add_chunks()
        await self._finish_chunks()
        while run.live and run.shared.writer.room and self._wants_more():
            held = next((each for each in self._held.values() if not each.read), None)
            if held is None:
                chunk = await self._try(partial(self._store.chunks.claim, run.id, run.claim.replica, STALE_SECONDS))
                if isinstance(chunk, TokenTotals):
                    self._end_of_budget(chunk)
                if not isinstance(chunk, RowChunk):
                    break
                held = self._held[chunk.first] = HeldChunk(chunk)
            await self._read(held)
            await self._finish_chunks()
        await self._look_around()

    def _end_of_budget(self, spent: TokenTotals) -> None:
        """End the run of the owner; other replicas leave it then."""
        budget = self._run.kept_budget
        if budget is not None and not self._run.contributes:
            self._run.drain(Status.STOPPED, reached(budget, amounts(budget, spent)))

    def _wants_more(self) -> bool:
        """Return whether few items wait, so that no replica holds rows which another one could run now."""
        queue = self._run.work_queue
        return queue.runs_low(TASK) and queue.depth(TASK) <= len(self._run.in_flight) // 2

    async def _add_chunks(self) -> None:
        # Rows that are stored during the await below get their chunks with the next load.
        complete = self._complete
        rows = max(self._rows, self._run.tally.rows)
        limit = self._run.limit
        if limit is not None and rows >= limit:
            self._run.limited = self._run.limited or rows > limit
            rows = limit
        if rows > self._added:
            await self._try(partial(self._store.chunks.add, self._run.id, rows))
            self._added = rows
        self._all_added = complete

    async def _read(self, held: HeldChunk) -> None:
        run, chunk = self._run, held.chunk
        # Only the first claim of a chunk tries again what failed before: later ones would repeat this run's failures.
        again = run.retry_failed and chunk.epoch == 1
        limit = self._sizers[TASK].limit(max(1, run.work_queue.room(TASK)))
        page = await self._try(
            partial(
                self._store.pending.tasks,
                run.id,
                after=held.cursor,
                limit=limit,
                retry_failed=again,
                below=chunk.end,
            )
        )
        if not run.live:
            return
        self._sizers[TASK].saw([each.size for each in page])
        if page:
            held.cursor = page[-1].cursor
        held.read = len(page) < limit and not page.more
        self._take(page)

    async def _finish_chunks(self) -> None:
        run = self._run
        for first, held in list(self._held.items()):
            repetitions = run.experiment.repetitions
            while held.settled < held.chunk.end and not run.tracker.has_task(held.settled, repetitions):
                held.settled += 1
            if held.read and held.settled == held.chunk.end:
                if not await self._try(partial(self._store.chunks.finish, run.id, run.claim.replica, first)):
                    self._on_lost(first)
                self._held.pop(first, None)

    def _on_lost(self, first: int) -> None:
        """Handle the claim of a chunk by another replica: a contributor leaves, and may join again."""
        name = self._run.experiment.name
        logger.warning("experiment %s: chunk at row %d lost: another replica runs its rows", name, first)
        if self._run.contributes:
            self._run.on_claim_lost()

    async def _look_around(self) -> None:
        """Read the state of all chunks, at most every `LOOK_SECONDS`; detect the end of the tasks."""
        run, now = self._run, self._run.shared.loop.time()
        if not run.live or run.tracker.tasks_exhausted:
            return
        waiting = self._looked_at + LOOK_SECONDS - now
        if waiting > 0 and (self._held or self._look is not None):
            self._look_later(waiting)
            return
        self._looked_at = now
        # Rows that are stored after this read have chunks of their own.
        complete, added = self._complete and self._all_added, self._added
        chunks = await self._try(partial(self._store.chunks.of, run.id))
        await self._count_all(chunks)
        if run.phase is not RunPhase.LIVE:
            return
        for each in chunks:
            if each.done and each.claimed_by != run.claim.replica and each.first not in self._done_elsewhere:
                self._done_elsewhere.add(each.first)
                for backlog in run.tracker.backlogs:
                    backlog.defer(Place(each.first, 0))
        end = chunks[-1].end if chunks else 0
        all_added = end >= added == self._added if not run.contributes else bool(chunks)
        if complete and all_added and all(each.done for each in chunks) and not self._held:
            run.tracker.tasks_exhausted = True
            run.check_progress()
        else:
            self._look_later(LOOK_SECONDS)

    async def _count_all(self, chunks: list[RowChunk]) -> None:
        """Count the results of all replicas for the owner's progress, where there are others."""
        run = self._run
        final = all(each.done for each in chunks)
        alone = all(each.claimed_by in (None, run.claim.replica) for each in chunks)
        if run.contributes or alone:
            return
        try:
            counts = await self._store.reports.counts(run.id)
        except StoreError:
            return  # The next look counts again; the results are safe without it.
        # At the end nothing is tried again any more.
        run.tally.count_tasks(counts, run.retry_failed and not final)

    def _look_later(self, seconds: float) -> None:
        if self._look is None:
            self._look = self._run.shared.loop.call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self._run.page_wanted.set()

    async def _try(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_unavailable(work, self._what)
