"""Claims on experiments.

Theory of operation. An experiment is claimed by a user's start or resume, or as an orphan of a dead replica. One call
at a time claims a given experiment. An experiment that cannot run is not claimed. If a step fails after the claim, the
claim is released with the reason, so no replica must wait until it is stale. A caller that is cancelled changes
nothing: its claim is released and the earlier state restored.
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
    ClaimLost,
    CoolingDown,
    StoppedElsewhere,
    UnknownExperiment,
    require,
)
from tidegate.experiments.engine.background import redacted, retry_while_unavailable, stop_within
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.replica import STALE_SECONDS, actor, is_dead, owner, stopper
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.experiments.engine.supervisor import RunSupervisor
from tidegate.experiments.storage import Claim, ExperimentRow, LoggedLine, Status, Store, Toggle
from tidegate.experiments.storage.results import KEPT_LINES
from tidegate.pool.threads import in_thread

logger = logging.getLogger("tidegate")

T = TypeVar("T")

MAX_KNOWN_EXPERIMENTS = 1000
"""Experiments kept in memory, the latest ones; others are restored from their source. Chosen: more than one process
runs at a time."""

RESTORE_SECONDS = 60.0
"""Seconds that loading an orphan's code may take. Chosen: twice the 30 s that gunicorn gives a worker."""

UNDO_SECONDS = 5.0
"""Seconds that a cancelled caller waits for the release of its claim. Chosen: the release continues after that."""

SHUT_DOWN = "runner closed: it was shut down; make another runner"

Restore: TypeAlias = Callable[[Mapping[str, Any]], Experiment]
"""Function that makes an experiment from its stored spec; raises `CannotLoad` if code or a credential is missing here.
"""


FOLLOW_SECONDS = 1.0
"""Seconds between two checks of an experiment that another replica runs. Chosen: a person waits for the end."""


def require_no_budget(experiment: Experiment, settings: RunnerSettings) -> None:
    """Raise `ConfigurationError` where the settings have a budget for an experiment with `batch`."""
    for name in ("budget_usd", "budget_tokens"):
        amount = getattr(settings, name)
        bound = "none for an experiment with batch=True: a whole file is paid for at once"
        require(amount is None or not experiment.batch, name, amount, bound)


