"""One claimed experiment while it runs here: takes what ended, queues what follows, and comes to one end.

Theory of operation. A run is LIVE (dispatching), DRAINING (nothing new; what is under way may finish for its grace) or
ENDED. It drains for one reason, the first that came: everything is done, the user's stop, the guard, a failure of the
dataset, a lost claim, a shutdown. It has ended when nothing is under way and every result is durable or fenced off;
only then is the claim given back, where that is this replica's right. All of it happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from enum import Enum
from functools import partial
from typing import Any

from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Cost, Key
from tidegate.errors import StoreError
from tidegate.runner import results
from tidegate.runner.books import Books
from tidegate.runner.experiment import Experiment
from tidegate.runner.floor import Floor
from tidegate.runner.gates import Own
from tidegate.runner.item import TASK, Item
from tidegate.runner.job import Asking, Cut, Job
from tidegate.runner.outcomes import Outcomes
from tidegate.runner.patience import patiently
from tidegate.runner.progress import Tally
from tidegate.runner.redaction import redacted
from tidegate.runner.stage import Stage
from tidegate.runner.subscribers import Chunk, Event, StateChanged
from tidegate.runner.waits import Waits
from tidegate.runner.workload import Workload
from tidegate.runner.writer import Result
from tidegate.storage import AnnotationResult, Category, Claim, Level, LogLine, ResultStatus, RunResult, Status

logger = logging.getLogger("tidegate")

ADVANCE_EVERY = 1000
"""Results after which it is written how far the run is: a resume begins there."""


class Phase(Enum):
    """Where a run is in its life."""

    LIVE = "live"
    DRAINING = "draining"
    ENDED = "ended"


class Running:
    """One experiment under one claim. `again` says that what failed or was parked before is to be tried again."""

    def __init__(self, floor: Floor, experiment: Experiment, claim: Claim, *, left_over: bool, again: bool) -> None:
        settings = floor.settings
        self.floor = floor
        self.experiment = experiment
        self.claim = claim
        self.again = again
        self.phase = Phase.LIVE
        self.ended: asyncio.Future[Status | None] = floor.loop.create_future()
        self.stages = _stages(experiment, floor)
        self.cap = min(experiment.max_concurrency or settings.max_concurrency, settings.max_concurrency)
        self.workload = Workload(
            len(self.stages),
            high=settings.page,
            ageing=settings.ageing,
            retry_slots=max(1, int(settings.retry_share * self.cap)),
        )
        self.books = Books(len(self.stages) - 1, left_over=left_over, again=again)
        self.tally = Tally(len(self.stages))
        self.wanted = asyncio.Event()
        self.under_way: set[Job] = set()
        self.reason: str | None = None
        self._final: Status | None = None
        self._thread = threading.get_ident()
        self._advanced = (claim.low_water, claim.task_water)
        self._settled = 0
        self._water: asyncio.Task[None] | None = None
        self._grace_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self.waits = Waits(self)
        self._outcomes = Outcomes(self)
        for stage in self.stages:
            self.workload.stand_behind(stage.index, Own(self.id, stage.index))

    @property
    def id(self) -> int:
        """The experiment's number."""
        return self.claim.experiment_id

    @property
    def live(self) -> bool:
        """Whether new work is taken up."""
        return self.phase is Phase.LIVE

    def begin(self) -> None:
        """Takes its place on the roster; work comes from whoever feeds it."""
        self.floor.roster.join(self.id)
        self.wanted.set()
        self.note(Level.INFO, Category.EXPERIMENT, type="started", epoch=self.claim.epoch)
        self.tell(StateChanged(Status.RUNNING))

    def tell(self, event: Event) -> None:
        """Tells the experiment's subscribers."""
        self.floor.hub.tell(event, self.id, self.experiment.name)

    def note(self, level: Level, category: Category, **detail: Any) -> None:
        """Writes a line of the experiment's log."""
        self.put(None, results.line(self.claim, level, category, **detail))

    def offer(self) -> None:
        """Says on the roster what is ready, and looks after the clocks of what is not."""
        if self.phase is not Phase.LIVE:
            return
        for gate in set(self.workload.gates()):
            self.floor.roster.offer(self.id, gate)
        self.waits.set_retry_timer()
        self.floor.poke()

    def came(self, items: list[Item]) -> None:
        """New items from the store."""
        for item in items:
            self.books.open(item)
        self.workload.add(items)
        self.offer()

    def came_invalid(self, item: Item, reason: str) -> None:
        """A row that cannot be tried: it is recorded as it is, without a permit or a slot."""
        self.books.open(item)
        self.put(
            item, results.unanswered(self.claim, self.stages[TASK], item, ResultStatus.INVALID, "invalid_row", reason)
        )

    def dispatch(self, item: Item, permit: Permit | None) -> None:
        """Starts an item that was taken from the workload, in a slot that is free."""
        stage = self.stages[item.stage]
        hand = Asking(self.floor.registry, permit, partial(self._asked, stage))
        job = Job(item, stage, hand, permit is not None and permit.probe, self.floor.settings.cancel_grace, self.took)
        self.under_way.add(job)
        self.floor.slots -= 1
        self.waits.over(item)
        if len(self.under_way) >= self.cap:
            self.floor.roster.hold(self.id)
        if not stage.habit.known:
            self.floor.gates.shut(Own(self.id, stage.index), "its first call")
        if self.workload.runs_low(stage.index):
            self.wanted.set()
        job.start(self.floor.loop, partial(self._emitted, job))

    def took(self, job: Job) -> None:
        """A job has ended: its slot is free, and its item goes where its end says."""
        item, stage = job.item, job.stage
        self.under_way.discard(job)
        self.floor.slots += 1
        self.floor.roster.free(self.id)
        self.workload.ended(item.attempts > 0)
        item.seconds += job.seconds
        try:
            self._learn(stage, job.hand)
            self._outcomes.conclude(job)
        except Exception as error:
            logger.exception("experiment %s: an item's end could not be taken in", self.experiment.name)
            self.fail(error)
        if self.phase is Phase.LIVE:
            self.offer()
        else:
            self._maybe_ended()
        self.floor.poke()

    def park(self, item: Item) -> None:
        """Gives a row up for now: it found no capacity until its deadline. A resume takes it up again."""
        waited = f"no capacity for {self.floor.settings.row_deadline:g} s of active waiting"
        self._outcomes.write_failure(item, ResultStatus.PARKED, "capacity", waited)

    def durable(self, item: Item | None, result: Result) -> None:
        """A result of this run is in the database: only now is it told, and forgotten."""
        self.books.unwritten -= 1
        try:
            if item is not None and not isinstance(result, LogLine):
                self._settle(item, result)
        except Exception as error:
            logger.exception("experiment %s: a durable result could not be noted", self.experiment.name)
            self.fail(error)
        self.look_around()

    def unwritable(self, item: Item | None, result: Result, error: Exception) -> None:
        """The store refuses a result for good: its item has failed, and that is what is kept of it."""
        self.books.unwritten -= 1
        logger.error("experiment %s: a result cannot be stored: %s", self.experiment.name, error)
        if isinstance(result, LogLine) or item is None:
            self.look_around()
        elif results.failed(result):
            self.fail(error)
        else:
            self._outcomes.write_failure(item, ResultStatus.ERROR, "not_storable", redacted(error))

    def fenced(self, count: int) -> None:
        """Another replica has the experiment: what is under way here is no longer worth its slot."""
        self.books.unwritten -= count
        self.lost()
        self._cancel_all()
        self.look_around()

    def lost(self) -> None:
        """The claim is gone: stops here, and writes nothing about it."""
        self.drain(None, "the claim was lost")

    def fail(self, error: BaseException) -> None:
        """Stops the run with an error that no item can be blamed for."""
        self.drain(Status.ERROR, redacted(error))

    def drain(self, final: Status | None, reason: str | None, grace: float | None = None) -> None:
        """Dispatches nothing more and lets what is under way finish for `grace` seconds; the first reason holds.

        `final` is the status with which the claim is given back at the end; None where it is kept, or was lost.
        """
        if self.phase is not Phase.LIVE:
            return
        self.phase = Phase.DRAINING
        self._final, self.reason = final, reason
        self.floor.roster.leave(self.id)
        for stage in self.stages:
            self.floor.gates.remove(Own(self.id, stage.index))
        self.workload.clear()
        self.waits.end()
        grace = self.floor.settings.grace if grace is None else grace
        if grace <= 0:
            self._cancel_all()
        elif self.under_way:
            self._grace_timer = self.floor.loop.call_later(grace, self._cancel_all)
        if final is Status.ERROR:
            self.note(Level.ERROR, Category.EXPERIMENT, type="stopped", error=reason)
        self.wanted.set()
        self._maybe_ended()

    def cancel(self) -> None:
        """Ends the grace of a run that is draining."""
        self._cancel_all()

    def put(self, item: Item | None, result: Result) -> None:
        """Has a result written; `durable` follows."""
        self.books.unwritten += 1
        self.floor.writer.put(self, item, result)

    def _settle(self, item: Item, result: RunResult | AnnotationResult) -> None:
        self.books.close(item, results.failed(result))
        self.tally.add(item.stage, result)
        self._settled += 1
        if self._settled % ADVANCE_EVERY == 0 and self._water is None:
            self._water = self.floor.loop.create_task(self._advance())
        if self.floor.hub.heard(self.id, self.experiment.name):
            self.tell(result)

    def look_around(self) -> None:
        """After something became durable: whether more is wanted, how far it is, whether that was all."""
        if self.phase is Phase.LIVE:
            if any(backlog.owing for backlog in self.books.backlogs):
                self.wanted.set()
            if self.books.settled:
                self.drain(Status.COMPLETED, None)
        elif not self.under_way:
            self._maybe_ended()

    def _learn(self, stage: Stage, hand: Asking) -> None:
        if hand.first is not None:
            self._know(stage, hand.first, hand.keys[hand.first])
        elif stage.habit.ended():
            self.floor.gates.open(Own(self.id, stage.index))

    def _asked(self, stage: Stage, key: Key, cost: Cost) -> None:
        """The function asks for a key, in whatever thread it runs."""
        if stage.habit.key != key:
            self.floor.loop.call_soon_threadsafe(self._know, stage, key, cost)

    def _know(self, stage: Stage, key: Key, cost: Cost) -> None:
        if not stage.habit.asked(key, cost) or self.phase is not Phase.LIVE:
            return
        before = self.workload.gate(stage.index)
        self.workload.stand_behind(stage.index, key)
        if not self.workload.has(before):
            self.floor.roster.withdraw(self.id, before)
        self.floor.gates.open(Own(self.id, stage.index))
        self.offer()

    def _emitted(self, job: Job, chunk: Any) -> None:
        if not self.floor.hub.heard(self.id, self.experiment.name):
            return
        if threading.get_ident() == self._thread:
            self._stream(job, chunk)
        else:
            self.floor.loop.call_soon_threadsafe(self._stream, job, chunk)

    def _stream(self, job: Job, chunk: Any) -> None:
        if not job.done and job.item.stage == TASK:
            self.tell(Chunk(*job.item.place, job.item.attempts + 1, chunk))

    def _cancel_all(self) -> None:
        for job in list(self.under_way):
            job.cancel(Cut.STOP)

    def _maybe_ended(self) -> None:
        if self.phase is not Phase.DRAINING or self.under_way or self.books.unwritten or self._ending is not None:
            if self.phase is Phase.DRAINING and not self.under_way:
                self.floor.writer.flush()
            return
        self._ending = self.floor.loop.create_task(self._end())

    async def _end(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        status = self._final
        try:
            if self._water is not None:
                await self._water
            await self._write_water()
            if status is not None:
                final = status
                released = await patiently(
                    lambda: self.floor.store.release(self.claim, final, self.reason), "the end of a run"
                )
                status = status if released else None
        except StoreError:
            logger.exception("experiment %s: its end could not be written", self.experiment.name)
            status = None
        self.phase = Phase.ENDED
        if not self.ended.done():
            self.ended.set_result(status)

    async def _advance(self) -> None:
        try:
            await self._write_water()
        except StoreError:
            logger.exception("experiment %s: how far it is could not be written", self.experiment.name)
        finally:
            self._water = None

    async def _write_water(self) -> None:
        low, tasks = self.books.water()
        if (low, tasks) > self._advanced:
            self._advanced = (low, tasks)
            await patiently(lambda: self.floor.store.advance(self.claim, low, tasks), "the low water")


def _stages(experiment: Experiment, floor: Floor) -> list[Stage]:
    settings = floor.settings
    task_timeout = experiment.task_timeout or settings.task_timeout
    stages = [Stage(TASK, "task", experiment.task, (), task_timeout, settings.guard)]
    for index, evaluator in enumerate(experiment.evaluators, start=1):
        timeout = evaluator.timeout or settings.eval_timeout
        stages.append(Stage(index, evaluator.name, evaluator.function, evaluator.outputs, timeout, settings.guard))
    return stages
