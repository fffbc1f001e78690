"""How a replica comes by an experiment: by a user's start or resume, or as an orphan of a replica that has died.

One experiment is taken by one at a time. Nothing is claimed that cannot be run: where something fails after the claim,
the claim is given back with the reason, so that nobody waits for it to go stale. A user who is cancelled meanwhile has
changed nothing: what he had claimed by then is given back as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from tidegate.errors import CannotLoad, ClaimedElsewhere, CoolingDown, LeaseLost, UnknownExperiment
from tidegate.runner.experiment import Experiment
from tidegate.runner.lives import Lives
from tidegate.runner.minding import within
from tidegate.runner.patience import patiently
from tidegate.runner.redaction import redacted
from tidegate.runner.replica import gone
from tidegate.runner.threads import in_thread
from tidegate.storage import Claim, ExperimentRow, Status, Store, Toggle

logger = logging.getLogger("tidegate")

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


class Taking:
    """Claims experiments for `replica`, and has them run as `lives`; `stale_after` is in seconds."""

    def __init__(self, store: Store, lives: Lives, replica: str, stale_after: float, restore: Restore) -> None:
        self.closed = False
        self._store = store
        self._lives = lives
        self._replica = replica
        self._stale_after = stale_after
        self._restore = restore
        self._known: OrderedDict[str, Experiment] = OrderedDict()
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def start(self, experiment: Experiment) -> int:
        """As `ExperimentRunner.start`, whose dataset is there."""
        self._lives.fit()
        row = await self._store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
        async with self._one_at_a_time(row.id):
            running = self._lives.running.get(row.id)
            if running is None or not running.live:
                await self._lives.let_end(row.id)
                await self._started(experiment, row)
        return row.id

    async def resume(self, row: ExperimentRow) -> Toggle:
        """As `ExperimentRunner.resume`."""
        self._lives.fit()
        experiment = await self._restored(row)
        async with self._one_at_a_time(row.id):
            await self._lives.let_end(row.id)
            return await _seen_through(partial(self._resumed, experiment, row))

    async def take_up(self, number: int) -> None:
        """Claims an orphan and goes on with it; one whose code or credentials are not here is blocked, and says why."""
        self._lives.fit()
        async with self._one_at_a_time(number):
            row = await self._store.find(number)
            if row is None or number in self._lives.running:
                return
            claim = await self._store.claim(number, self._replica, self._stale_after)
            if claim is None:
                return
            try:
                async with asyncio.timeout(RESTORE_SECONDS):
                    experiment = await self._restored(row)
            except Exception as error:
                reason = str(error) if isinstance(error, CannotLoad) else redacted(error)
                if isinstance(error, TimeoutError):
                    reason = f"its code has not loaded within {RESTORE_SECONDS:g} s"
                logger.warning("experiment %s is blocked: %s", row.name, reason)
                await self._give_back(claim, Status.BLOCKED, reason)
                return
            await self._run(experiment, claim, row, asyncio.Event(), again=False)

    def _one_at_a_time(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    async def _started(self, experiment: Experiment, row: ExperimentRow) -> None:
        """Claims it for a user who asks for it, and runs it; a claim that goes stale soon is waited for, once."""
        for last in (False, True):
            if await _seen_through(partial(self._start_once, experiment, row)):
                return
            row = await self._row(row.id)
            if row.quiet is not None and not last:
                # It is stale at a known instant, unless somebody renews it until then.
                await asyncio.sleep(max(0.0, self._stale_after - row.quiet) + 0.01)
        raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet)

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
            row = await patiently(partial(self._row, claim.experiment_id), "an experiment")
            changed = dict(row.spec) != experiment.spec() or row.repetitions != experiment.repetitions
            amended = again and changed and not left.is_set()
            if amended:
                amend = partial(self._store.amend, claim, experiment.spec(), experiment.repetitions)
                await patiently(amend, "an experiment")
                claim = Claim(claim.experiment_id, claim.replica, claim.epoch)
            if self.closed:
                # One that comes too late keeps its claim, as those that run do.
                raise RuntimeError(SHUT_DOWN)
            if left.is_set():
                if amended:
                    back = partial(self._store.amend, claim, dict(row.spec), row.repetitions)
                    await patiently(back, "an experiment")
                # What a dead replica ran nobody runs now.
                was = before.status if before.status is not Status.RUNNING else Status.STOPPED
                await patiently(partial(self._store.release, claim, was, before.last_error), "the end of a run")
                return
            self._known[experiment.name] = experiment
            self._known.move_to_end(experiment.name)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
            self._lives.begin(experiment, row, claim, again=again)
        except Exception as error:
            if not self.closed and not isinstance(error, LeaseLost):
                await self._give_back(claim, Status.ERROR, redacted(error))
            raise

    async def _restored(self, row: ExperimentRow) -> Experiment:
        # An import may take seconds, for which the loop would renew no claim.
        known = self._known.get(row.name)
        return known if known is not None else await in_thread(partial(self._restore, row.spec))

    async def _give_back(self, claim: Claim, status: Status, reason: str) -> None:
        await patiently(partial(self._store.release, claim, status, reason), "the end of a run")

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


async def _seen_through(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns. Where the caller is cancelled it goes on, and is told so by the event that it was given."""
    left = asyncio.Event()
    task = asyncio.get_running_loop().create_task(work(left))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        left.set()
        await within(UNDO_SECONDS, asyncio.shield(task), "giving a claim back")
        raise
