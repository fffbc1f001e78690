"""`Store`: everything that outlives the process, behind one class. All of it is async; one store goes with one loop.

Every method raises `StoreError` where the database fails; where it is `retryable` (a lost connection, a server that is
being restarted, a lock that was not had in time) the same call can be made again as it was.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Mapping, Sequence

from tidegate.errors import DatabaseFileLost
from tidegate.storage import claims, datasets, experiments, pending, reports, results
from tidegate.storage.database import Database
from tidegate.storage.engines import parsed
from tidegate.storage.migrate import migrate
from tidegate.storage.paging import Page
from tidegate.storage.reading import readable
from tidegate.storage.records import (
    JSON,
    AnnotationResult,
    Claim,
    EvalCursor,
    ExperimentRow,
    ExperimentSummary,
    Failure,
    LoggedLine,
    LogLine,
    NewRow,
    PendingEval,
    PendingTask,
    ResultCounts,
    RunResult,
    Score,
    Status,
    StoredRun,
    TaskCursor,
    Toggle,
)


class Store:
    """One database. `open` makes it; nothing else does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closing: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"Store({self._database.shown!r})"

    @classmethod
    async def open(cls, url: str) -> Store:
        """The store at a path or URL (`sqlite:///…`, `postgresql://…`), its schema brought up to date.

        Raises `SchemaMismatch` where a newer tidegate has made it, `StoreError` where it cannot be opened.
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
        """The store at a path or URL, for reading alone: also an SQLite file in a folder that may only be read.

        An older schema is brought up to date, which needs to write. Raises as `open` does.
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
        """Closes every connection."""
        await self._database.close()
        await asyncio.to_thread(self._closing)

    async def lost(self) -> DatabaseFileLost | None:
        """Return what became of an SQLite file that was deleted, moved or replaced since it was opened; else None."""
        return await self._database.lost()

    async def save_lost(self) -> DatabaseFileLost:
        """Save what a lost SQLite file holds to a new file beside it.

        The result names that file, or says why there is none. A later call brings the same copy up to date.
        """
        return await self._database.save_lost()

    async def create(self, name: str, spec: Mapping[str, JSON], repetitions: int, source: str) -> ExperimentRow:
        """The experiment of that name: made with an empty dataset, or the one there is, as it is."""
        return await experiments.create(self._database, name, spec, repetitions, source)

    async def find(self, name_or_id: str | int) -> ExperimentRow | None:
        """The experiment of that name or number; a text that is no name may be a number."""
        return await experiments.find(self._database, name_or_id)

    async def list(self) -> builtins.list[ExperimentSummary]:
        """Every experiment, the newest first."""
        return await experiments.every(self._database)

    async def amend(self, claim: Claim, spec: Mapping[str, JSON], repetitions: int) -> None:
        """Gives a claimed experiment another spec; what is left to do is then looked for from the first row again.

        Raises `LeaseLost` where the claim is not the newest.
        """
        await experiments.amend(self._database, claim, spec, repetitions)

    async def add_rows(self, dataset_id: int, rows: Sequence[NewRow]) -> None:
        """Stores rows in one transaction; those that are there already, as they are, are passed over.

        A body that JSON has no word for makes an invalid row. Raises `DuplicateRow` where a name is another row's, and
        `DatasetChanged` where an ordinal is there with another content: nothing of `rows` is stored then.
        """
        await datasets.add_rows(self._database, dataset_id, rows)

    async def complete_dataset(self, dataset_id: int, rows: int | None = None) -> None:
        """Notes that every row is there. Raises `DatasetChanged` where that are not as many as the `rows` just read."""
        await datasets.complete_dataset(self._database, dataset_id, rows)

    async def pending_tasks(
        self, experiment_id: int, *, after: TaskCursor | None, limit: int, again: bool
    ) -> Page[PendingTask]:
        """The next task items without a result, by ordinal and repetition; `again` also takes what failed or parked.

        Fewer than `limit` are the last ones, unless the page says that there are `more`: those were too many bytes.
        """
        return await pending.pending_tasks(self._database, experiment_id, after, limit, again)

    async def pending_evals(
        self,
        experiment_id: int,
        evaluators: Mapping[str, tuple[str, ...]],
        *,
        after: EvalCursor | None,
        limit: int,
        again: bool,
    ) -> Page[PendingEval]:
        """The next eval items of good runs without a result, by ordinal, repetition and evaluator.

        `evaluators` has their declared outputs: with some, all of these must be there; with none, any one says that it
        is done. `again` also takes what failed or parked. A page ends as one of tasks does.
        """
        return await pending.pending_evals(self._database, experiment_id, evaluators, after, limit, again)

    async def counts(self, experiment_id: int) -> ResultCounts:
        """Return how far an experiment is."""
        return await reports.counts(self._database, experiment_id)

    async def write(self, batch: Sequence[RunResult | AnnotationResult | LogLine]) -> frozenset[int]:
        """Writes a batch in one transaction; durable when it returns.

        Returns the experiments whose epoch is no longer theirs: nothing of those was written, everything of the others
        was. A good result is never replaced by a failed one. The run of an annotation is in the store or in the batch.
        """
        return await results.write(self._database, batch)

    async def claim(self, experiment_id: int, replica: str, stale_after: float) -> Claim | None:
        """A claim with a new epoch, where the experiment is READY, is this replica's, or runs but was not renewed for
        `stale_after` seconds; None otherwise. What was stopped, completed or blocked is taken by `resume` alone.
        """
        return await claims.claim(self._database, experiment_id, replica, stale_after)

    async def renew(self, replica: str, held: Mapping[int, int]) -> frozenset[int]:
        """Renews claims, experiment to epoch; returns the experiments that are still this replica's."""
        return await claims.renew(self._database, replica, held)

    async def release(self, claim: Claim, status: Status, last_error: str | None = None) -> bool:
        """Ends a claim with a status that is not RUNNING.

        False, and nothing written, where it is not the newest any more or was stopped.
        """
        return await claims.release(self._database, claim, status, last_error)

    async def stop(self, experiment_id: int, by: Mapping[str, JSON] | None = None) -> Toggle:
        """The user's stop: takes the experiment from whoever runs it, or from who was about to. Its log says `by` whom.

        The epoch stays, so that results which are on their way still count until the next claim. ALREADY where it does
        not run, COOLING less than five seconds after the last stop or resume, MISSING where there is none.
        """
        return await claims.stop(self._database, experiment_id, by or {})

    async def resume(self, experiment_id: int, replica: str) -> Claim | Toggle:
        """The user's resume: a claim on what nobody runs, or ALREADY, COOLING, MISSING."""
        return await claims.resume(self._database, experiment_id, replica)

    async def orphans(self, stale_after: float, limit: int) -> builtins.list[int]:
        """Experiments that run but were not renewed for `stale_after` seconds, the longest first."""
        return await claims.orphans(self._database, stale_after, limit)

    async def advance(self, claim: Claim, low_water: int, task_water: int | None = None) -> None:
        """Notes that every row below `low_water` is wholly done, and every row below `task_water` has all its runs.

        Does nothing where the claim is not the newest; marks never go down.
        """
        await claims.advance(self._database, claim, low_water, low_water if task_water is None else task_water)

    async def last_logs(self, experiment_id: int, limit: int) -> builtins.list[LoggedLine]:
        """The last log lines, the oldest first."""
        return await reports.last_logged(self._database, experiment_id, limit)

    async def failures(self, experiment_id: int) -> builtins.list[Failure]:
        """The kinds of what is not good: of tasks, then of each evaluator, the most frequent first."""
        return await reports.failures(self._database, experiment_id)

    async def scores(self, experiment_id: int) -> builtins.list[Score]:
        """Return what each output of each evaluator came to, by evaluator and output."""
        return await reports.scores(self._database, experiment_id)

    async def results(self, experiment_id: int, *, after: TaskCursor | None, limit: int) -> builtins.list[StoredRun]:
        """The next runs with their rows and annotations, by ordinal and repetition."""
        return await reports.results(self._database, experiment_id, after, limit)
