"""Feeding of an experiment from a provider's Batch API: rows are put into batches, and answers come back with them.

Theory of operation. The plan reads pending rows and cuts them into batches of the provider's limits. A batch is stored
as an intent before the provider gets it. Then one task follows it: it submits the batch, looks until it has ended, and
queues its results as those of any other row. The batch is stored as fetched when all its results are durable. Rows that
lack an answer then go back into the plan.

After a crash, a follower goes on from the stored state (for an intent: `experiments.engine.batch.submission`). Results
that are durable already are no longer pending, so a second fetch of a batch skips them. Rows of a batch that is not
fetched are in no other batch. The plan and the end of a batch exclude each other (`_planning`), so no page mixes both
states.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tidegate.errors import ClaimLost
from tidegate.experiments.engine.background import redacted, retry_while_unavailable
from tidegate.experiments.engine.batch import BatchTask, ItemSet, custom_id
from tidegate.experiments.engine.batch.apis import BatchStatus, Phase, ProviderBatchApi
from tidegate.experiments.engine.batch.results import BatchResults
from tidegate.experiments.engine.batch.submission import GONE, POLL_SECONDS, BatchError, BatchSubmission
from tidegate.experiments.engine.feeder import Feeder
from tidegate.experiments.engine.queues import PAGE_ITEMS, TASK, Item, Place, copied
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.storage import BatchRecord, BatchState, LogLevel, PendingTask, Status

logger = logging.getLogger("tidegate")

T = TypeVar("T")


class Draft:
    """Items of the next batch of one group of requests."""

    def __init__(self) -> None:
        self.items = ItemSet()
        self.count = 0
        self.size = 0


class BatchFeeder(Feeder):
    """Feeder of one run whose tasks a Batch API answers; evaluations are fed as in any other run."""

    def __init__(self, run: ExperimentRun, api: ProviderBatchApi, task: BatchTask, *, complete: bool) -> None:
        super().__init__(run, complete=complete)
        self._api = api
        self._task = task
        self._name = run.experiment.name
        self._what = f"experiment {run.experiment.name}: its batches"
        parts = run, api, task, self._what, self._save, self._pending
        self._results, self._submission = BatchResults(*parts), BatchSubmission(*parts)
        self._most = self._limit = min(task.max_requests or api.max_requests, api.max_requests)
        self._moved = asyncio.Event()
        self._planning = asyncio.Lock()
        self._fetching = asyncio.Lock()
        self._open: dict[int, tuple[BatchRecord, ItemSet]] = {}
        self._drafts: dict[str, Draft] = {}
        self._returned: set[Place] = set()
        self._followers: set[asyncio.Task[None]] = set()
        self._errors: list[str] = []
        self._scanned = False
        self._full = False
        self._full_since: float | None = None

    def on_rows_stored(self, complete: bool = False) -> None:
        super().on_rows_stored(complete)
        self._scanned = False
        self._moved.set()

    async def _load_tasks(self) -> None:
        self._moved.set()

    async def run_batches(self) -> None:
        """Plan and follow batches until the run is no longer live; an error ends the run."""
        run = self._run
        try:
            for record in await self._try(partial(self._store.batches.of, run.id)):
                if record.state is not BatchState.FETCHED:
                    self._follow(record)
            while run.live:
                self._moved.clear()
                if not self._errors:
                    await self._plan()
                self._note_end()
                await self._moved.wait()
        except Exception as error:
            self._end_with(error)
        finally:
            followers = list(self._followers)
            for each in followers:
                each.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    def _end_with(self, error: Exception) -> None:
        run = self._run
        if isinstance(error, ClaimLost):
            run.on_claim_lost()
            return
        logger.exception("%s failed: %s was raised; the run ends with ERROR", self._what, type(error).__name__)
        run.fail(error)

    async def _try(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_unavailable(work, self._what)

    # The plan: pending rows become batches.

    async def _plan(self) -> None:
        run = self._run
        while run.live and run.shared.writer.room and not self._full and not (self._is_scarce and self._open):
            async with self._planning:
                if self._returned:
                    places = sorted(self._returned)[: self._most if self._is_scarce else None]
                    self._returned.difference_update(places)
                    async for task in self._pending(ItemSet((p.repetition, p.ordinal, p.ordinal + 1) for p in places)):
                        await self._add(task)
                    if self._is_scarce:
                        await self._seal_all()
                elif self._scanned:
                    break
                else:
                    await self._scan()
        if run.live and self._scanned and self._at_end and not self._full:
            await self._seal_all()

    @property
    def _is_scarce(self) -> bool:
        """Return True after the provider's queue was too small for a batch: then one follows the other."""
        return self._most < self._limit

    async def _seal_all(self) -> None:
        drafts, self._drafts = list(self._drafts.values()), {}
        for draft in drafts:
            if draft.count:
                await self._seal(draft)

    @property
    def _at_end(self) -> bool:
        return self._complete or self._run.limited

    async def _scan(self) -> None:
        """Read the next page of pending rows."""
        run, limit = self._run, PAGE_ITEMS
        self._scanned = True
        page = await self._try(
            partial(self._store.pending.tasks, run.id, after=self._cursor, limit=limit, retry_failed=run.retry_failed)
        )
        below = self._below_limit(page)
        if len(below) == len(page) and (len(page) == limit or page.more):
            self._scanned = False
        for task in below:
            place = Place(task.ordinal, task.repetition)
            if any(place in items for _, items in self._open.values()):
                continue
            if self._is_scarce:
                self._returned.add(place)
            else:
                await self._add(task)
        if page:
            self._cursor = page[-1].cursor

    async def _pending(self, items: ItemSet) -> AsyncIterator[PendingTask]:
        """Yield the items of a set that have no good answer yet; failed ones are in a batch only to be tried again."""
        if not len(items):
            return
        after, end, limit = (items.first, 0), items.end, PAGE_ITEMS
        while True:
            page = await self._try(
                partial(self._store.pending.tasks, self._run.id, after=after, limit=limit, retry_failed=True, below=end)
            )
            for task in page:
                if Place(task.ordinal, task.repetition) in items:
                    yield task
            if len(page) < limit and not page.more:
                return
            after = page[-1].cursor

    async def _add(self, task: PendingTask) -> None:
        """Put a row into the draft of its group; a row without a request fails."""
        if task.invalid is not None:
            self._take([task])
            return
        place = Place(task.ordinal, task.repetition)
        item = Item(TASK, place, task.row, size=task.size)
        try:
            body = self._task.body(copied(task.row))
            size = len(self._api.line(custom_id(self._name, "", place), body))
        except Exception as error:
            self._run.tracker.open(item)
            self._run.results.fail(item, error)
            return
        if size > self._api.max_bytes:
            self._run.tracker.open(item)
            self._run.results.refuse(
                item, "never_fits", f"its request has {size} bytes; a batch has {self._api.max_bytes}"
            )
            return
        group = self._api.group(body)
        draft = self._drafts.setdefault(group, Draft())
        if draft.count >= self._most or draft.size + size > self._api.max_bytes:
            await self._seal(draft)
            draft = self._drafts[group] = Draft()
        draft.items.add(place)
        draft.count += 1
        draft.size += size

    async def _seal(self, draft: Draft) -> None:
        record = BatchRecord(
            0, self._api.provider, BatchState.INTENT, secrets.token_hex(16), draft.items.ranges, draft.count
        )
        self._follow(await self._save(record))

    async def _save(self, record: BatchRecord) -> BatchRecord:
        saved = await self._try(partial(self._store.batches.save, self._run.claim, record))
        if saved.number in self._open:
            self._open[saved.number] = saved, self._open[saved.number][1]
        return saved

    def _note_end(self) -> None:
        run = self._run
        if self._followers or not run.live:
            return
        if self._errors:
            run.drain(Status.ERROR, "; ".join(dict.fromkeys(self._errors)))
        elif (
            self._scanned
            and (self._complete or self._run.limited)
            and not (self._open or self._drafts or self._returned)
        ):
            run.tracker.tasks_exhausted = True
            run.check_progress()

    # One batch, from its intent to its results.

    def _follow(self, record: BatchRecord) -> None:
        self._open[record.number] = record, ItemSet(record.items)
        self._run.batched += record.count
        task = self._run.shared.loop.create_task(self._followed(record))
        self._followers.add(task)
        task.add_done_callback(self._on_followed)

    def _on_followed(self, task: asyncio.Task[None]) -> None:
        self._followers.discard(task)
        self._moved.set()

    async def _followed(self, record: BatchRecord) -> None:
        run, number = self._run, record.number
        try:
            if record.provider != self._api.provider:
                raise BatchError(number, f"it is at {record.provider}, and the client asks {self._api.provider}")
            if record.state is BatchState.INTENT:
                submitted = await self._submission.submit(record)
                record = submitted or await self._finish(record, [], "no row of it is open")
            try:
                if record.state is BatchState.SUBMITTED:
                    record = await self._results.watch(record)
                if record.state is BatchState.ENDED:
                    record = await self._fetch(record)
            except BatchError as error:
                # What was read since, as by another account's run, says that it is there.
                if not error.gone or GONE not in (self._open[number][0].detail or ""):
                    raise
                # Each of its rows is paid for again.
                run.log(LogLevel.WARN, type="batch_gone", batch=number, error=str(error))
                record = await self._finish(self._open[number][0], list(ItemSet(record.items)), GONE)
            logger.info("%s: batch %d %s", self._what, number, record.state)
        except BatchError as error:
            await self._report(number, error)
        except Exception as error:
            self._end_with(error)
        finally:
            run.page_wanted.set()

    async def _report(self, number: int, error: BatchError) -> None:
        """Keep the error of a batch, which stays open; the run ends with it when the other batches have."""
        run, text = self._run, redacted(error)
        logger.error("%s: %s; its rows stay open, and a resume goes on with it", self._what, text)
        run.log(LogLevel.ERROR, type="batch_failed", batch=number, error=text)
        self._errors.append(text)
        if number in self._open:
            try:
                await self._save(replace(self._open[number][0], detail=text))
            except Exception as worse:
                self._end_with(worse)

    async def _fetch(self, record: BatchRecord) -> BatchRecord:
        """Queue the results of a batch; return it when they are durable."""
        status = await self._results.status(record)
        if status.phase is Phase.FAILED:
            await self._finish(record, list(ItemSet(record.items)), status.text)
            raise BatchError(record.number, f"the provider has rejected it: {status.text}")
        if status.phase is Phase.QUEUE_FULL:
            return await self._delay(record, status)
        async with self._fetching:
            back = await self._results.fetch(record, status)
            if back is None:
                return record
            if record.count >= self._most:
                # It has fitted the queue, and a larger one may.
                self._most, self._full_since = min(2 * self._most, self._limit), None
        return await self._finish(record, back, status.text)

    async def _finish(self, record: BatchRecord, back: list[Place], text: str) -> BatchRecord:
        """Store a batch as fetched, and give the rows without a result back to the plan."""
        async with self._planning:
            saved = await self._save(replace(record, state=BatchState.FETCHED, detail=text))
            self._run.batched -= self._open.pop(record.number)[0].count
            self._full = False
            # The scan itself meets the rows behind its cursor.
            self._returned.update(each for each in back if self._cursor is not None and each <= self._cursor)
        if back:
            logger.warning("%s: %d rows of batch %d go back: %s", self._what, len(back), record.number, text)
        return saved

    async def _delay(self, record: BatchRecord, status: BatchStatus) -> BatchRecord:
        """Give a batch back that did not fit the provider's queue; a smaller one follows if nothing else is there.

        Where not even one row fits, batches of others fill the queue: it is tried again for `max_outage` seconds.
        """
        settings, loop = self._run.shared.settings, self._run.shared.loop
        alone = len(self._open) == 1
        if alone:
            self._most = max(1, min(self._most, record.count) // 2)
        saved = await self._finish(record, list(ItemSet(record.items)), status.text)
        # Until another batch has ended, there is no room.
        self._full = bool(self._open)
        if alone and record.count == 1:
            if self._full_since is None:
                self._full_since = loop.time()
            if settings.max_outage is not None and loop.time() - self._full_since > settings.max_outage:
                raise BatchError(record.number, f"one row does not fit the provider's queue: {status.text}")
            self._full = True
            loop.call_later(POLL_SECONDS, self._try_again)
        return saved

    def _try_again(self) -> None:
        self._full = False
        self._moved.set()
