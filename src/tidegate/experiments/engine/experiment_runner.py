"""`ExperimentRunner`: it runs several experiments at once in one event loop, while the process lives."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.errors import CoolingDown, StoppedElsewhere, UnknownExperiment, require
from tidegate.experiments.engine.background import BackgroundTask, stop_within
from tidegate.experiments.engine.claims import SHUT_DOWN, ClaimService, Restore, require_no_budget, stop_and_delete
from tidegate.experiments.engine.dataset import missing
from tidegate.experiments.engine.events import SubscriberHub, Subscription
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.heartbeat import Heartbeat, LostFile
from tidegate.experiments.engine.loader import restored
from tidegate.experiments.engine.progress import Progress, Summary
from tidegate.experiments.engine.queues import FairQueue
from tidegate.experiments.engine.replica import STALE_SECONDS, actor, replica_name
from tidegate.experiments.engine.results import ResultWriter
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunnerContext
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.experiments.engine.supervisor import Dispatcher, RunSupervisor
from tidegate.experiments.storage import ExperimentRow, Status, Store, Toggle
from tidegate.pool.execution import CANCEL_GRACE_SECONDS
from tidegate.pool.function_limit import FunctionLimit
from tidegate.pool.key_gates import KeyGates
from tidegate.pool.threads import exit_children

logger = logging.getLogger("tidegate")

WRITE_GRACE_SECONDS = 10.0
"""Seconds that a shutdown waits for a database that is away. Precedent: Phoenix, 5 to 30 s."""


class ExperimentRunner:
    """Replica that claims experiments in the database at `url` and runs them; an asynchronous context manager.

    With `recover`, it also continues the experiments of dead replicas. `restore` then makes an experiment from its
    stored spec; the default uses the file or module that the spec names. `registry` admits the calls; the default is
    the process's registry. With `report_changes`, a warning is logged where the code of an experiment has changed since
    its last run.
    """

    def __init__(
        self,
        url: str = "tidegate.db",
        *,
        registry: RateLimitRegistry | None = None,
        settings: RunnerSettings | None = None,
        recover: bool = True,
        restore: Restore = restored,
        report_changes: bool = True,
    ) -> None:
        self.url = url
        self.settings = settings if settings is not None else RunnerSettings()
        self.replica = replica_name()
        self._registry = registry
        self._recovers = recover
        self._restore = restore
        self._reports_changes = report_changes
        self._hub = SubscriberHub()
        self._opening = asyncio.Lock()
        self._opened = self._closed = False
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ExperimentRunner:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    async def open(self) -> None:
        """Open the database and start the heartbeat. The methods that need the database call this themselves."""
        async with self._opening:
            if self._closed:
                raise RuntimeError(SHUT_DOWN)
            if self._opened:
                return
            store = await Store.open(self.url)
            try:
                self._begin(store, asyncio.get_running_loop())
            except BaseException:
                await store.close()
                raise
            self._opened = True

    async def start(self, experiment: Experiment, *, follow: bool = False, limit: int | None = None) -> int:
        """Start or continue an experiment; return its number as soon as it is claimed.

        Durable results are kept; failed and parked items are tried again. With a `limit` only the first rows are tried;
        then the run ends as STOPPED, and a later one continues. Raise `CannotRead` if the dataset's file is missing or
        of unknown format, unless all its rows are stored. Raise `CoolingDown` shortly after a user's stop or resume.

        If another replica has claimed the experiment, wait until that replica renews its claim, ends, or its claim is
        stale. A renewal raises `ClaimedElsewhere`; with `follow`, the wait continues. A user's stop in that time raises
        `StoppedElsewhere`. A caller that is cancelled has claimed nothing.
        """
        whole = limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1)
        require(whole, "limit", limit, "1 or more")
        await self.open()
        known = await self.store.experiments.find(experiment.name)
        if known is None or not known.complete:
            missing(experiment.dataset)
        return await self._claim_service.start(experiment, follow=follow, limit=limit)

    async def join(self, name_or_id: str | int) -> bool:
        """Help to run an experiment with `spread` that another replica owns; return False if it does not run.

        This replica answers chunks of its rows until all are done; `wait` waits for that. Raise `CannotLoad` if its
        code or a named credential is missing here.
        """
        row = await self._row(name_or_id)
        return await self._claim_service.join(row.id)

    async def fresh(self, experiment: Experiment) -> Experiment:
        """Return the experiment under a name that no other one has: its own, or with the first free number behind it.

        It is stored at once, so nobody else gets that name. Nothing is deleted.
        """
        require_no_budget(experiment, self.settings)
        await self.open()
        missing(experiment.dataset)

        def spec_of(name: str) -> dict[str, Any]:
            return experiment.renamed(name).spec()

        row = await self.store.experiments.create_fresh(
            experiment.name, spec_of, experiment.repetitions, experiment.described
        )
        return experiment.renamed(row.name)

    async def run(self, experiment: Experiment, *, limit: int | None = None) -> Summary:
        """Run an experiment and return its summary at its end, however it ended.

        If another replica runs it, wait for that end; then continue here with the remaining work, unless a user stopped
        it.
        """
        try:
            number = await self.start(experiment, follow=True, limit=limit)
        except StoppedElsewhere:
            return await self.summary(experiment.name)
        return await self.wait(number)

    async def wait(self, name_or_id: str | int) -> Summary:
        """Return an experiment's summary after its run here has ended; at once if it does not run here."""
        row = await self._row(name_or_id)
        await self._supervisor.ended(row.id)
        return await self.summary(row.id)

    async def summary(self, name_or_id: str | int) -> Summary:
        """Return an experiment's current summary."""
        row = await self._row(name_or_id)
        return await Summary.read(self.store, row)

    async def stop(self, name_or_id: str | int) -> Toggle:
        """Stop an experiment for the user, on whichever replica it runs.

        Nothing new starts, and jobs in flight may finish.
        """
        row = await self._row(name_or_id)
        toggled = await self.store.claims.stop(row.id, actor())
        run = self._dispatcher.runs.get(row.id)
        if toggled is Toggle.DONE and run is not None:
            run.stopped_elsewhere()
        return toggled

    async def delete(self, name_or_id: str | int, *, force: bool = False) -> None:
        """Delete an experiment for the user, with its rows, results and log; a run is stopped first, wherever it is.

        Wait for the end of that run, for at most `STALE_SECONDS`; with `force` only for a run of this runner.
        Later results of another replica are refused. Raise `CoolingDown` shortly after a resume, and `ClaimedElsewhere`
        where somebody has resumed it meanwhile.
        """
        row = await self._row(name_or_id)
        if row.id in self._dispatcher.runs:
            if row.status is Status.RUNNING and await self.stop(row.id) is Toggle.COOLING:
                raise CoolingDown(row.name)
            await self._supervisor.ended(row.id)
            row = await self._row(row.id)
        await stop_and_delete(self.store, row, force=force, patience=STALE_SECONDS)
        self._claim_service.forget(row.name)

    def leave(self, number: int) -> None:
        """Stop a run of this runner for its owner, without a cool-down; the experiment is STOPPED at the end.

        The call does nothing if the experiment does not run here.
        """
        run = self._runs.get(number)
        if run is not None:
            run.leave()

    async def resume(self, name_or_id: str | int) -> Toggle:
        """Resume an experiment here for the user, including failed and parked items.

        Raise `CannotLoad` if its code or a named credential is missing here, and `ConfigurationError` for a budget with
        `batch`; nothing has changed then.
        """
        return await self._claim_service.resume(await self._row(name_or_id))

    def progress(self, name_or_id: str | int) -> Progress | None:
        """Return the progress of an experiment that runs here; None for any other."""
        for number, run in self._runs.items():
            if name_or_id in (number, run.experiment.name):
                return run.progress()
        return None

    def subscribe(self, experiment: Experiment | str | int) -> Subscription:
        """Return the events of an experiment from now on; by name, this works before its start.

        The stream ends with the experiment's run. For the number of an experiment that does not run here, it ends at
        once.
        """
        made = self._hub.subscribe(experiment.name if isinstance(experiment, Experiment) else experiment)
        if isinstance(experiment, int) and experiment not in self._runs:
            made.close()
        return made

    async def shutdown(self, grace: float | None = None) -> None:
        """Stop dispatching, let jobs in flight finish for `grace` seconds, and keep the claims.

        A restart or another replica continues the experiments. Every finished result is durable on return, unless the
        database is away for longer than `write_grace` seconds. A second call waits for the same end.
        """
        async with self._opening:
            self._closed = True
            if not self._opened:
                return
            if self._ending is None:
                self._ending = asyncio.get_running_loop().create_task(self._end(grace))
        await asyncio.shield(self._ending)

    def hasten(self) -> None:
        """End all grace periods: cancel the jobs in flight now."""
        for run in list(self._runs.values()):
            run.cancel()

    @property
    def saved(self) -> Path | None:
        """Return the copy of an SQLite file that was lost while experiments ran here; None if there is none."""
        return self._lost_file.saved if self._opened else None

    @property
    def _runs(self) -> Mapping[int, ExperimentRun]:
        """Return the runs that are here; none before the database is open."""
        return self._dispatcher.runs if self._opened else {}

    async def _end(self, grace: float | None) -> None:
        try:
            self._claim_service.closed = True
            await self._heartbeat.stop_scans()
            self._dispatcher.stop()
            for run in list(self._dispatcher.runs.values()):
                run.drain(None, "shut down", grace)
            grace = self.settings.grace if grace is None else grace
            await self._finish(grace + CANCEL_GRACE_SECONDS + WRITE_GRACE_SECONDS)
            await self._heartbeat.stop()
        finally:
            self._hub.end_all()
            await self.store.close()

    async def _finish(self, patience: float) -> None:
        """Wait for draining runs and their results; work that a lost database delays longer is left to be repeated."""
        late: set[asyncio.Task[None]] = set()
        if self._supervisor.tasks:
            _, late = await asyncio.wait(list(self._supervisor.tasks.values()), timeout=patience)
        for task in late:
            task.cancel()
        if late:
            logger.error(
                "shutdown out of time: after %g s %d runs have not ended and %d results are not written; "
                "the next run repeats the work without a written result",
                patience,
                len(late),
                self._writer.waiting,
            )
            await asyncio.wait(late, timeout=CANCEL_GRACE_SECONDS)
            await self._writing.stop(CANCEL_GRACE_SECONDS)
        else:
            self._writer.close()
            await stop_within(WRITE_GRACE_SECONDS, self._writing.task, "result writer")

    def _begin(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        settings = self.settings
        self.store = store
        exit_children(loop)
        self._dispatcher = Dispatcher(loop)
        wake = self._dispatcher.wake
        registry = self._registry if self._registry is not None else default_registry()
        fair_queue = FairQueue()
        self._writer = ResultWriter(store, batch=settings.batch, on_room=self._dispatcher.on_room)
        gates = KeyGates(registry, fair_queue, loop, wake, random.random)
        shared = RunnerContext(
            store, registry, settings, loop, fair_queue, gates, self._writer, self._hub, wake,
            FunctionLimit(settings.max_concurrency, loop.time, self._dispatcher.wake_from_thread),
        )  # fmt: skip
        self._dispatcher.serve(shared)
        self._lost_file = LostFile(store)
        self._supervisor = RunSupervisor(shared, self._dispatcher, self._lost_file, self._reports_changes)
        self._claim_service = ClaimService(store, self._supervisor, self.replica, settings, self._restore)
        # It still holds its results, whatever ends the task.
        self._writing = BackgroundTask(loop, self._writer.run, "result writer")
        service = self._claim_service
        recover, join = (service.claim_orphan, service.join) if self._recovers else (None, None)
        self._heartbeat = Heartbeat(
            store, self.replica, self._dispatcher.runs, recover, random.random, self._lost_file, join
        )
        self._heartbeat.start()

    async def _row(self, name_or_id: str | int) -> ExperimentRow:
        await self.open()
        row = await self.store.experiments.find(name_or_id)
        if row is None:
            raise UnknownExperiment(name_or_id)
        return row


async def _execute(experiment: Experiment, url: str, limit: int | None) -> Summary:
    async with ExperimentRunner(url, recover=False) as runner:
        return await runner.run(experiment, limit=limit)


Experiment._execute = _execute
