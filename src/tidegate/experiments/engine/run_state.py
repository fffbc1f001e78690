"""State of one claimed experiment while it runs here.

`ExperimentRun` extends and changes it. `RetryTimers` receives only this state, so that it can be read alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.engine import results
from tidegate.experiments.engine.audit import RunAudit
from tidegate.experiments.engine.background import redacted
from tidegate.experiments.engine.budget import Budget, BudgetLedger
from tidegate.experiments.engine.completion import CompletionTracker
from tidegate.experiments.engine.events import Event, SubscriberHub
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.forecast import UNKNOWN_REST, Rest, RestForecast
from tidegate.experiments.engine.job import Job, Stage, stages_of
from tidegate.experiments.engine.progress import Progress, ResultTally, StageProgress, Wait
from tidegate.experiments.engine.queues import TASK, FairQueue, Item, WorkQueue
from tidegate.experiments.engine.results import Result, ResultWriter, WriteReceiver
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.experiments.storage import (
    Category,
    Claim,
    ClaimStats,
    ItemAttempts,
    LogLevel,
    LogLine,
    ResultStatus,
    RunResult,
    Status,
    Store,
)
from tidegate.experiments.storage.reports import LEARNED
from tidegate.pool.function_limit import LEAST_FUNCTIONS, FunctionLimit, Hold
from tidegate.pool.key_gates import KeyGates
from tidegate.pool.threads import call_in_loop


@dataclass(slots=True)
class RunnerContext:
    """Shared parts of one runner.

    `wake` makes the dispatcher look for work again soon. `functions` counts those in flight, and says whether more
    may start. Instants are seconds of `loop.time()`.
    """

    store: Store
    registry: RateLimitRegistry
    settings: RunnerSettings
    loop: asyncio.AbstractEventLoop
    fair_queue: FairQueue
    gates: KeyGates
    writer: ResultWriter
    hub: SubscriberHub
    wake: Callable[[], None]
    functions: FunctionLimit


logger = logging.getLogger("tidegate")

STOPPED_ELSEWHERE = "stopped"
"""Reason of a run whose stop is recorded in the database."""


def limit_reached(limit: int) -> str:
    """Return the reason of a run that has done its first `limit` rows, while there are others."""
    return f"limit of {limit} {'row' if limit == 1 else 'rows'} reached"


class RunPhase(Enum):
    """Phase of a run."""

    LIVE = "live"
    DRAINING = "draining"
    ENDED = "ended"


class RunState(ABC):
    """State of one experiment under one claim.

    `retry_failed` requests a new try of earlier failed and parked items. `cap` is the maximum of jobs in flight that
    the user gave (None: none). `outages` maps each stage whose key is down for longer than `max_outage` to the reason.
    `context` is the context in which the run was created. Each function runs in a copy of it, so no function sees a
    variable that another one sets. Only rows below `limit` are tried (None: all); `limited` means that others are left.
    `batched` items are in batches of a provider. `held_chunks` are the first rows of the chunks that this run holds.
    A run that `contributes` has only chunks of an experiment that another replica owns, and the epoch of its claim.
    """

    def __init__(
        self,
        shared: RunnerContext,
        experiment: Experiment,
        claim: Claim,
        retry_failed: bool,
        receiver: WriteReceiver,
        contributes: bool = False,
    ) -> None:
        settings = shared.settings
        self.shared = shared
        self.experiment = experiment
        self.claim = claim
        self.retry_failed = retry_failed
        self.contributes = contributes
        self.phase = RunPhase.LIVE
        self.context = contextvars.copy_context()
        self.stages = stages_of(experiment, settings)
        given = [each for each in (experiment.max_concurrency, settings.max_concurrency) if each is not None]
        self.cap = min(given) if given else None
        self.in_flight: set[Job] = set()
        self.work_queue = WorkQueue(len(self.stages))
        # The first claim of an experiment has epoch 1. A later claim may find evaluations that an earlier run left
        # open.
        self.tracker = CompletionTracker(len(self.stages) - 1, left_over=claim.epoch > 1, retry_failed=retry_failed)
        self.tally = ResultTally([stage.name for stage in self.stages])
        self.page_wanted = asyncio.Event()
        self.limit: int | None = None
        self.limited = False
        self.batched = 0
        self.held_chunks: Collection[int] = ()
        self.outages: dict[int, str] = {}
        self.reason: str | None = None
        self.final: Status | None = None
        self.began_at = shared.loop.time()
        self.audit = RunAudit(settings.audit, shared.registry.clock, self.began_at)
        self.rejected_at = [self.began_at] * len(self.stages)
        self.thread = threading.get_ident()
        self._receiver = receiver
        self._forecast = RestForecast(shared.registry)
        self.ledger: BudgetLedger | None = None
        self.kept_budget: Budget | None = None
        self.earlier_tokens = TokenTotals()

    @abstractmethod
    def offer(self) -> None:
        """Offer the ready work to the fair queue."""

    @abstractmethod
    def drain(self, final: Status | None, reason: str | None, grace: float | None = None) -> None:
        """Stop dispatching, and let jobs in flight finish for `grace` seconds; only the first call has an effect.

        `final` is the status with which the claim is released at the end. It is None if the claim is kept or was lost.
        """

    def fail(self, error: BaseException) -> None:
        self.drain(Status.ERROR, redacted(error))

    @property
    def id(self) -> int:
        return self.claim.experiment_id

    @property
    def live(self) -> bool:
        return self.phase is RunPhase.LIVE

    def publish(self, event: Event) -> None:
        self.shared.hub.publish(event, self.id, self.experiment.name)

    def log(self, level: LogLevel, **detail: Any) -> None:
        self.put(None, results.line(self.claim, level, Category.EXPERIMENT, **detail))

    def put(self, item: Item | None, result: Result) -> Result:
        """Queue a result for writing; return the one that the receiver's `durable` gets later."""
        if self.contributes and isinstance(result, RunResult | ItemAttempts | LogLine):
            result = replace(result, contributor=self.claim.replica)
        self.tracker.unwritten += 1
        if item is not None:
            if self.ledger is not None and item.stage != TASK and not item.released:
                self.ledger.close_judgement(item.stage)
            item.release()
            if self.audit.waits.active:
                self.audit.waits.end(item, self.shared.loop.time())
        self.shared.writer.put(self._receiver, item, result)
        return result

    def put_attempts(self, item: Item, stage: str) -> None:
        """Queue the attempts at an item of `stage` that has no result yet."""
        audit, usage = tuple(item.audit), item.usage
        self.put(None, ItemAttempts(self.id, self.claim.epoch, *item.place, audit, stage=stage, usage=usage))
        item.audit = []

    def put_stats(self) -> None:
        """Queue the statistics of the claim so far, which stay where the process is killed."""
        if not self.contributes:
            stats = self.audit.stats(self.tally.added, self.shared.loop.time())
            self.put(None, ClaimStats(self.id, self.claim.epoch, stats.stored(), ended=False))

    def put_end(self) -> None:
        """Queue the statistics of the claim and the line of the log that ends it."""
        stats = self.audit.end(self.tally.added, self.shared.loop.time())
        task, *evaluators = self.tally.done
        counts = {status.value: task.get(status, 0) for status in ResultStatus}
        status = self.final or (Status.STOPPED if self.reason == STOPPED_ELSEWHERE else Status.RUNNING)
        judged = sum(done.get(ResultStatus.OK, 0) for done in evaluators)
        if not self.contributes:
            self.put(None, ClaimStats(self.id, self.claim.epoch, {**stats.stored(), **self._learned()}))
        self.log(
            LogLevel.INFO,
            type="left" if self.contributes else "ended",
            status=status.value,
            answered=counts["ok"],
            failed=counts["error"],
            parked=counts["parked"],
            invalid=counts["invalid"],
            judged=judged,
            stats=stats.to_json(),
        )
        logger.info(
            "experiment %s %s: %s: %d answered, %d failed, %d parked, %d invalid, %d judged; %s",
            self.experiment.name,
            "left" if self.contributes else "ended",
            self._end_text(status),
            counts["ok"],
            counts["error"],
            counts["parked"],
            counts["invalid"],
            judged,
            stats,
        )

    def _learned(self) -> dict[str, Any]:
        """Return the limits of the providers that the run asks, for the plan of a later run."""
        keys = [stage.key_usage.key for stage in self.stages]
        asked = {key.provider for key in keys if key is not None}
        state = self.shared.registry.export_state().of_providers(asked)
        return {LEARNED: state.model_dump(mode="json")} if state.keys else {}

    def _end_text(self, status: Status) -> str:
        if status is not Status.RUNNING:
            return str(status.value)
        return "no chunk is left here" if self.contributes else "its claim is kept or lost"

    def write_failure(self, item: Item, status: ResultStatus, kind: str, text: str | None) -> None:
        stage = self.stages[item.stage]
        # Made first: to queue a result releases the row, which has the id.
        line = results.failure_line(self.claim, stage, item, kind, text)
        self.put(item, results.unanswered(self.claim, stage, item, status, kind, text))
        if status is ResultStatus.ERROR:
            self.put(None, line)

    def closed(self, stage: Stage) -> str:
        """Return the reason why the items of a stage are parked; empty if they are tried."""
        return stage.closing or self.outages.get(stage.index, "")

    def has_other_work(self) -> bool:
        """Return whether a stage that is not in `outages` has work left."""
        return any(self.tracker.has_work(stage.index) for stage in self.stages if stage.index not in self.outages)

    def request_page(self) -> None:
        """Request a page from the store if it may hold items that memory lacks."""
        if self.live and (
            self.tracker.may_have_more or (self.work_queue.runs_low(TASK) and not self.tracker.tasks_exhausted)
        ):
            self.page_wanted.set()

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call in the event loop from any thread; ignore it if the loop is closed."""
        call_in_loop(self.shared.loop, self.thread, function, *args)

    def end(self) -> tuple[Status, str | None]:
        closed = [stage.closing for stage in self.stages if stage.closing]
        if closed:
            return Status.ERROR, "; ".join(closed)
        if self.outages:
            return Status.STOPPED, "; ".join(dict.fromkeys(self.outages.values()))
        if self.limited and self.limit is not None:
            return Status.STOPPED, limit_reached(self.limit)
        return Status.COMPLETED, None

    def progress(self) -> Progress:
        tally = self.tally
        in_flight = [0] * len(self.stages)
        in_flight[TASK] = self.batched
        for job in self.in_flight:
            in_flight[job.item.stage] += 1
        tasks = tally.rows * self.experiment.repetitions
        answered = tally.done[TASK].get(ResultStatus.OK, 0)
        stages = tuple(
            StageProgress(
                stage.name,
                tasks if stage.index == TASK else answered,
                tally.done_of(stage.index, tasks),
                in_flight[stage.index],
                self.work_queue.depth(stage.index),
                self.wait_of(stage.index),
                self.closed(stage),
            )
            for stage in self.stages
        )
        rest = self._rest(stages) if tally.all_rows else UNKNOWN_REST
        return Progress(
            self.experiment.name,
            self.phase.value,
            tally.rows,
            tally.all_rows,
            self.tracker.unwritten,
            stages,
            rest.seconds,
            self.earlier_tokens.plus(self.audit.tokens.totals),
            str(self.kept_budget or ""),
            rest.bound_by,
        )

    def _rest(self, stages: tuple[StageProgress, ...]) -> Rest:
        """Return when all is done by the limits of the keys; every row is expected to be judged."""
        task = stages[TASK]
        to_judge = task.total - (task.finished - task.done.get(ResultStatus.OK, 0))
        rests = []
        for stage, seen in zip(self.stages, stages, strict=True):
            usage = stage.key_usage
            if stage.index != TASK and usage.known and usage.key is None and not seen.ready:
                # An evaluator without calls, which keeps up with the answers.
                continue
            total = seen.total if stage.index == TASK else to_judge
            rest = 0 if seen.closed else max(0, total - seen.finished - seen.under_way)
            rests.append((usage.key, usage.cost, seen.finished, rest))
        return self._forecast.rest(rests)

    def _held_back(self) -> Wait | None:
        if self.cap is not None and (self.shared.functions.free <= 0 or len(self.in_flight) >= self.cap):
            return Wait(Hold.CONFIGURED.value, "", None)
        held = self.shared.functions.held_by
        return Wait(held.value, "", None) if held is not None else None

    def wait_of(self, stage: int) -> Wait | None:
        """Return why no item of a stage starts; None if one can, or none is ready."""
        gate = self.work_queue.gate(stage)
        closed = self.shared.gates.closed(gate)
        if not self.work_queue.depth(stage):
            return None
        if closed is None:
            return self._held_back()
        key = self.stages[stage].key_usage.key
        seconds = closed.until - self.shared.loop.time()
        return Wait(closed.reason, str(key) if key is not None else "", max(0.0, seconds) if seconds < 1e9 else None)


class RunSlots:
    """Jobs of one run in flight by stage, those among them whose slot is lent, and the bounds on both.

    A job that waits for capacity inside a call lends its slot, so it starves no other stage. It still counts towards
    its own stage.
    """

    def __init__(self, run: RunState) -> None:
        self.jobs_of = [0] * len(run.stages)
        self._lending_of = [0] * len(run.stages)
        self._run = run
        self._told_of_bound = False

    def take(self, job: Job) -> None:
        self._run.in_flight.add(job)
        self.jobs_of[job.stage.index] += 1
        self._run.shared.functions.started(job)
        self._update()
        if self._run.cap is not None and not self._told_of_bound:
            self._tell_of_bound(self._run.cap)

    def free(self, job: Job) -> None:
        self._run.in_flight.discard(job)
        self.jobs_of[job.stage.index] -= 1
        if job.slot_lent:
            self._lend(job, -1)
        self._run.shared.functions.ended(job)
        self._update()

    def lend(self, job: Job) -> None:
        """Lend the slot of a job that begins to wait inside a call, or take it back."""
        self._lend(job, 1 if job.slot_lent else -1)
        self._update()

    def full(self, stage: int) -> bool:
        """Return whether a stage has its maximum of jobs, including those that wait inside a call.

        Without a `max_concurrency`, as many jobs of a stage may wait inside calls as the others are, at least
        `LEAST_FUNCTIONS`. More would only have paid for their earlier calls without being nearer to their end.
        """
        if self._run.cap is not None:
            return self.jobs_of[stage] >= self._run.cap
        lending = self._lending_of[stage]
        return lending >= LEAST_FUNCTIONS and lending >= self.jobs_of[stage] - lending

    def _lend(self, job: Job, change: int) -> None:
        self._lending_of[job.stage.index] += change
        self._run.shared.functions.lend(change)

    def _update(self) -> None:
        run = self._run
        if run.cap is None:
            return
        run.shared.fair_queue.hold(run.id, len(run.in_flight) - sum(self._lending_of) >= run.cap)

    def _tell_of_bound(self, cap: int) -> None:
        """Log once that `max_concurrency` holds back calls which could start."""
        run = self._run
        waits = [run.wait_of(stage.index) for stage in run.stages]
        if not any(wait is not None and wait.reason == Hold.CONFIGURED.value for wait in waits):
            return
        self._told_of_bound = True
        run.log(LogLevel.INFO, type="held_back", by="max_concurrency", functions=cap)
        logger.info(
            "experiment %s held back: max_concurrency=%d functions are in flight, and more could start; leave"
            " max_concurrency out to follow the keys",
            run.experiment.name,
            cap,
        )
