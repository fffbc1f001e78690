"""State of one claimed experiment while it runs here, for the parts of the runner that work on it.

`ExperimentRun` changes it. Its collaborators get this, not the run: so each module below the run can be read alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from enum import Enum
from typing import Any

from tidegate.runner import results
from tidegate.runner.context import RunnerContext
from tidegate.runner.events import Event
from tidegate.runner.experiment import Experiment
from tidegate.runner.item import TASK, Item
from tidegate.runner.job import Job, Stage, stages_of
from tidegate.runner.progress import Progress, ResultTally, StageProgress, Wait
from tidegate.runner.watermark import CompletionTracker
from tidegate.runner.work_queue import WorkQueue
from tidegate.runner.writer import Result, WriteReceiver
from tidegate.storage import Category, Claim, LogLevel, ResultStatus, Status


class RunPhase(Enum):
    """The phase of a run."""

    LIVE = "live"
    DRAINING = "draining"
    ENDED = "ended"


class RunState:
    """State of one experiment under one claim.

    `again` says that failed and parked items of before are to be tried again. `out` are the stages whose key is down
    for longer than `max_outage`, each with the reason. Functions run in copies of `context`, the context in which the
    run was made, so that no function sees a variable that another one sets.
    """

    def __init__(
        self, shared: RunnerContext, experiment: Experiment, claim: Claim, again: bool, receiver: WriteReceiver
    ) -> None:
        settings = shared.settings
        self.shared = shared
        self.experiment = experiment
        self.claim = claim
        self.again = again
        self.phase = RunPhase.LIVE
        self.context = contextvars.copy_context()
        self.stages = stages_of(experiment, settings)
        self.cap = min(experiment.max_concurrency or settings.max_concurrency, settings.max_concurrency)
        self.work_queue = WorkQueue(
            len(self.stages),
            high=settings.page,
            ageing=settings.ageing,
            retry_slots=max(1, int(settings.retry_share * self.cap)),
        )
        # The first claim of an experiment has the epoch 1: a later one may find something left over.
        self.tracker = CompletionTracker(len(self.stages) - 1, left_over=claim.epoch > 1, again=again)
        self.tally = ResultTally(len(self.stages))
        self.wanted = asyncio.Event()
        self.under_way: set[Job] = set()
        self.out: dict[int, str] = {}
        self.reason: str | None = None
        self.final: Status | None = None
        self.began_at = shared.loop.time()
        self.turned_away_at = [self.began_at] * len(self.stages)
        self._receiver = receiver

    @property
    def id(self) -> int:
        """The experiment's number."""
        return self.claim.experiment_id

    @property
    def live(self) -> bool:
        """Return whether new work is taken up."""
        return self.phase is RunPhase.LIVE

    def tell(self, event: Event) -> None:
        """Tell the experiment's subscribers of an event."""
        self.shared.hub.tell(event, self.id, self.experiment.name)

    def note(self, level: LogLevel, category: Category, **detail: Any) -> None:
        """Write a line of the experiment's log."""
        self.put(None, results.line(self.claim, level, category, **detail))

    def put(self, item: Item | None, result: Result) -> None:
        """Have a result written; the receiver's `durable` follows."""
        self.tracker.unwritten += 1
        if item is not None:
            item.release()
        self.shared.writer.put(self._receiver, item, result)

    def write_failure(self, item: Item, status: ResultStatus, kind: str, text: str | None) -> None:
        """Write that an item has no answer, and why."""
        stage = self.stages[item.stage]
        self.put(item, results.unanswered(self.claim, stage, item, status, kind, text))
        if status is ResultStatus.ERROR:
            self.put(None, results.failure_line(self.claim, stage, item, kind, text))

    def closed(self, stage: Stage) -> str:
        """Return why the items of a stage are parked instead of being tried; empty where they are tried."""
        return stage.closing.reason if stage.closing is not None else self.out.get(stage.index, "")

    def has_other_work(self) -> bool:
        """Return whether any stage has work whose key is not down for too long."""
        return any(self.tracker.has_work(stage.index) for stage in self.stages if stage.index not in self.out)

    def progress(self) -> Progress:
        """Return how far the run is."""
        tally = self.tally
        under_way = [0] * len(self.stages)
        for job in self.under_way:
            under_way[job.item.stage] += 1
        tasks = tally.rows * self.experiment.repetitions
        answered = tally.done[TASK].get(ResultStatus.OK, 0)
        stages = tuple(
            StageProgress(
                stage.name,
                tasks if stage.index == TASK else answered,
                dict(tally.done[stage.index]),
                under_way[stage.index],
                self.work_queue.depth(stage.index),
                self._wait(stage.index),
                self.closed(stage),
            )
            for stage in self.stages
        )
        return Progress(
            self.experiment.name, self.phase.value, tally.rows, tally.all_rows, self.tracker.unwritten, stages
        )

    def _wait(self, stage: int) -> Wait | None:
        gate = self.work_queue.gate(stage)
        closed = self.shared.gates.closed(gate)
        if not self.work_queue.depth(stage):
            return None
        if closed is None:
            full = self.shared.slots <= 0 or len(self.under_way) >= self.cap
            return Wait("concurrency", "", None) if full else None
        key = self.stages[stage].habit.key
        seconds = closed.until - self.shared.loop.time()
        return Wait(closed.reason, str(key) if key is not None else "", max(0.0, seconds) if seconds < 1e9 else None)