class ClaimService:
    """Service that claims experiments for `replica` and runs them through `supervisor`."""

    def __init__(
        self, store: Store, supervisor: RunSupervisor, replica: str, settings: RunnerSettings, restore: Restore
    ) -> None:
        self.closed = False
        self._store = store
        self._supervisor = supervisor
        self._replica = replica
        self._settings = settings
        self._restore = restore
        self._known: OrderedDict[str, Experiment] = OrderedDict()
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def start(self, experiment: Experiment, *, follow: bool, limit: int | None = None) -> int:
        """Start an experiment as `ExperimentRunner.start` does; its dataset exists."""
        self._supervisor.require_working()
        possible = self._store.spreads or not experiment.spread
        require(possible, "spread", experiment.spread, "False: SQLite is a file of one machine; PostgreSQL is needed")
        require_no_budget(experiment, self._settings)
        row = await self._store.experiments.create(
            experiment.name, experiment.spec(), experiment.repetitions, experiment.described
        )
        before: ExperimentRow | None = None
        while not await self._start_if_free(experiment, row, limit):
            row = await self._row(row.id)
            if row.status is Status.RUNNING:
                # The lock is not held here, so the orphan scan and a resume can proceed.
                await self._await_owner(row, before, follow=follow)
                before, row = row, await self._row(row.id)
            if row.status is Status.STOPPED:
                raise StoppedElsewhere(row.name, stopper(row, await self._log(row)))
        return row.id

    async def resume(self, row: ExperimentRow) -> Toggle:
        """Resume an experiment as `ExperimentRunner.resume` does."""
        self._supervisor.require_working()
        experiment = await self._restore_experiment(row)
        async with self._one_at_a_time(row.id):
            await self._supervisor.wait_if_draining(row.id)
            return await _run_to_end(partial(self._resume_claimed, experiment, row))

    async def claim_orphan(self, number: int) -> None:
        """Claim an orphan and continue it.

        Raise `CannotLoad` if its code or credentials are missing here. In that case nothing has changed: its owner may
        only be suspended, and another replica may have the code.
        """
        self._supervisor.require_working()
        async with self._one_at_a_time(number):
            # A replica that contributes to an experiment first ends that run.
            await self._supervisor.wait_if_draining(number)
            row = await self._store.experiments.find(number)
            if row is None or number in self._supervisor.runs:
                return
            experiment = await self._load_orphan(row)
            claim = await self._store.claims.claim(number, self._replica, STALE_SECONDS)
            if claim is not None:
                await self._run(experiment, claim, row, asyncio.Event(), retry_failed=False)

    async def join(self, number: int) -> bool:
        """Run chunks of an experiment that another replica owns; return False if it has none to give.

        Raise `CannotLoad` if its code or credentials are missing here.
        """
        self._supervisor.require_working()
        async with self._one_at_a_time(number):
            await self._supervisor.wait_if_draining(number)
            row = await self._row(number)
            if number in self._supervisor.runs:
                return True
            if row.status is not Status.RUNNING or not row.spec.get("spread"):
                return False
            experiment = (await self._load_orphan(row)).without_evaluators()
            if self.closed:
                raise RuntimeError(SHUT_DOWN)
            claim = Claim(number, self._replica, row.epoch)
            self._supervisor.start(experiment, row, claim, retry_failed=True, contributes=True)
            return True

    async def _load_orphan(self, row: ExperimentRow) -> Experiment:
        """Return the experiment of an orphan. Raise `CannotLoad` for any problem with its code."""
        try:
            async with asyncio.timeout(RESTORE_SECONDS):
                return await self._restore_experiment(row)
        except CannotLoad as error:
            raise CannotLoad(error.source, error.reason, experiment=row.name) from error
        except TimeoutError as error:
            reason = f"its code did not load within {RESTORE_SECONDS:g} s"
            raise CannotLoad(str(row.spec.get("source")), reason, experiment=row.name) from error
        except Exception as error:
            raise CannotLoad(str(row.spec.get("source")), redacted(error), experiment=row.name) from error

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def _one_at_a_time(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    async def _start_if_free(self, experiment: Experiment, row: ExperimentRow, limit: int | None) -> bool:
        """Claim and run an experiment for a user; return False if another replica has it."""
        async with self._one_at_a_time(row.id):
            run = self._supervisor.runs.get(row.id)
            if run is not None and run.live:
                return True
            await self._supervisor.wait_if_draining(row.id)
            return await _run_to_end(partial(self._start_once, experiment, row, limit))

    async def _await_owner(self, row: ExperimentRow, before: ExperimentRow | None, *, follow: bool) -> None:
        """Wait until the state of an experiment that another replica runs should be read again.

        Without `follow`, raise `ClaimedElsewhere` once that replica has renewed its claim since `before` was read.
        """
        quiet = row.quiet or 0.0
        same = before is not None and before.epoch == row.epoch
        if not follow and before is not None and (not same or quiet < (before.quiet or 0.0)):
            raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet, owner(row, await self._log(row)))
        if follow and not same:
            by = owner(row, await self._log(row))
            logger.info("experiment %s not started: it is run by %s; waiting for the end of that run", row.name, by)
        # The claim becomes stale at a known instant unless it is renewed before.
        await asyncio.sleep(min(FOLLOW_SECONDS, max(0.0, STALE_SECONDS - quiet) + 0.01))
        if self.closed:
            raise RuntimeError(SHUT_DOWN)

    async def _log(self, row: ExperimentRow) -> list[LoggedLine]:
        return await self._store.reports.last_logs(row.id, KEPT_LINES)

    async def _start_once(
        self, experiment: Experiment, row: ExperimentRow, limit: int | None, caller_gone: asyncio.Event
    ) -> bool:
        claim = await self._try_claim(row)
        if claim is not None:
            await self._run(experiment, claim, row, caller_gone, retry_failed=True, limit=limit)
        return claim is not None

    async def _resume_claimed(self, experiment: Experiment, row: ExperimentRow, caller_gone: asyncio.Event) -> Toggle:
        answer = await self._store.claims.resume(row.id, self._replica)
        if isinstance(answer, Toggle):
            return answer
        await self._run(experiment, answer, row, caller_gone, retry_failed=True)
        return Toggle.DONE

    async def _run(
        self,
        experiment: Experiment,
        claim: Claim,
        before: ExperimentRow,
        caller_gone: asyncio.Event,
        *,
        retry_failed: bool,
        limit: int | None = None,
    ) -> None:
        """Run a claimed experiment; if `caller_gone` is set, restore the state `before` instead.

        A user's `limit` of rows is stored with it, so that a replica that takes the run over keeps to it.
        """
        try:
            # The state is read under the claim, because another replica may have changed it before.
            name = f"experiment {experiment.name}"
            row = await retry_while_unavailable(partial(self._row, claim.experiment_id), f"{name}: read of its state")
            if not retry_failed:
                limit = _stored_limit(row)
            spec = {**experiment.spec(), **({} if limit is None else {"limit": limit})}
            changed = dict(row.spec) != spec or row.repetitions != experiment.repetitions
            amended = retry_failed and changed and not caller_gone.is_set()
            if amended:
                amend = partial(self._store.experiments.amend, claim, spec, experiment.repetitions)
                await retry_while_unavailable(amend, f"{name}: write of its changes")
            if retry_failed and self._store.spreads:
                await retry_while_unavailable(partial(self._store.chunks.reset, claim), f"{name}: reset of its chunks")
            if self.closed:
                # At a shutdown the claim is kept, as for running experiments.
                raise RuntimeError(SHUT_DOWN)
            if caller_gone.is_set():
                if amended:
                    back = partial(self._store.experiments.amend, claim, dict(row.spec), row.repetitions)
                    await retry_while_unavailable(back, f"{name}: undo of its changes")
                # A run of a dead replica has no owner now, so its experiment becomes STOPPED.
                was = before.status if before.status is not Status.RUNNING else Status.STOPPED
                await retry_while_unavailable(
                    partial(self._store.claims.release, claim, was, before.last_error), f"{name}: release of its claim"
                )
                return
            self._known[experiment.name] = experiment
            self._known.move_to_end(experiment.name)
            if len(self._known) > MAX_KNOWN_EXPERIMENTS:
                self._known.popitem(last=False)
            self._supervisor.start(experiment, row, claim, retry_failed=retry_failed, limit=limit)
        except Exception as error:
            if not self.closed and not isinstance(error, ClaimLost):
                await self._give_back(claim, Status.ERROR, redacted(error))
            raise

    async def _restore_experiment(self, row: ExperimentRow) -> Experiment:
        # An import may take seconds; in the event loop it would block the renewal of claims.
        known = self._known.get(row.name)
        restored = known if known is not None else await in_thread(partial(self._restore, row.spec))
        require_no_budget(restored, self._settings)
        return restored

    async def _give_back(self, claim: Claim, status: Status, reason: str) -> None:
        what = f"experiment {claim.experiment_id}: release of its claim"
        await retry_while_unavailable(partial(self._store.claims.release, claim, status, reason), what)

    async def _try_claim(self, row: ExperimentRow) -> Claim | None:
        """Return a claim for a user's request; None if another replica has it."""
        if row.status in (Status.READY, Status.RUNNING):
            stale_after = 0.0 if is_dead(row.claimed_by) else STALE_SECONDS
            return await self._store.claims.claim(row.id, self._replica, stale_after)
        answer = await self._store.claims.resume(row.id, self._replica)
        if answer is Toggle.COOLING:
            raise CoolingDown(row.name)
        return answer if isinstance(answer, Claim) else None

    async def _row(self, number: int) -> ExperimentRow:
        row = await self._store.experiments.find(number)
        if row is None:
            raise UnknownExperiment(number)
        return row


