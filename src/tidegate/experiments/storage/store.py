"""`Store`: all durable data behind one class. Its methods are async; one store belongs to one event loop.

Every method raises `StoreError` where the database fails. Where that is `retryable`, the caller can repeat the same
call. Examples are a lost connection, a restarting server, and a lock that was not available in time.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.core.token_totals import TokenTotals
from tidegate.errors import DatabaseFileLost
from tidegate.experiments.storage import (
    batches,
    chunks,
    claims,
    datasets,
    deletion,
    experiments,
    pending,
    reports,
    results,
    row_pages,
    row_scores,
    tally_table,
    usages,
)
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.engines import parsed
from tidegate.experiments.storage.migrate import migrate
from tidegate.experiments.storage.paging import Page
from tidegate.experiments.storage.reading import readable
from tidegate.experiments.storage.records import (
    JSON,
    AnnotationResult,
    AttemptCursor,
    BatchRecord,
    BudgetEnd,
    ChoiceCount,
    Claim,
    ClaimStats,
    EvalCursor,
    ExperimentRow,
    ExperimentSummary,
    Failure,
    ItemAttempts,
    LoggedLine,
    LogLine,
    NewRow,
    PendingEval,
    PendingTask,
    ResultCounts,
    RowChunk,
    RunResult,
    Score,
    Status,
    StoredRun,
    TaskCursor,
    Toggle,
)
from tidegate.experiments.storage.row_pages import RowFilter, RowPage
from tidegate.experiments.storage.row_scores import ScorePage
from tidegate.experiments.storage.tally import StageTally


class Store:
    """Database of experiments. Only `open` and `open_to_read` create one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closing: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"Store({self._database.shown!r})"

    @classmethod
    async def open(cls, url: str) -> Store:
        """Return the store at a path or URL (`sqlite:///…`, `postgresql://…`), with its schema brought up to date.

        Raise `SchemaMismatch` where a newer tidegate has made it, and `StoreError` where it cannot be opened.
        """
        database = Database(parsed(url))
        try:
            await migrate(database)
            await database.hold()
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @classmethod
    async def open_to_read(cls, url: str) -> Store:
        """Return the store at a path or URL, only for reading: also an SQLite file in a read-only folder.

        An older schema is brought up to date, which needs to write. Raise the errors of `open`.
        """
        place = parsed(url)
        if place.get_backend_name() != "sqlite":
            return await cls.open(url)
        database, closing = await readable(place)
        if database is None:
            return await cls.open(url)
        store = cls(database)
        store._closing = closing
        return store

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()
        await asyncio.to_thread(self._closing)

    async def lost(self) -> DatabaseFileLost | None:
        """Return the error for an SQLite file that was deleted, moved or replaced since it was opened; else None."""
        return await self._database.lost()

    async def save_lost(self) -> DatabaseFileLost:
        """Save the content of a lost SQLite file to a new file next to it.

        The result names that file, or states why there is none. A later call updates the same copy.
        """
        return await self._database.save_lost()

    async def create(self, name: str, spec: Mapping[str, JSON], repetitions: int, source: str) -> ExperimentRow:
        """Return the experiment of that name: a new one with an empty dataset, or the existing one, unchanged."""
        return await experiments.create(self._database, name, spec, repetitions, source)

    async def create_fresh(
        self, name: str, spec_of: Callable[[str], Mapping[str, JSON]], repetitions: int, source: str
    ) -> ExperimentRow:
        """Return a new experiment with an empty dataset, under the first free one of NAME, NAME-2, NAME-3, …."""
        return await experiments.create_fresh(self._database, name, spec_of, repetitions, source)

    async def find(self, name_or_id: str | int) -> ExperimentRow | None:
        """Return the experiment of that name or number; a text that is no name may be a number."""
        return await experiments.find(self._database, name_or_id)

    async def page(self, before: int | None, limit: int) -> builtins.list[ExperimentRow]:
        """Return the next experiments with a number below `before`, the newest first, without a look at results."""
        return await experiments.page(self._database, before, limit)

    async def last_activities(self, experiment_ids: Sequence[int]) -> dict[int, datetime]:
        """Return the instant of the last log line of each experiment that has one, by its number."""
        return await experiments.last_activities(self._database, experiment_ids)

    async def list(self) -> builtins.list[ExperimentSummary]:
        """Return every experiment, the newest first."""
        return await experiments.every(self._database)

    async def amend(self, claim: Claim, spec: Mapping[str, JSON], repetitions: int) -> None:
        """Replace the spec of a claimed experiment; the search for pending work then restarts at the first row.

        Raise `ClaimLost` where the claim is not the newest.
        """
        await experiments.amend(self._database, claim, spec, repetitions)

    async def add_rows(self, dataset_id: int, rows: Sequence[NewRow]) -> None:
        """Store rows in one transaction; skip those that exist already with equal content.

        A body that JSON cannot express makes an invalid row. Raise `DuplicateRow` where another row has the same name.
        Raise `DatasetChanged` where an ordinal exists with another content. In both cases nothing of `rows` is stored.
        """
        await datasets.add_rows(self._database, dataset_id, rows)

    async def complete_dataset(self, dataset_id: int, rows: int | None = None) -> None:
        """Mark the dataset as complete; raise `DatasetChanged` where its number of rows is not `rows`."""
        await datasets.complete_dataset(self._database, dataset_id, rows)

    async def pending_tasks(
        self,
        experiment_id: int,
        *,
        after: TaskCursor | None,
        limit: int,
        retry_failed: bool,
        below: int | None = None,
    ) -> Page[PendingTask]:
        """Return the next task items without a result, by ordinal and repetition.

        `retry_failed` includes failed and parked ones. With `below`, only rows with a lower ordinal count.

        Fewer than `limit` are the last ones, unless the page has `more`: then the others exceeded its size.
        """
        return await pending.pending_tasks(self._database, experiment_id, after, limit, retry_failed, below)

    async def pending_evals(
        self,
        experiment_id: int,
        evaluators: Mapping[str, tuple[str, ...]],
        *,
        after: EvalCursor | None,
        limit: int,
        retry_failed: bool,
    ) -> Page[PendingEval]:
        """Return the next eval items of ok runs without a result, by ordinal, repetition and evaluator.

        `evaluators` maps names to declared outputs. An item is done when all of these exist, or any output where none
        is declared. `retry_failed` includes failed and parked items. A page ends as in `pending_tasks`.
        """
        return await pending.pending_evals(self._database, experiment_id, evaluators, after, limit, retry_failed)

    async def counts(self, experiment_id: int) -> ResultCounts:
        """Return the progress of an experiment."""
        return await reports.counts(self._database, experiment_id)

    async def write(
        self, batch: Sequence[RunResult | AnnotationResult | ItemAttempts | ClaimStats | LogLine]
    ) -> frozenset[int]:
        """Write a batch in one transaction, which is durable when this returns.

        Return the experiments whose results had an epoch that is not the newest. Nothing of these is written,
        everything of the others is. A failed result never replaces an ok one. The run of an annotation must be in the
        store or in the batch.
        """
        return await results.write(self._database, batch)

    async def claim(self, experiment_id: int, replica: str, stale_after: float) -> Claim | None:
        """Return a claim with a new epoch, or None where the experiment is not free.

        It is free where it is READY, is this replica's, or runs without a renewal for `stale_after` seconds. Only
        `resume` claims a stopped, completed, failed or blocked one.
        """
        return await claims.claim(self._database, experiment_id, replica, stale_after)

    async def renew(self, replica: str, held: Mapping[int, int]) -> frozenset[int]:
        """Renew claims, given as experiment to epoch; return the experiments that are still this replica's."""
        return await claims.renew(self._database, replica, held)

    async def release(self, claim: Claim, status: Status, last_error: str | None = None) -> bool:
        """End a claim with a status that is not RUNNING.

        Return False and write nothing where it is no longer the newest or was stopped.
        """
        return await claims.release(self._database, claim, status, last_error)

    async def stop(self, experiment_id: int, by: Mapping[str, JSON] | None = None) -> Toggle:
        """Stop an experiment for a user, whether it is RUNNING on any replica or READY; `by` goes into its log.

        The epoch stays, so that results in flight still count until the next claim. Return ALREADY where it is neither
        RUNNING nor READY, COOLING within five seconds of the last stop or resume, and MISSING where it does not exist.
        """
        return await claims.stop(self._database, experiment_id, by or {})

    async def resume(self, experiment_id: int, replica: str) -> Claim | Toggle:
        """Resume an experiment for a user: return a claim where none runs it, or ALREADY, COOLING, MISSING."""
        return await claims.resume(self._database, experiment_id, replica)

    async def orphans(self, stale_after: float, limit: int) -> builtins.list[int]:
        """Return the experiments that run without a renewal for `stale_after` seconds, the longest first."""
        return await claims.orphans(self._database, stale_after, limit)

    @property
    def spreads(self) -> bool:
        """Return whether several replicas can run one experiment at once in this database."""
        return not self._database.sqlite

    async def reset_chunks(self, claim: Claim) -> None:
        """Delete the chunks of an experiment, so that no replica holds one; raise `ClaimLost` for an older claim."""
        await chunks.reset(self._database, claim)

    async def add_chunks(self, experiment_id: int, until: int) -> None:
        """Add chunks for the stored rows below the ordinal `until` that no chunk has."""
        await chunks.add(self._database, experiment_id, until)

    async def claim_chunk(self, experiment_id: int, replica: str, stale_after: float) -> RowChunk | BudgetEnd | None:
        """Return the first chunk that is not done and that no live replica holds, now claimed; None without one.

        An experiment that does not run gives no chunk.
        """
        return await chunks.claim(self._database, experiment_id, replica, stale_after)

    async def chunks(self, experiment_id: int) -> builtins.list[RowChunk]:
        """Return the chunks of an experiment, by their first row."""
        return await chunks.of(self._database, experiment_id)

    async def finish_chunk(self, experiment_id: int, replica: str, first: int) -> bool:
        """Mark a chunk as done; return False where this replica does not hold it."""
        return await chunks.finish(self._database, experiment_id, replica, first)

    async def renew_chunks(self, replica: str, experiment_ids: Sequence[int]) -> Mapping[int, frozenset[int]]:
        """Renew this replica's claims on chunks of experiments; return the first rows of these by experiment.

        Experiments that do not run are left out.
        """
        return await chunks.renew(self._database, replica, experiment_ids)

    async def release_chunks(self, experiment_id: int, replica: str) -> None:
        """Give back the chunks of this replica that are not done."""
        await chunks.release(self._database, experiment_id, replica)

    async def to_join(self, stale_after: float) -> builtins.list[int]:
        """Return the running experiments with a chunk that is not done and that no live replica holds."""
        return await chunks.to_join(self._database, stale_after)

    async def workers(self, experiment_id: int, stale_after: float) -> int:
        """Return the number of live replicas that hold a chunk of an experiment."""
        return await chunks.workers(self._database, experiment_id, stale_after)

    async def save_batch(self, claim: Claim, record: BatchRecord) -> BatchRecord:
        """Write a batch over the one with its number, or as a new one where that is 0; return it as it is stored.

        Raise `ClaimLost` where the claim is not the newest.
        """
        return await batches.save(self._database, claim, record)

    async def batches(self, experiment_id: int) -> builtins.list[BatchRecord]:
        """Return the batches of an experiment, by their number."""
        return await batches.of(self._database, experiment_id)

    async def batch_counts(self) -> dict[int, dict[str, int]]:
        """Return the number of batches by experiment and state; experiments without any are left out."""
        return await batches.counts(self._database)

    async def batch_ids(self, provider: str) -> frozenset[str]:
        """Return the provider's names of all batches that are known in this database."""
        return await batches.provider_ids(self._database, provider)

    async def delete(self, experiment_id: int) -> bool:
        """Delete an experiment with its rows, results, attempts and log; contents that others have stay.

        Return False and change nothing where it is RUNNING or does not exist. Its number is not used again.
        """
        return await deletion.remove(self._database, experiment_id)

    async def is_ending(self, experiment_id: int, patience: float) -> bool:
        """Return whether the run that a user has stopped in the last `patience` seconds has not written its end yet."""
        return await deletion.is_ending(self._database, experiment_id, patience)

    async def advance(self, claim: Claim, low_water: int, task_water: int | None = None) -> None:
        """Note that every row below `low_water` is complete, and that every row below `task_water` has all its runs.

        Do nothing where the claim is not the newest; this method never lowers a watermark.
        """
        await claims.advance(self._database, claim, low_water, low_water if task_water is None else task_water)

    async def last_logs(self, experiment_id: int, limit: int) -> builtins.list[LoggedLine]:
        """Return the last log lines, the oldest first."""
        return await reports.last_logged(self._database, experiment_id, limit)

    async def failures(self, experiment_id: int) -> builtins.list[Failure]:
        """Return the kinds of results that are not ok: of tasks, then of each evaluator, the most frequent first."""
        return await reports.failures(self._database, experiment_id)

    async def tallies(self, experiment_ids: Sequence[int]) -> Mapping[int, Mapping[str, StageTally]]:
        """Return the tallies of experiments by stage (`task`, then the evaluators); no result is read for it.

        One that an older version has made has none until `build_tally`, and is left out.
        """
        return await tally_table.read(self._database, experiment_ids)

    async def untallied(self) -> builtins.list[int]:
        """Return the experiments without a tally, the newest first."""
        return await tally_table.unbuilt(self._database)

    async def build_tally(self, experiment_id: int, *, anew: bool = False) -> bool:
        """Build the tallies of an experiment from its results where it has none, or `anew`.

        Return whether this was done. It reads all results, and none is written meanwhile.
        """
        return await tally_table.build(self._database, experiment_id, anew=anew)

    async def scores(self, experiment_id: int) -> builtins.list[Score]:
        """Return the scores of each output of each evaluator, by evaluator and output."""
        return await reports.scores(self._database, experiment_id)

    async def spend(self, experiment_id: int) -> dict[str, TokenTotals]:
        """Return the tokens and costs of an experiment by stage: `task`, or an evaluator."""
        return (await self.spends([experiment_id]))[experiment_id]

    async def spends(self, experiment_ids: Sequence[int]) -> dict[int, dict[str, TokenTotals]]:
        """Return the same for several experiments, by their numbers; no item is read for it."""
        return await usages.read_spends(self._database, experiment_ids)

    async def items_with_usage(self, experiment_id: int) -> dict[str, int]:
        """Return the number of items of each stage that have a usage, once for each claim."""
        return await usages.count_items(self._database, experiment_id)

    async def last_spent(self, experiment_id: int, stage: str, limit: int) -> Sequence[TokenTotals]:
        """Return what the items of the last rows of a stage have spent, the last row at the end."""
        async with self._database.reading() as connection:
            return await connection.run_sync(usages.last_spent, experiment_id, stage, limit)

    def score_pages(self, experiment_id: int) -> AsyncIterator[ScorePage]:
        """Return the rows of an experiment with their results, page by page, for a comparison."""
        return row_scores.score_pages(self._database, experiment_id)

    async def choices(self, experiment_id: int) -> builtins.list[ChoiceCount]:
        """Return the number of answered items by the choices of their fallbacks, of tasks, then of each evaluator."""
        return await reports.choices(self._database, experiment_id)

    async def results(self, experiment_id: int, *, after: TaskCursor | None, limit: int) -> builtins.list[StoredRun]:
        """Return the next runs with their rows and annotations, by ordinal and repetition.

        Large rows make the list shorter than `limit`; an empty list is the end.
        """
        return await reports.results(self._database, experiment_id, after, limit)

    async def result(self, experiment_id: int, ordinal: int, repetition: int) -> StoredRun | None:
        """Return one run with its row and annotations; None where it has no result."""
        found = await self.results(experiment_id, after=(ordinal, repetition - 1), limit=1)
        return found[0] if found and found[0].cursor == (ordinal, repetition) else None

    async def row_page(
        self,
        experiment_id: int,
        wanted: RowFilter,
        *,
        after: TaskCursor | None = None,
        before: TaskCursor | None = None,
        limit: int = 100,
    ) -> RowPage:
        """Return the next items after a cursor, or the last ones before one, with long texts cut."""
        return await row_pages.row_page(self._database, experiment_id, wanted, after=after, before=before, limit=limit)

    async def attempts(
        self, experiment_id: int, *, after: AttemptCursor | None, limit: int
    ) -> builtins.list[Mapping[str, Any]]:
        """Return the next attempts that an audit has kept, by their cursor; each has the columns of its table."""
        return await reports.attempts_of(self._database, experiment_id, after, limit)

    async def attempt_counts(self, experiment_id: int) -> dict[str, int]:
        """Return the number of kept attempts by status."""
        return await reports.attempt_counts(self._database, experiment_id)

    async def claim_stats(self, experiment_id: int) -> builtins.list[Mapping[str, JSON]]:
        """Return the statistics of each claim that has ended, the oldest first."""
        return await reports.claim_stats(self._database, experiment_id)
