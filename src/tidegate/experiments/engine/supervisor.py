"""Supervision of the claimed runs of one runner, and the dispatcher that gives them free slots.

Each run is one task, from its claim until its end is recorded. The supervisor starts the tasks that feed the run, waits
until it is drained, and releases its claim. Whatever fails on the way, the run's tasks are
stopped and its experiment is closed before the next run of that experiment begins.

The dispatcher gives free slots to experiments in fair order, if the key of their work admits it. Nothing is polled. New
work, an ended job, a reopened key, a ready retry or a database that accepts results again calls `wake`. The dispatcher
then checks once, in the event loop's next iteration.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Hashable
from functools import partial

from tidegate.admission.audit import opened
from tidegate.core.limiter_state import Permit
from tidegate.core.token_totals import TokenTotals, added
from tidegate.errors import ConfigurationError, StoreError, require
from tidegate.experiments.engine.background import BackgroundTask, redacted, retry_while_unavailable, stop_within
from tidegate.experiments.engine.batch import BatchTask
from tidegate.experiments.engine.batch.apis import api_of
from tidegate.experiments.engine.batch.feeder import BatchFeeder
from tidegate.experiments.engine.budget import Budget, BudgetLedger, EarlierSpend
from tidegate.experiments.engine.events import StateChanged
from tidegate.experiments.engine.experiment import Experiment, advice, changed_parts
from tidegate.experiments.engine.feeder import ChunkFeeder, Feeder, ingest
from tidegate.experiments.engine.heartbeat import LostFile
from tidegate.experiments.engine.queues import TASK
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunnerContext, RunPhase
from tidegate.experiments.storage import BatchState, Claim, ExperimentRow, LogLevel, ResultStatus, Status
from tidegate.experiments.storage.spend_reserve import RECENT_JOBS
from tidegate.pool.execution import CANCEL_GRACE_SECONDS
from tidegate.pool.threads import call_in_loop

logger = logging.getLogger("tidegate")


MAX_ERRORS = 50
"""Consecutive internal errors that end the dispatcher. Precedent: Phoenix, 50."""


class Dispatcher:
    """Dispatcher of a runner's slots.

    An error while it serves an experiment ends that experiment. It survives other errors, except `MAX_ERRORS` in a
    row. Then it is `broken`, and every experiment ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runs: dict[int, ExperimentRun] = {}
        self.errors = 0
        self.stopped = False
        self.broken: BaseException | None = None
        self._loop = loop
        self._check_scheduled = False
        self._thread = threading.get_ident()
        self._shared: RunnerContext

    def serve(self, shared: RunnerContext) -> None:
        """Set the shared context whose slots it gives."""
        self._shared = shared

    def wake(self) -> None:
        """Schedule one check; further calls until then have no effect."""
        if not self._check_scheduled and not self.stopped:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def wake_from_thread(self) -> None:
        """Do the same from any thread, even after the loop has closed."""
        call_in_loop(self._loop, self._thread, self.wake)

    def on_room(self) -> None:
        """Check again, because the writer accepts results again; runs that need more work request it."""
        for run in self.runs.values():
            run.request_page()
        self.wake()

    def stop(self) -> None:
        self.stopped = True

    def _check(self) -> None:
        self._check_scheduled = False
        if self.stopped:
            return
        try:
            while self._shared.functions.has_room() and self._shared.writer.room and self._step():
                pass
        except Exception as error:
            self._failed(error)
        else:
            self.errors = 0

    def _step(self) -> bool:
        """Start one item or find its gate (the key that it waits for) closed; return False if nothing can be served."""
        turn = self._shared.fair_queue.next(self._urgency)
        if turn is None:
            return False
        experiment, gate = turn
        run = self.runs[experiment]
        try:
            self._serve(run, gate)
        except Exception as error:
            logger.exception(
                "experiment %s: dispatch failed: %s was raised; the run ends with ERROR",
                run.experiment.name,
                type(error).__name__,
            )
            run.fail(error)
        return True

    def _serve(self, run: ExperimentRun, gate: Hashable) -> None:
        item = run.work_queue.peek(gate)
        if item is None or run.full(item):
            # The item is offered again when a job of its run ends.
            self._shared.fair_queue.withdraw(run.id, gate)
            return
        permit = self._shared.gates.request_permit(gate, run.stages[item.stage].key_usage.cost)
        if permit is False:
            return
        try:
            run.work_queue.take(gate)
            self._shared.fair_queue.dispatched(run.id)
            run.dispatch(item, None if permit is True else permit)
        except BaseException:
            if isinstance(permit, Permit) and not permit.settled:
                self._shared.registry.withdraw(permit)
            raise
        if not run.work_queue.has(gate):
            self._shared.fair_queue.withdraw(run.id, gate)

    def _urgency(self, experiment: int, gate: Hashable) -> int:
        return self.runs[experiment].work_queue.rank(gate)

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        wait = min(0.1 * 2.0 ** min(self.errors, 9), 30.0)
        broken = self.errors >= MAX_ERRORS
        then = "it stops, and every run ends with ERROR" if broken else f"retrying in {wait:g} s"
        reason = type(error).__name__
        logger.exception("dispatcher failed: %s was raised (%d in a row); %s", reason, self.errors, then)
        if broken:
            self.stopped, self.broken = True, error
            for run in list(self.runs.values()):
                run.fail(error)
            return
        self._check_scheduled = True
        self._loop.call_later(wait, self._check)


