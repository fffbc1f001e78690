"""`ExperimentRunner`: runs experiments for as long as the process lives, several at once, in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidegate.default import registry as default_registry
from tidegate.errors import CannotLoad, ClaimedElsewhere, CoolingDown, StoreError, UnknownExperiment
from tidegate.registries import RateLimitRegistry
from tidegate.runner.dispatch import Dispatcher
from tidegate.runner.experiment import Experiment
from tidegate.runner.feeding import Feeder
from tidegate.runner.floor import Floor
from tidegate.runner.gates import Gates
from tidegate.runner.ingest import ingest
from tidegate.runner.loading import restored
from tidegate.runner.ownership import Ownership
from tidegate.runner.patience import patiently
from tidegate.runner.progress import Progress, progress
from tidegate.runner.reading import missing
from tidegate.runner.redaction import redacted
from tidegate.runner.replica import gone, named
from tidegate.runner.roster import Roster
from tidegate.runner.running import Phase, Running
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.subscribers import Hub, StateChanged, Subscription
from tidegate.runner.summary import Summary
from tidegate.runner.writer import Writer
from tidegate.storage import Claim, ExperimentRow, Status, Store, Toggle

logger = logging.getLogger("tidegate")

Restore = Callable[[Mapping[str, Any]], Experiment]


class ExperimentRunner:
    """A replica: it claims experiments in the database at `url` and runs them; an asynchronous context manager.

    With `recover`, it also takes up the experiments of replicas that have died; `restore` then makes an experiment of
    its stored spec (by default from the file or module that the spec names). `registry` says which keys may go; by
    default the process's.
    """

    def __init__(
        self,
        url: str = "tidegate.db",
        *,
        registry: RateLimitRegistry | None = None,
        settings: RunnerSettings | None = None,
        recover: bool = True,
        restore: Restore = restored,
    ) -> None:
        self.url = url
        self.settings = settings if settings is not None else RunnerSettings()
        self.replica = named()
        self._registry = registry
        self._recovers = recover
        self._restore = restore
        self._hub = Hub(self.settings.buffer)
        self._known: dict[str, Experiment] = {}
        self._opening = asyncio.Lock()
        self._opened = self._closed = False
        self._lives: dict[int, asyncio.Task[None]] = {}
        # One experiment is started, resumed or taken up by one at a time.
        self._toggling: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __aenter__(self) -> ExperimentRunner:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    async def open(self) -> None:
        """Opens the database and begins to keep what is claimed; whatever needs it does so by itself."""
        async with self._opening:
            if self._closed:
                raise RuntimeError("this runner was shut down: make another one")
            if self._opened:
                return
            store = await Store.open(self.url)
            self._begin(store, asyncio.get_running_loop())
            self._opened = True

    async def start(self, experiment: Experiment) -> int:
        """Starts or goes on with an experiment; returns its number as soon as it is claimed.

        What is durable is kept; what failed or was parked is tried again. Raises `CannotRead` where its file is
        missing, `ClaimedElsewhere` where another replica runs it, and `CoolingDown` just after a user's stop.
        """
        await self.open()
        known = await self.store.find(experiment.name)
        if known is None or not known.complete:
            missing(experiment.dataset)
        self._known[experiment.name] = experiment
        row = await self.store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
        async with self._toggling[row.id]:
            running = self._dispatcher.running.get(row.id)
            if running is not None and running.live:
                return row.id
            claim = await self._claimed(row)
            if dict(row.spec) != experiment.spec() or row.repetitions != experiment.repetitions:
                await self.store.amend(claim, experiment.spec(), experiment.repetitions)
                claim = Claim(claim.experiment_id, claim.replica, claim.epoch)
            self._run(experiment, row, claim, again=True)
        return row.id

    async def run(self, experiment: Experiment) -> Summary:
        """Starts an experiment and returns how it went when it has ended, however that was."""
        number = await self.start(experiment)
        return await self.wait(number)

    async def wait(self, name_or_id: str | int) -> Summary:
        """How an experiment went, once its run here has ended; at once where it does not run here."""
        row = await self._row(name_or_id)
        life = self._lives.get(row.id)
        if life is not None:
            await asyncio.shield(life)
        return await self.summary(row.id)

    async def summary(self, name_or_id: str | int) -> Summary:
        """How an experiment stands now."""
        row = await self._row(name_or_id)
        return Summary(row, await self.store.counts(row.id), tuple(await self.store.scores(row.id)))

    async def stop(self, name_or_id: str | int) -> Toggle:
        """The user's stop, whichever replica runs it: nothing new is started, what is under way may finish."""
        row = await self._row(name_or_id)
        toggled = await self.store.stop(row.id)
        running = self._dispatcher.running.get(row.id)
        if toggled is Toggle.DONE and running is not None:
            running.drain(None, "stopped")
        return toggled

    def leave(self, number: int) -> None:
        """Stops a run of this runner by its owner's own right: no cool-down is asked; it is STOPPED once it has ended.

        Does nothing where it does not run here.
        """
        running = self._dispatcher.running.get(number)
        if running is not None:
            running.drain(Status.STOPPED, None)

    async def resume(self, name_or_id: str | int) -> Toggle:
        """The user's resume: goes on here, with what failed or was parked as well.

        Raises `CannotLoad` where its code, or a credential that it names, is not here: nothing has changed then.
        """
        row = await self._row(name_or_id)
        experiment = self._known.get(row.name) or self._restore(row.spec)
        async with self._toggling[row.id]:
            await self._let_end(row.id)
            answer = await self.store.resume(row.id, self.replica)
            if isinstance(answer, Toggle):
                return answer
            self._known[row.name] = experiment
            self._run(experiment, row, answer, again=True)
        return Toggle.DONE

    def progress(self, name_or_id: str | int) -> Progress | None:
        """How far an experiment is that runs here; None for any other."""
        for number, running in self._dispatcher.running.items():
            if name_or_id in (number, running.experiment.name):
                return progress(running)
        return None

    def subscribe(self, experiment: Experiment | str | int) -> Subscription:
        """What happens to an experiment from now on; also before it is started, by its name. Ends with its run."""
        return self._hub.subscribe(experiment.name if isinstance(experiment, Experiment) else experiment)

    async def shutdown(self, grace: float | None = None) -> None:
        """Starts nothing more, lets what is under way finish for `grace` seconds, and keeps the claims: a restart, or
        another replica, goes on. Every finished result is durable when it returns, unless the database is away for
        longer than `write_grace` seconds.
        """
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            if not self._opened:
                return
        await self._ownership.stop_looking()
        self._dispatcher.stop()
        for running in list(self._dispatcher.running.values()):
            running.drain(None, "shut down", grace)
        grace = self.settings.grace if grace is None else grace
        await self._finish(grace + self.settings.cancel_grace + self.settings.write_grace)
        await self._ownership.stop()
        self._hub.end_all()
        await self.store.close()

    def hasten(self) -> None:
        """Ends the grace of whatever is finishing: what is still under way is cancelled now."""
        for running in list(self._dispatcher.running.values()):
            running.cancel()

    async def _finish(self, patience: float) -> None:
        """Waits for what is draining and for its results; what a lost database holds up longer is left to be redone."""
        late: set[asyncio.Task[None]] = set()
        if self._lives:
            _, late = await asyncio.wait(list(self._lives.values()), timeout=patience)
        self._writer.close()
        if late:
            logger.error("the database is away: %d results could not be written", self._writer.waiting)
            late.add(self._writing)
        for task in late:
            task.cancel()
        await asyncio.gather(self._writing, *late, return_exceptions=True)

    def _begin(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        settings = self.settings
        self.store = store
        self._loop = loop
        self._dispatcher = Dispatcher(loop)
        poke = self._dispatcher.poke
        registry = self._registry if self._registry is not None else default_registry()
        roster = Roster()
        self._writer = Writer(
            store, batch=settings.batch, batch_seconds=settings.batch_seconds, bound=settings.unwritten, roomy=poke
        )
        gates = Gates(registry, roster, loop, poke, random.random)
        self._floor = Floor(
            store, registry, settings, loop, roster, gates, self._writer, self._hub, random.random, poke,
            settings.max_concurrency,
        )  # fmt: skip
        self._dispatcher.serve(self._floor)
        self._writing = loop.create_task(self._writer.run())
        recover = self._take_up if self._recovers else None
        self._ownership = Ownership(store, self.replica, settings, self._dispatcher.running, recover, random.random)
        self._ownership.start()

    def _run(self, experiment: Experiment, row: ExperimentRow, claim: Claim, *, again: bool) -> None:
        """Registers a claimed experiment; its life is one task. One that comes too late keeps its claim."""
        if self._closed:
            raise RuntimeError("this runner was shut down: make another one")
        running = Running(self._floor, experiment, claim, left_over=row.epoch > 0, again=again)
        self._dispatcher.running[row.id] = running
        self._lives[row.id] = self._loop.create_task(self._live(running, row))

    async def _live(self, running: Running, row: ExperimentRow) -> None:
        feeder = Feeder(running, complete=row.complete)
        if row.epoch > 0:
            await self._count(running, row)
        reading: asyncio.Task[None] | None = None
        if running.live:
            running.begin()
            feeder.start()
        if running.live and not row.complete:
            reading = self._loop.create_task(ingest(running, feeder, running.experiment.dataset, row.dataset_id))
        status: Status | None = None
        try:
            status = await running.ended
        finally:
            await feeder.stop()
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            self._dispatcher.running.pop(row.id, None)
            self._lives.pop(row.id, None)
            await _let_go(running.experiment)
            await self._told_end(running, status)

    async def _count(self, running: Running, row: ExperimentRow) -> None:
        """How far an earlier run came, for those who watch."""
        try:
            counts = await self.store.counts(row.id)
        except StoreError:
            logger.warning("experiment %s: how far it is could not be read", row.name)
            return
        running.tally.begin(counts, running.stages, running.again)
        if row.complete:
            running.tally.rows, running.tally.all_rows = counts.rows, True

    async def _told_end(self, running: Running, status: Status | None) -> None:
        if status is None:
            try:
                row = await self.store.find(running.id)
                status = row.status if row is not None else None
            except Exception:
                logger.exception("experiment %s: how it stands could not be read", running.experiment.name)
        if status is not None:
            running.tell(StateChanged(status, running.reason))
        self._hub.end(running.id, running.experiment.name)

    async def _row(self, name_or_id: str | int) -> ExperimentRow:
        await self.open()
        row = await self.store.find(name_or_id)
        if row is None:
            raise UnknownExperiment(name_or_id)
        return row

    async def _claimed(self, row: ExperimentRow) -> Claim:
        """A claim for a user who asks for it; a claim that goes stale soon is waited for, once."""
        await self._let_end(row.id)
        for last in (False, True):
            if row.status in (Status.READY, Status.RUNNING):
                stale_after = 0.0 if gone(row.claimed_by) else self.settings.stale_after
                claim = await self.store.claim(row.id, self.replica, stale_after)
                if claim is not None:
                    return claim
            else:
                answer = await self.store.resume(row.id, self.replica)
                if isinstance(answer, Claim):
                    return answer
                if answer is Toggle.COOLING:
                    raise CoolingDown(row.name)
            row = await self._row(row.id)
            if row.quiet is not None and not last:
                # It is stale at a known instant, unless somebody renews it until then.
                await asyncio.sleep(max(0.0, self.settings.stale_after - row.quiet) + 0.01)
        raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet)

    async def _let_end(self, number: int) -> None:
        """A run that is draining here ends first: one experiment runs once."""
        running = self._dispatcher.running.get(number)
        life = self._lives.get(number)
        if running is not None and life is not None and running.phase is not Phase.LIVE:
            await asyncio.shield(life)

    async def _take_up(self, number: int) -> None:
        """Claims an orphan and goes on with it; one whose code or credentials are not here is blocked, and says why."""
        row = await self.store.find(number)
        if row is None:
            return
        async with self._toggling[number]:
            if number in self._dispatcher.running:
                return
            await self._take_over(row)

    async def _take_over(self, row: ExperimentRow) -> None:
        claim = await self.store.claim(row.id, self.replica, self.settings.stale_after)
        if claim is None:
            return
        try:
            known = self._known.get(row.name)
            experiment = known if known is not None else await asyncio.to_thread(self._restore, row.spec)
        except Exception as error:
            reason = str(error) if isinstance(error, CannotLoad) else redacted(error)
            logger.warning("experiment %s is blocked: %s", row.name, reason)
            await patiently(partial(self.store.release, claim, Status.BLOCKED, reason), "the end of a run")
            return
        self._run(experiment, row, claim, again=False)


async def _let_go(experiment: Experiment) -> None:
    try:
        await experiment.aclose()
    except Exception:
        logger.exception("experiment %s: what it held could not be closed", experiment.name)
