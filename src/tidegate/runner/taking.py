"""How a replica comes by an experiment: by a user's start or resume, or as an orphan of a replica that has died.

One experiment is taken by one at a time. Nothing is claimed that cannot be run: where something fails after the claim,
the claim is given back with the reason, so that nobody waits for it to go stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from tidegate.errors import CannotLoad, ClaimedElsewhere, CoolingDown, LeaseLost, UnknownExperiment
from tidegate.runner.experiment import Experiment
from tidegate.runner.lives import Lives
from tidegate.runner.patience import patiently
from tidegate.runner.redaction import redacted
from tidegate.runner.replica import gone
from tidegate.runner.threads import in_thread
from tidegate.storage import Claim, ExperimentRow, Status, Store, Toggle

logger = logging.getLogger("tidegate")

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
        self._known: dict[str, Experiment] = {}
        self._one_at_a_time: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, experiment: Experiment) -> int:
        """As `ExperimentRunner.start`, whose dataset is there."""
        self._lives.fit()
        row = await self._store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
        self._known[experiment.name] = experiment
        async with self._one_at_a_time[row.id]:
            running = self._lives.running.get(row.id)
            if running is None or not running.live:
                await self._lives.let_end(row.id)
                await self._run(experiment, await self._claimed(row), again=True)
        return row.id

    async def resume(self, row: ExperimentRow) -> Toggle:
        """As `ExperimentRunner.resume`."""
        self._lives.fit()
        experiment = await self._restored(row)
        async with self._one_at_a_time[row.id]:
            await self._lives.let_end(row.id)
            answer = await self._store.resume(row.id, self._replica)
            if isinstance(answer, Toggle):
                return answer
            self._known[row.name] = experiment
            await self._run(experiment, answer, again=True)
        return Toggle.DONE

    async def take_up(self, number: int) -> None:
        """Claims an orphan and goes on with it; one whose code or credentials are not here is blocked, and says why."""
        self._lives.fit()
        async with self._one_at_a_time[number]:
            row = await self._store.find(number)
            if row is None or number in self._lives.running:
                return
            claim = await self._store.claim(number, self._replica, self._stale_after)
            if claim is None:
                return
            try:
                experiment = await self._restored(row)
            except Exception as error:
                reason = str(error) if isinstance(error, CannotLoad) else redacted(error)
                logger.warning("experiment %s is blocked: %s", row.name, reason)
                await self._give_back(claim, Status.BLOCKED, reason)
                return
            await self._run(experiment, claim, again=False)

    async def _run(self, experiment: Experiment, claim: Claim, *, again: bool) -> None:
        try:
            # How it stands is read under the claim: before it, another replica may have gone on.
            row = await patiently(partial(self._row, claim.experiment_id), "an experiment")
            if again and (dict(row.spec) != experiment.spec() or row.repetitions != experiment.repetitions):
                amend = partial(self._store.amend, claim, experiment.spec(), experiment.repetitions)
                await patiently(amend, "an experiment")
                claim = Claim(claim.experiment_id, claim.replica, claim.epoch)
            if self.closed:
                # One that comes too late keeps its claim, as those that run do.
                raise RuntimeError(SHUT_DOWN)
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

    async def _claimed(self, row: ExperimentRow) -> Claim:
        """A claim for a user who asks for it; a claim that goes stale soon is waited for, once."""
        for last in (False, True):
            if row.status in (Status.READY, Status.RUNNING):
                stale_after = 0.0 if gone(row.claimed_by) else self._stale_after
                claim = await self._store.claim(row.id, self._replica, stale_after)
                if claim is not None:
                    return claim
            else:
                answer = await self._store.resume(row.id, self._replica)
                if isinstance(answer, Claim):
                    return answer
                if answer is Toggle.COOLING:
                    raise CoolingDown(row.name)
            row = await self._row(row.id)
            if row.quiet is not None and not last:
                # It is stale at a known instant, unless somebody renews it until then.
                await asyncio.sleep(max(0.0, self._stale_after - row.quiet) + 0.01)
        raise ClaimedElsewhere(row.name, row.claimed_by, row.quiet)

    async def _row(self, number: int) -> ExperimentRow:
        row = await self._store.find(number)
        if row is None:
            raise UnknownExperiment(number)
        return row
