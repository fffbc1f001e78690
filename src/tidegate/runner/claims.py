"""Claims on experiments, and supervision of the claimed runs.

Theory of operation. An experiment is claimed by a user's start or resume, or as an orphan of a dead replica. One call
at a time claims a given experiment. An experiment that cannot run is not claimed. If a step fails after the claim, the
claim is released with the reason, so no replica must wait until it is stale. A caller that is cancelled changes
nothing: its claim is released and the earlier state restored. Each run is one task, from its claim until its end is
recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from tidegate.errors import (
    CannotLoad,
    ClaimedElsewhere,
    CoolingDown,
    LeaseLost,
    StoppedElsewhere,
    StoreError,
    UnknownExperiment,
)
from tidegate.runner.background import BackgroundTask, retry_while_unavailable, stop_within
from tidegate.runner.context import RunnerContext
from tidegate.runner.dispatcher import Dispatcher
from tidegate.runner.events import StateChanged
from tidegate.runner.experiment import Experiment
from tidegate.runner.feeder import Feeder, ingest
from tidegate.runner.lost_file import LostFile
from tidegate.runner.redaction import redacted
from tidegate.runner.replica import gone, owner, stopper
from tidegate.runner.result_handler import ResultHandler
from tidegate.runner.run import ExperimentRun
from tidegate.runner.run_state import RunPhase
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.threads import in_thread
from tidegate.storage import Claim, ExperimentRow, LoggedLine, Status, Store, Toggle
from tidegate.storage.results import KEPT_LINES

logger = logging.getLogger("tidegate")


class RunSupervisor:
    """Supervisor of all runs of one runner; `running` maps experiment numbers to the runs that have not ended."""

    def __init__(self, shared: RunnerContext, dispatcher: Dispatcher, lost_file: LostFile) -> None:
        self.running = dispatcher.running
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._shared = shared
        self._dispatcher = dispatcher
        self._lost_file = lost_file

    def fit(self) -> None:
        """Raise `RuntimeError` if a shared component is broken, so that a run could make no progress."""
        broken = self._dispatcher.broken or self._shared.writer.broken
        if broken is not None:
            raise RuntimeError(
                "runner is broken: its dispatcher or its writer has failed; make another runner"
            ) from broken

    def begin(self, experiment: Experiment, row: ExperimentRow, claim: Claim, *, again: bool) -> None:
        """Run a claimed experiment; `row` is its state under that claim."""
        running = ExperimentRun(self._shared, experiment, claim, again=again)
        running.conclude = ResultHandler(running).conclude
        self.running[row.id] = running
        self.tasks[row.id] = self._shared.loop.create_task(self._live(running, row))

    async def ended(self, number: int) -> None:
        """Wait for the end of a local run; return at once if there is none."""
        life = self.tasks.get(number)
        if life is not None:
            # A shutdown may cancel the run's task; `wait` does not pass that cancellation on to the caller.
            await asyncio.wait({life})

    async def let_end(self, number: int) -> None:
        """Wait for the end of a run that is draining: an experiment runs once at a time."""
        running = self.running.get(number)
        if running is not None and running.phase is not RunPhase.LIVE:
            await self.ended(number)

    async def _live(self, running: ExperimentRun, row: ExperimentRow) -> None:
        background: list[BackgroundTask] = []
        status: Status | None = None
        try:
            try:
                await self._begin(running, row, background)
            except Exception as error:
                reason = type(error).__name__
                logger.exception("experiment %s not started: %s was raised; it ends with ERROR", row.name, reason)
                running.fail(error)
            await running.drained
            status = await self._written_end(running)
        finally:
            try:
                await self._close(running, row, background, status)
            finally:
                # The next run of the experiment waits until here, so only this run's resources and streams are closed.
                self.running.pop(row.id, None)
                self.tasks.pop(row.id, None)

    async def _close(
        self, running: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask], status: Status | None
    ) -> None:
        running.phase = RunPhase.ENDED
        grace = self._shared.settings.cancel_grace
        for each in background:
            await each.stop(grace)
        await stop_within(grace, running.experiment.aclose(), f"experiment {row.name}: close of its resources")
        await self._told_end(running, status)

    async def _begin(self, running: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask]) -> None:
        loop, name = self._shared.loop, row.name
        if running.claim.epoch > 1:
            await self._count(running, row)
        if not running.live:
            return
        running.begin()
        feeder = Feeder(running, complete=row.complete)
        background.append(BackgroundTask(loop, feeder.feed(), f"experiment {name}: feeder", running.fail, ENDS))
        if not row.complete:
            reading = ingest(running, feeder, running.experiment.dataset, row.dataset_id)
            what = f"experiment {name}: import of its dataset"
            background.append(BackgroundTask(loop, reading, what, running.fail, ENDS))

    async def _count(self, running: ExperimentRun, row: ExperimentRow) -> None:
        """Add the results of earlier runs to the progress."""
        try:
            counts = await self._shared.store.counts(row.id)
        except StoreError as error:
            text = "experiment %s: earlier results not counted: %s; its progress shows only the results of this run"
            logger.warning(text, row.name, error)
            return
        running.tally.begin(counts, [stage.name for stage in running.stages], running.again)
        if row.complete:
            running.tally.rows, running.tally.all_rows = counts.rows, True

    async def _written_end(self, running: ExperimentRun) -> Status | None:
        """Record the end and release the claim if needed; return the new status, None if unknown."""
        await running.watermark.end()
        lost = await self._lost_file.at_end(running)
        try:
            return await self._released(running)
        finally:
            if lost:
                # The copy must include the end of this run.
                await self._lost_file.save()

    async def _released(self, running: ExperimentRun) -> Status | None:
        final = running.final
        if final is None:
            return None
        release = self._shared.store.release
        try:
            released = await retry_while_unavailable(
                lambda: release(running.claim, final, running.reason),
                f"experiment {running.experiment.name}: release of its claim",
            )
        except Exception as error:
            logger.exception(
                "experiment %s: end not written: %s was raised; any replica may claim it when this claim is stale",
                running.experiment.name,
                type(error).__name__,
            )
            return None
        return final if released else None

    async def _told_end(self, running: ExperimentRun, status: Status | None) -> None:
        if status is None:
            try:
                row = await self._shared.store.find(running.id)
                status = row.status if row is not None else None
            except Exception as error:
                logger.exception(
                    "experiment %s: status not read: %s was raised; its subscribers get no last status",
                    running.experiment.name,
                    type(error).__name__,
                )
        try:
            if status is not None:
                running.tell(StateChanged(status, running.reason))
        finally:
            self._shared.hub.end(running.id, running.experiment.name)


T = TypeVar("T")

MOST_KNOWN = 1000
"""Experiments kept in memory, the latest ones; others are restored from their source. Raising it uses more memory and
restores less often. Chosen: more than one process runs at a time."""

RESTORE_SECONDS = 60.0
"""Seconds that loading an orphan's code may take. Raising it makes later orphans wait longer for code that hangs.
Chosen: twice the 30 s that gunicorn gives a worker."""

UNDO_SECONDS = 5.0
"""Seconds that a cancelled caller waits for the release of its claim. Raising it delays the caller if the database is
away. Chosen: the release continues after that."""

SHUT_DOWN = "runner closed: it was shut down; make another runner"

ENDS = "the run ends with ERROR"
"""What a log line says of a call of `ExperimentRun.fail`."""

Restore: TypeAlias = Callable[[Mapping[str, Any]], Experiment]
"""Function that makes an experiment from its stored spec; raises `CannotLoad` if code or a credential is missing here.
"""


FOLLOW_SECONDS = 1.0
"""Seconds between two checks of an experiment that another replica runs, or a heartbeat if that is shorter. Raising it
saves queries and notices the end later. Chosen: a person waits for the end."""


class ClaimService:
    """Service that claims experiments for `replica` and runs them through `supervisor`."""

    def __init__(
        self, store: Store, supervisor: RunSupervisor, replica: str, settings: RunnerSettings, restore: Restore
    ) -> None:
        self.closed = False
        self._store = store
        self._supervisor = supervisor
        self._replica = replica
        self._stale_after = settings.stale_after
        self._look_every = min(settings.heartbeat, FOLLOW_SECONDS)
        self._restore = restore
        self._known: OrderedDict[str, Experiment] = OrderedDict()
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def start(self, experiment: Experiment, *, follow: bool) -> int:
        """Start an experiment as `ExperimentRunner.start` does; its dataset exists."""
        self._supervisor.fit()
        row = await self._store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
        before: tuple[ExperimentRow, float] | None = None
        while not await self._started(experiment, row):
            row = await self._row(row.id)
            if row.status is Status.RUNNING:
                # The lock is not held here, so the orphan scan and a resume can proceed.
                seen_at = asyncio.get_running_loop().time()
                await self._await_owner(row, before, seen_at, follow=follow)
                before = row, seen_at
                row = await self._row(row.id)
            if row.status is Status.STOPPED:
                raise StoppedElsewhere(row.name, stopper(row, await self._log(row)))
        return row.id

    async def resume(self, row: ExperimentRow) -> Toggle:
        """Resume an experiment as `ExperimentRunner.resume` does."""
        self._supervisor.fit()
        experiment = await self._restored(row)
        async with self._one_at_a_time(row.id):
            await self._supervisor.let_end(row.id)
            return await _seen_through(partial(self._resumed, experiment, row))

    async def take_up(self, number: int) -> None:
        """Claim an orphan and continue it.

        Raise `CannotLoad` if its code or credentials are missing here. In that case nothing has changed: its owner may
        only be suspended, and another replica may have the code.
        """
        self._supervisor.fit()
        async with self._one_at_a_time(number):
            row = await self._store.find(number)
            if row is None or number in self._supervisor.running:
                return
            experiment = await self._loaded(row)
            claim = await self._store.claim(number, self._replica, self._stale_after)
            if claim is None:
                return
            what = f"experiment {row.name}: read of its state"
            now = await retry_while_unavailable(partial(self._row, number), what)
            if now.spec != row.spec:
                # The experiment was changed while its code was loaded. No heartbeat renews this claim, so a later scan
                # finds it stale.
                text = "experiment %s not taken up: it changed while its code was loaded; a later scan takes it up"
                logger.info(text, row.name)
                return
            await self._run(experiment, claim, row, asyncio.Event(), again=False)

    async def _loaded(self, row: ExperimentRow) -> Experiment:
        """Return the experiment of an orphan. Raise `CannotLoad` for any problem with its code."""
        try:
            async with asyncio.timeout(RESTORE_SECONDS):
                return await self._restored(row)
        except CannotLoad as error:
            raise CannotLoad(error.source, error.reason, experiment=row.name) from error
        except TimeoutError as error:
            reason = f"its code did not load within {RESTORE_SECONDS:g} s"
            raise CannotLoad(str(row.spec.get("source")), reason, experiment=row.name) from error
        except Exception as error:
            raise CannotLoad(str(row.spec.get("source")), redacted(error), experiment=row.name) from error

    def _one_at_a_time(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    async def _started(self, experiment: Experiment, row: ExperimentRow) -> bool:
        """Claim and run an experiment for a user; return False if another replica has it."""
        async with self._one_at_a_time(row.id):
            running = self._supervisor.running.get(row.id)
            if running is not None and running.live:
                return True
            await self._supervisor.let_end(row.id)
            return await _seen_through(partial(self._start_once, experiment, row))

    async def _await_owner(
        self, row: ExperimentRow, before: tuple[ExperimentRow, float] | None, seen_at: float, *, follow: bool
    ) -> None:
        """Wait until the state of an experiment that another replica runs should be read again.

        Without `follow`, raise `ClaimedElsewhere` once that replica has renewed its claim since `before` was read.
        """
        quiet = row.quiet or 0.0
        same = before is not None and before[0].epoch == row.epoch
        if not follow and before is not None and (not same or quiet < _quiet_now(before, seen_at)):
            raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet, owner(row, await self._log(row)))
        if follow and not same:
            by = owner(row, await self._log(row))
            logger.info("experiment %s not started: it is run by %s; waiting for the end of that run", row.name, by)
        # The claim becomes stale at a known instant unless it is renewed before.
        await asyncio.sleep(min(self._look_every, max(0.0, self._stale_after - quiet) + 0.01))
        if self.closed:
            raise RuntimeError(SHUT_DOWN)

    async def _log(self, row: ExperimentRow) -> list[LoggedLine]:
        return await self._store.last_logs(row.id, KEPT_LINES)

    async def _start_once(self, experiment: Experiment, row: ExperimentRow, left: asyncio.Event) -> bool:
        claim = await self._claimed(row)
        if claim is not None:
            await self._run(experiment, claim, row, left, again=True)
        return claim is not None

    async def _resumed(self, experiment: Experiment, row: ExperimentRow, left: asyncio.Event) -> Toggle:
        answer = await self._store.resume(row.id, self._replica)
        if isinstance(answer, Toggle):
            return answer
        await self._run(experiment, answer, row, left, again=True)
        return Toggle.DONE

    async def _run(
        self, experiment: Experiment, claim: Claim, before: ExperimentRow, left: asyncio.Event, *, again: bool
    ) -> None:
        """Run a claimed experiment; if the caller has `left`, restore the state `before` instead."""
        try:
            # The state is read under the claim, because another replica may have changed it before.
            name = f"experiment {experiment.name}"
            row = await retry_while_unavailable(partial(self._row, claim.experiment_id), f"{name}: read of its state")
            changed = dict(row.spec) != experiment.spec() or row.repetitions != experiment.repetitions
            amended = again and changed and not left.is_set()
            if amended:
                amend = partial(self._store.amend, claim, experiment.spec(), experiment.repetitions)
                await retry_while_unavailable(amend, f"{name}: write of its changes")
                claim = Claim(claim.experiment_id, claim.replica, claim.epoch)
            if self.closed:
                # At a shutdown the claim is kept, as for running experiments.
                raise RuntimeError(SHUT_DOWN)
            if left.is_set():
                if amended:
                    back = partial(self._store.amend, claim, dict(row.spec), row.repetitions)
                    await retry_while_unavailable(back, f"{name}: undo of its changes")
                # A run of a dead replica has no owner now, so its experiment becomes STOPPED.
                was = before.status if before.status is not Status.RUNNING else Status.STOPPED
                await retry_while_unavailable(
                    partial(self._store.release, claim, was, before.last_error), f"{name}: release of its claim"
                )
                return
            self._known[experiment.name] = experiment
            self._known.move_to_end(experiment.name)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
            self._supervisor.begin(experiment, row, claim, again=again)
        except Exception as error:
            if not self.closed and not isinstance(error, LeaseLost):
                await self._give_back(claim, Status.ERROR, redacted(error))
            raise

    async def _restored(self, row: ExperimentRow) -> Experiment:
        # An import may take seconds; in the event loop it would block the renewal of claims.
        known = self._known.get(row.name)
        return known if known is not None else await in_thread(partial(self._restore, row.spec))

    async def _give_back(self, claim: Claim, status: Status, reason: str) -> None:
        what = f"experiment {claim.experiment_id}: release of its claim"
        await retry_while_unavailable(partial(self._store.release, claim, status, reason), what)

    async def _claimed(self, row: ExperimentRow) -> Claim | None:
        """Return a claim for a user's request; None if another replica has it."""
        if row.status in (Status.READY, Status.RUNNING):
            stale_after = 0.0 if gone(row.claimed_by) else self._stale_after
            return await self._store.claim(row.id, self._replica, stale_after)
        answer = await self._store.resume(row.id, self._replica)
        if answer is Toggle.COOLING:
            raise CoolingDown(row.name)
        return answer if isinstance(answer, Claim) else None

    async def _row(self, number: int) -> ExperimentRow:
        row = await self._store.find(number)
        if row is None:
            raise UnknownExperiment(number)
        return row


def _quiet_now(before: tuple[ExperimentRow, float], now: float) -> float:
    """Return the seconds since the last renewal if none happened since `before`, with 10 % tolerance."""
    row, seen_at = before
    return (row.quiet or 0.0) + 0.9 * (now - seen_at)


async def _seen_through(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `work`. If the caller is cancelled, set the event that `work` received and let it finish."""
    left = asyncio.Event()
    task = asyncio.get_running_loop().create_task(work(left))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        left.set()
        await stop_within(UNDO_SECONDS, asyncio.shield(task), "release of a claim")
        raise
