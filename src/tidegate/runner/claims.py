"""The ways of a replica to an experiment: by a user's start or resume, or as an orphan of a replica that has died.

One experiment is taken by one at a time. Nothing is claimed that cannot be run: where something fails after the claim,
the claim is given back with the reason, so that nobody waits for it to go stale. A user who is cancelled meanwhile has
changed nothing: what he had claimed by then is given back as it was.

The lives of the runs of one runner: each is one task, from its claim to what is written of its end.
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
    """All of them; `running` has the runs that have not ended, by the numbers of their experiments."""

    def __init__(self, shared: RunnerContext, dispatcher: Dispatcher, lost_file: LostFile) -> None:
        self.running = dispatcher.running
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._shared = shared
        self._dispatcher = dispatcher
        self._lost_file = lost_file

    def fit(self) -> None:
        """Raises `RuntimeError` where a run would only stand still: where what all runs share is broken."""
        broken = self._dispatcher.broken or self._shared.writer.broken
        if broken is not None:
            raise RuntimeError("this runner is broken: make another one") from broken

    def begin(self, experiment: Experiment, row: ExperimentRow, claim: Claim, *, again: bool) -> None:
        """Runs a claimed experiment; `row` is how it stood under that claim."""
        running = ExperimentRun(self._shared, experiment, claim, again=again)
        running.conclude = ResultHandler(running).conclude
        self.running[row.id] = running
        self.tasks[row.id] = self._shared.loop.create_task(self._live(running, row))

    async def ended(self, number: int) -> None:
        """Waits for the end of a run that is here; at once where there is none."""
        life = self.tasks.get(number)
        if life is not None:
            # A shutdown may cancel it: that is no cancellation of whoever waits here.
            await asyncio.wait({life})

    async def let_end(self, number: int) -> None:
        """A run that is draining ends first: one experiment runs once."""
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
                logger.exception("experiment %s could not begin", row.name)
                running.fail(error)
            await running.drained
            status = await self._written_end(running)
        finally:
            try:
                await self._close(running, row, background, status)
            finally:
                # Until now the next run of it waits: what is closed and whose streams end is this one's.
                self.running.pop(row.id, None)
                self.tasks.pop(row.id, None)

    async def _close(
        self, running: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask], status: Status | None
    ) -> None:
        running.phase = RunPhase.ENDED
        grace = self._shared.settings.cancel_grace
        for each in background:
            await each.stop(grace)
        await stop_within(grace, running.experiment.aclose(), f"experiment {row.name}: closing what it held")
        await self._told_end(running, status)

    async def _begin(self, running: ExperimentRun, row: ExperimentRow, background: list[BackgroundTask]) -> None:
        loop, name = self._shared.loop, row.name
        if running.claim.epoch > 1:
            await self._count(running, row)
        if not running.live:
            return
        running.begin()
        feeder = Feeder(running, complete=row.complete)
        background.append(BackgroundTask(loop, feeder.feed(), f"experiment {name}: feeding it", running.fail))
        if not row.complete:
            reading = ingest(running, feeder, running.experiment.dataset, row.dataset_id)
            background.append(BackgroundTask(loop, reading, f"experiment {name}: reading its dataset", running.fail))

    async def _count(self, running: ExperimentRun, row: ExperimentRow) -> None:
        """Tell those who watch how far an earlier run came."""
        try:
            counts = await self._shared.store.counts(row.id)
        except StoreError:
            logger.warning("experiment %s: how far it is could not be read", row.name)
            return
        running.tally.begin(counts, [stage.name for stage in running.stages], running.again)
        if row.complete:
            running.tally.rows, running.tally.all_rows = counts.rows, True

    async def _written_end(self, running: ExperimentRun) -> Status | None:
        """Gives the claim back, where that is to be done; the status that it has then, None where that is not known."""
        await running.watermark.end()
        lost = await self._lost_file.at_end(running)
        try:
            return await self._released(running)
        finally:
            if lost:
                # With its end in it.
                await self._lost_file.save()

    async def _released(self, running: ExperimentRun) -> Status | None:
        final = running.final
        if final is None:
            return None
        release = self._shared.store.release
        try:
            released = await retry_while_unavailable(
                lambda: release(running.claim, final, running.reason), "the end of a run"
            )
        except Exception:
            logger.exception("experiment %s: its end could not be written", running.experiment.name)
            return None
        return final if released else None

    async def _told_end(self, running: ExperimentRun, status: Status | None) -> None:
        if status is None:
            try:
                row = await self._shared.store.find(running.id)
                status = row.status if row is not None else None
            except Exception:
                logger.exception("experiment %s: how it stands could not be read", running.experiment.name)
        try:
            if status is not None:
                running.tell(StateChanged(status, running.reason))
        finally:
            self._shared.hub.end(running.id, running.experiment.name)


T = TypeVar("T")

MOST_KNOWN = 1000
"""Experiments whose functions are remembered, the last ones: others are restored from where their code is."""

RESTORE_SECONDS = 60.0
"""For which the code of an orphan may take to load: the next ones wait behind it (gunicorn gives a worker 30 s)."""

UNDO_SECONDS = 5.0
"""For which a cancelled user waits until what he had claimed is given back; it is, also without him."""

SHUT_DOWN = "this runner was shut down: make another one"

Restore: TypeAlias = Callable[[Mapping[str, Any]], Experiment]
"""Makes an experiment of its stored spec; raises `CannotLoad` where its code or a credential is not here."""


FOLLOW_SECONDS = 1.0
"""Between two looks at an experiment that another replica runs: longer costs fewer queries, and notices its end later.
A heartbeat where that is shorter."""


class ClaimService:
    """Claims experiments for `replica`, and has them run as `supervisor`."""

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
        """As `ExperimentRunner.start`, whose dataset is there."""
        self._supervisor.fit()
        row = await self._store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
        before: tuple[ExperimentRow, float] | None = None
        while not await self._started(experiment, row):
            row = await self._row(row.id)
            if row.status is Status.RUNNING:
                # Not under the lock: the look for orphans, and a resume, go on meanwhile.
                seen_at = asyncio.get_running_loop().time()
                await self._await_owner(row, before, seen_at, follow=follow)
                before = row, seen_at
                row = await self._row(row.id)
            if row.status is Status.STOPPED:
                raise StoppedElsewhere(row.name, stopper(row, await self._log(row)))
        return row.id

    async def resume(self, row: ExperimentRow) -> Toggle:
        """As `ExperimentRunner.resume`."""
        self._supervisor.fit()
        experiment = await self._restored(row)
        async with self._one_at_a_time(row.id):
            await self._supervisor.let_end(row.id)
            return await _seen_through(partial(self._resumed, experiment, row))

    async def take_up(self, number: int) -> None:
        """Claim an orphan and go on with it.

        Raises `CannotLoad` where its code or credentials are not here. Nothing has changed then: its owner may only
        sleep, and another replica may have the code.
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
            now = await retry_while_unavailable(partial(self._row, number), "an experiment")
            if now.spec != row.spec:
                # It was changed while its code was loaded. Unrenewed, this claim is stale for the next look.
                logger.info("experiment %s was changed meanwhile: it is taken up later", row.name)
                return
            await self._run(experiment, claim, row, asyncio.Event(), again=False)

    async def _loaded(self, row: ExperimentRow) -> Experiment:
        """The experiment of an orphan. Raises `CannotLoad` for whatever is wrong with its code."""
        try:
            async with asyncio.timeout(RESTORE_SECONDS):
                return await self._restored(row)
        except CannotLoad as error:
            raise CannotLoad(error.source, error.reason, experiment=row.name) from error
        except TimeoutError as error:
            reason = f"its code has not loaded within {RESTORE_SECONDS:g} s"
            raise CannotLoad(str(row.spec.get("source")), reason, experiment=row.name) from error
        except Exception as error:
            raise CannotLoad(str(row.spec.get("source")), redacted(error), experiment=row.name) from error

    def _one_at_a_time(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    async def _started(self, experiment: Experiment, row: ExperimentRow) -> bool:
        """Claim it for a user who asks for it, and run it; False where another replica has it."""
        async with self._one_at_a_time(row.id):
            running = self._supervisor.running.get(row.id)
            if running is not None and running.live:
                return True
            await self._supervisor.let_end(row.id)
            return await _seen_through(partial(self._start_once, experiment, row))

    async def _await_owner(
        self, row: ExperimentRow, before: tuple[ExperimentRow, float] | None, seen_at: float, *, follow: bool
    ) -> None:
        """Wait until it is worth looking again at what another replica runs.

        Without `follow`, raise `ClaimedElsewhere` once that one has renewed its claim since `before` was seen.
        """
        quiet = row.quiet or 0.0
        same = before is not None and before[0].epoch == row.epoch
        if not follow and before is not None and (not same or quiet < _quiet_now(before, seen_at)):
            raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet, owner(row, await self._log(row)))
        if follow and not same:
            logger.info("experiment %s is run by %s: its end is awaited", row.name, owner(row, await self._log(row)))
        # It is stale at a known instant, unless it is renewed until then.
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
        """Runs what is claimed, unless whoever asked for it has `left`: then it is as it was `before`."""
        try:
            # How it stands is read under the claim: before it, another replica may have gone on.
            row = await retry_while_unavailable(partial(self._row, claim.experiment_id), "an experiment")
            changed = dict(row.spec) != experiment.spec() or row.repetitions != experiment.repetitions
            amended = again and changed and not left.is_set()
            if amended:
                amend = partial(self._store.amend, claim, experiment.spec(), experiment.repetitions)
                await retry_while_unavailable(amend, "an experiment")
                claim = Claim(claim.experiment_id, claim.replica, claim.epoch)
            if self.closed:
                # One that comes too late keeps its claim, as those that run do.
                raise RuntimeError(SHUT_DOWN)
            if left.is_set():
                if amended:
                    back = partial(self._store.amend, claim, dict(row.spec), row.repetitions)
                    await retry_while_unavailable(back, "an experiment")
                # What a dead replica ran nobody runs now.
                was = before.status if before.status is not Status.RUNNING else Status.STOPPED
                await retry_while_unavailable(
                    partial(self._store.release, claim, was, before.last_error), "the end of a run"
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
        # An import may take seconds, for which the loop would renew no claim.
        known = self._known.get(row.name)
        return known if known is not None else await in_thread(partial(self._restore, row.spec))

    async def _give_back(self, claim: Claim, status: Status, reason: str) -> None:
        await retry_while_unavailable(partial(self._store.release, claim, status, reason), "the end of a run")

    async def _claimed(self, row: ExperimentRow) -> Claim | None:
        """A claim for a user who asks for it; None where another replica has it."""
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
    """Seconds since the last renewal, if there was none since `before`; a tenth of the time between is tolerance."""
    row, seen_at = before
    return (row.quiet or 0.0) + 0.9 * (now - seen_at)


async def _seen_through(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `work`. A cancelled caller leaves it going on; the event that it was given says so."""
    left = asyncio.Event()
    task = asyncio.get_running_loop().create_task(work(left))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        left.set()
        await stop_within(UNDO_SECONDS, asyncio.shield(task), "giving a claim back")
        raise