ENDS = "the run ends with ERROR"
"""What a log line says of a call of `ExperimentRun.fail`."""


class RunSupervisor:
    """Supervisor of all runs of one runner; `runs` maps experiment numbers to the runs that have not ended."""

    def __init__(
        self, shared: RunnerContext, dispatcher: Dispatcher, lost_file: LostFile, report_changes: bool = True
    ) -> None:
        self._reports_changes = report_changes
        self.runs = dispatcher.runs
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._shared = shared
        self._dispatcher = dispatcher
        self._lost_file = lost_file

    def require_working(self) -> None:
        """Raise `RuntimeError` if a shared component is broken, so that a run could make no progress."""
        broken = self._dispatcher.broken or self._shared.writer.broken
        if broken is not None:
            raise RuntimeError(
                "runner is broken: its dispatcher or its writer has failed; make another runner"
            ) from broken

    def start(
        self,
        experiment: Experiment,
        row: ExperimentRow,
        claim: Claim,
        *,
        retry_failed: bool,
        limit: int | None = None,
        contributes: bool = False,
    ) -> None:
        """Run a claimed experiment, or its first `limit` rows; `row` is its state before that claim.

        With `contributes`, run only chunks of it: `claim` has the epoch of the owner and the name of this replica.
        """
        run = ExperimentRun(self._shared, experiment, claim, retry_failed=retry_failed, contributes=contributes)
        run.limit = limit
        self.runs[row.id] = run
        self.tasks[row.id] = self._shared.loop.create_task(self._supervise(run, row))

    async def ended(self, number: int) -> None:
        """Wait for the end of a local run; return at once if there is none."""
        task = self.tasks.get(number)
        if task is not None:
            # A shutdown may cancel the run's task; `wait` does not pass that cancellation on to the caller.
            await asyncio.wait({task})

    async def wait_if_draining(self, number: int) -> None:
        """Wait for the end of a run that is draining: an experiment runs once at a time."""
        run = self.runs.get(number)
        if run is not None and run.phase is not RunPhase.LIVE:
            await self.ended(number)

    async def _supervise(self, run: ExperimentRun, row: ExperimentRow) -> None:
        background: list[BackgroundTask] = []
        status: Status | None = None
        try:
            with opened():
                try:
                    await self._start_run(run, row, background)
                except ConfigurationError as error:
                    logger.error("experiment %s not started: %s; it ends with ERROR", row.name, redacted(error))
                    run.fail(error)
                except Exception as error:
                    reason = type(error).__name__
                    logger.exception("experiment %s not started: %s was raised; it ends with ERROR", row.name, reason)
                    run.fail(error)
                await run.drained
            status = await self._record_end(run)
        finally:
            try:
                await self._close(run, row, background, status)
            finally:
                # The next run of the experiment waits until here, so only this run's resources and streams are closed.
                self.runs.pop(row.id, None)
                self.tasks.pop(row.id, None)

    async def _close(
        self, run: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask], status: Status | None
    ) -> None:
        run.phase = RunPhase.ENDED
        for each in background:
            await each.stop(CANCEL_GRACE_SECONDS)
        closing = run.experiment.aclose()
        await stop_within(CANCEL_GRACE_SECONDS, closing, f"experiment {row.name}: close of its resources")
        await self._announce_end(run, status)

    async def _start_run(self, run: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask]) -> None:
        loop, name = self._shared.loop, row.name
        if run.claim.epoch > 1:
            await self._load_counts(run, row)
        if not run.live:
            return
        await self._require_no_batches(run)
        if run.claim.epoch > 1:
            run.earlier_tokens = added((await self._shared.store.usages.spend(row.id)).values())
        await self._set_budget(run, row)
        run.start()
        run.spending.end_if_spent()
        self._report_changes(run, row)
        feeder: Feeder
        if run.experiment.batch:
            feeder = self._batch_feeder(run, row, background)
        elif run.experiment.spread:
            feeder = ChunkFeeder(run, complete=row.complete, rows=row.rows)
        else:
            feeder = Feeder(run, complete=row.complete)
        background.append(BackgroundTask(loop, feeder.feed, f"experiment {name}: feeder", run.fail, ENDS))
        if not row.complete and not run.contributes:
            reading = partial(ingest, run, feeder, run.experiment.dataset, row.dataset_id)
            what = f"experiment {name}: import of its dataset"
            background.append(BackgroundTask(loop, reading, what, run.fail, ENDS))

    def _budget_of(self, experiment: Experiment) -> Budget | None:
        """Return the budget of an experiment, with the amounts that the runner's settings name."""
        own, settings = experiment.budget, self._shared.settings
        usd = settings.budget_usd if settings.budget_usd is not None else own.usd if own is not None else None
        tokens = settings.budget_tokens if settings.budget_tokens is not None else own.tokens if own else None
        return None if usd is None and tokens is None else Budget(usd, tokens)

    async def _set_budget(self, run: ExperimentRun, row: ExperimentRow) -> None:
        """Begin to count what the run spends. Other replicas, and displays, read its budget in the database."""
        budget = self._budget_of(run.experiment)
        given = row.spec.get("budget") if run.contributes else budget.stored() if budget is not None else None
        if not run.contributes and row.spec.get("budget") != given:
            spec = {**row.spec, "budget": given} if given else {k: v for k, v in row.spec.items() if k != "budget"}
            await self._shared.store.experiments.amend(run.claim, spec, row.repetitions)
        if run.experiment.spread:
            run.kept_budget = Budget(**given) if isinstance(given, dict) else None
        elif budget is not None:
            spent = await self._shared.store.usages.spend(row.id)
            earlier = [
                EarlierSpend(
                    spent.pop(stage.name, TokenTotals()),
                    await self._shared.store.usages.last_spent(row.id, stage.name, RECENT_JOBS),
                )
                for stage in run.stages
            ]
            other = added(spent.values())
            run.kept_budget, run.ledger = budget, BudgetLedger(budget, earlier, run.tally.unjudged, other)

    def _batch_feeder(self, run: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask]) -> BatchFeeder:
        task = run.experiment.task
        assert isinstance(task, BatchTask), "the experiment has checked it"
        feeder = BatchFeeder(run, api_of(task), task, complete=row.complete)
        what = f"experiment {row.name}: its batches"
        background.append(BackgroundTask(self._shared.loop, feeder.run_batches, what, run.fail, ENDS))
        return feeder

    async def _require_no_batches(self, run: ExperimentRun) -> None:
        """Raise `ConfigurationError` if rows are in batches of a provider: calls would pay for them a second time."""
        if run.experiment.batch or run.claim.epoch == 1 or run.contributes:
            return
        records = await self._shared.store.batches.of(run.id)
        count = sum(each.state is not BatchState.FETCHED for each in records)
        require(not count, "batch", False, f"True: {count} of its batches are not fetched, and their rows are paid for")

    def _report_changes(self, run: ExperimentRun, row: ExperimentRow) -> None:
        """Report parts that have changed since the last run, if that has left answers."""
        parts = changed_parts(row, run.experiment)
        if not parts or not run.tally.done[TASK].get(ResultStatus.OK):
            return
        run.log(LogLevel.WARN, type="changed", parts=parts)
        if self._reports_changes:
            logger.warning("experiment %s changed: %s", row.name, advice(parts))

    async def _load_counts(self, run: ExperimentRun, row: ExperimentRow) -> None:
        """Add the results of earlier runs to the progress."""
        what = f"experiment {row.name}: count of its earlier results"
        counts = await retry_while_unavailable(partial(self._shared.store.reports.counts, row.id), what)
        run.tally.load(counts, run.retry_failed)
        if row.complete:
            rows = counts.rows if run.limit is None else min(counts.rows, run.limit)
            run.tally.rows, run.tally.all_rows = rows, True

    async def _record_end(self, run: ExperimentRun) -> Status | None:
        """Record the end and release the claim if needed; return the new status, None if unknown."""
        if run.experiment.spread:
            await self._release_chunks(run)
        lost = await self._lost_file.at_end(run)
        try:
            return await self._release_claim(run)
        finally:
            if lost:
                # The copy must include the end of this run.
                await self._lost_file.save()

    async def _release_chunks(self, run: ExperimentRun) -> None:
        release = self._shared.store.chunks.release
        name = f"experiment {run.experiment.name}"
        try:
            await retry_while_unavailable(lambda: release(run.id, run.claim.replica), f"{name}: release of its chunks")
        except StoreError as error:
            logger.warning("%s: chunks not released: %s; they are free when these claims are stale", name, error)

    async def _release_claim(self, run: ExperimentRun) -> Status | None:
        final = run.final
        if final is None:
            return None
        release = self._shared.store.claims.release
        try:
            released = await retry_while_unavailable(
                lambda: release(run.claim, final, run.reason),
                f"experiment {run.experiment.name}: release of its claim",
            )
        except Exception as error:
            logger.exception(
                "experiment %s: end not written: %s was raised; any replica may claim it when this claim is stale",
                run.experiment.name,
                type(error).__name__,
            )
            return None
        return final if released else None

    async def _announce_end(self, run: ExperimentRun, status: Status | None) -> None:
        if status is None:
            try:
                row = await self._shared.store.experiments.find(run.id)
                status = row.status if row is not None else None
            except Exception as error:
                logger.exception(
                    "experiment %s: status not read: %s was raised; its subscribers get no last status",
                    run.experiment.name,
                    type(error).__name__,
                )
        try:
            if status is not None:
                run.publish(StateChanged(status, run.reason))
        finally:
            self._shared.hub.end(run.id, run.experiment.name)