def _stored_limit(row: ExperimentRow) -> int | None:
    """Return the limit of rows that the last start of an experiment had; None without one."""
    limit = row.spec.get("limit")
    return limit if isinstance(limit, int) else None


async def _run_to_end(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `work`. If the caller is cancelled, set the event that `work` received and let it finish."""
    caller_gone = asyncio.Event()
    task = asyncio.get_running_loop().create_task(work(caller_gone))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller_gone.set()
        await stop_within(UNDO_SECONDS, asyncio.shield(task), "release of a claim")
        raise


STOP_CHECK_SECONDS = 0.5
"""Seconds between two checks for the end of a stopped run. Chosen: a person waits for the end."""


async def stop_and_delete(store: Store, row: ExperimentRow, *, force: bool, patience: float) -> None:
    """Stop an experiment, wait for the end of its run, and delete it.

    The owner of its claim notices the stop at its next heartbeat, and ends its run. The wait lasts at most `patience`
    seconds from the stop; it is left out with `force`, or where the owner's process has ended on this machine. Results
    that come later are refused. Raise `CoolingDown` shortly after a user's resume, and `ClaimedElsewhere` where
    somebody has resumed the experiment meanwhile.
    """
    if row.status is Status.RUNNING and await store.claims.stop(row.id, actor()) is Toggle.COOLING:
        raise CoolingDown(row.name)
    if not force and not is_dead(row.claimed_by):
        while True:
            if not await store.experiments.is_ending(row.id, patience):
                break
            await asyncio.sleep(STOP_CHECK_SECONDS)
    if not await store.experiments.remove(row.id):
        now = await store.experiments.find(row.id)
        if now is not None:
            raise ClaimedElsewhere(now.name, now.claimed_by, now.quiet)
