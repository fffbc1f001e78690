"""Spending of one run: what its functions have spent so far is stored, and checked against its budget.

Theory of operation. The calls of a row may be many, and the process may be killed at any of them. So their usage is
stored while the row runs, by one write of each job at a time: many short calls make few writes. Without a budget, a
write follows after `SPEND_SECONDS`, so short rows make none. With a budget, it goes at once, and counts twice what was
spent since the last one beside it. That is what the function spends until the next write is durable, and what it has in
flight. The result of the row replaces it all.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidegate.admission.audit import cost_of, require_prices
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import Key, Kind
from tidegate.errors import ConfigurationError
from tidegate.experiments.engine.budget import Budget, BudgetLedger
from tidegate.experiments.engine.job import UNSPENT, Job
from tidegate.experiments.engine.queues import TASK
from tidegate.experiments.engine.results import Result
from tidegate.experiments.engine.run_state import RunSlots, RunState
from tidegate.experiments.storage import ItemAttempts, ItemUsage, LogLevel, Status

logger = logging.getLogger("tidegate")

SPEND_SECONDS = 1.0
"""Seconds between two writes of what a job without a budget has spent. Raising it loses more of a row that a kill cuts
short, and makes fewer writes: with none, 150 rows of 20 short calls took twice the time."""


@dataclass(slots=True, eq=False)
class StoredSpend:
    """Spend of a running job in the database, or on its way there.

    `counted` are the tokens and costs for which it stands there, and `seen` those that it had spent at the last look.
    While `writing`, a write is due or under way.
    """

    counted: TokenTotals = UNSPENT
    seen: TokenTotals = UNSPENT
    writing: bool = False


class RunSpending:
    """Spending of one run; it ends the run where its budget is reached, or cannot be counted.

    Where several replicas run the experiment, the run has a budget and no ledger: the claims of chunks are counted.
    """

    def __init__(self, run: RunState, slots: RunSlots) -> None:
        self._run = run
        self._slots = slots
        self._metered: set[int] = set()
        self._told_of_usage = False
        self._stored: dict[Job, StoredSpend] = {}
        self._on_stored: dict[int, Callable[[], None]] = {}

    def start(self, job: Job, context: contextvars.Context) -> None:
        """Let a job that starts in `context` wait until its expected usage is stored, and refuse unpriced calls."""
        run, ledger = self._run, self._run.ledger
        if run.kept_budget is not None and run.kept_budget.usd is not None:
            context.run(require_prices, partial(self._on_unpriced, run.kept_budget.usd))
        if ledger is not None:
            if job.item.stage == TASK:
                ledger.start_row()
            job.ready = self._stored_expectation(ledger, job)

    def on_stored(self, result: Result) -> None:
        found = self._on_stored.pop(id(result), None)
        if found is not None:
            found()

    def on_usage(self, job: Job) -> None:
        """Store what the ended calls of a job have spent, where its function goes on."""
        if job.done:
            return
        self._run.audit.note_usage(job)
        stored = self._stored.setdefault(job, StoredSpend())
        if stored.writing:
            return
        since, stored.seen = job.spent.less(stored.seen), job.spent
        if self._run.kept_budget is not None:
            self._store_spent(job, stored, job.spent.plus(since).plus(since), at_once=True)
        elif job.spent != stored.counted:
            stored.writing = True
            self._run.shared.loop.call_later(SPEND_SECONDS, self._on_due, job, stored)

    def _on_due(self, job: Job, stored: StoredSpend) -> None:
        if not job.done:
            self._store_spent(job, stored, job.spent, at_once=False)

    def _store_spent(self, job: Job, stored: StoredSpend, counted: TokenTotals, at_once: bool) -> None:
        counted = TokenTotals(*map(max, counted, stored.counted))
        if counted != stored.counted:
            stored.counted, stored.writing = counted, True
            self._store(job, counted.less(job.spent), partial(self._on_written, job, stored), at_once)

    def _on_written(self, job: Job, stored: StoredSpend) -> None:
        stored.writing = False
        self.on_usage(job)

    def end(self, job: Job) -> None:
        run, ledger = self._run, self._run.ledger
        self._stored.pop(job, None)
        if ledger is not None:
            if job.item.stage == TASK:
                ledger.end_task(job.spent, job.answered)
            else:
                ledger.end_judgement(job.item.stage, job.spent)
            self.end_if_spent()
        if run.kept_budget is not None:
            self._check_usage(run.kept_budget, job)

    def end_if_spent(self) -> None:
        """End the run if its budget is reached: what it has started is done."""
        run, ledger = self._run, self._run.ledger
        if ledger is not None and run.live and (ledger.reached or (not run.in_flight and ledger.stuck)):
            self._run.drain(Status.STOPPED, ledger.reason)

    def fits(self, stage: int) -> bool:
        run, ledger = self._run, self._run.ledger
        if ledger is None:
            return True
        if stage != TASK:
            return ledger.may_judge(stage, self._slots.jobs_of[stage])
        if ledger.may_start:
            return True
        run.work_queue.reset_age(TASK)
        if not run.in_flight:
            # No job's end follows that would find this out, or offer the judgements behind the task.
            run.in_loop(self.end_if_spent)
            if any(run.work_queue.depth(each.index) for each in run.stages[1:]):
                run.in_loop(run.offer)
        return False

    def _stored_expectation(self, ledger: BudgetLedger, job: Job) -> asyncio.Future[None] | None:
        """Store the expected usage of a job; return a future that is done when it and all before it are durable."""
        run, expected = self._run, ledger.expected(job.item.stage)
        if expected is not None and not any(expected):
            return None
        ready: asyncio.Future[None] = run.shared.loop.create_future()
        if expected is not None:
            self._stored[job] = StoredSpend(expected)
        self._store(job, expected, partial(_set_ready, ready), at_once=True)
        return ready

    def _store(self, job: Job, ahead: TokenTotals | None, on_stored: Callable[[], None], at_once: bool) -> None:
        """Store the usage of a job's item so far and what it spends `ahead` (None: no usage); then call `on_stored`."""
        run, item, usage = self._run, job.item, None
        if ahead is not None:
            # The usage at the end of the job replaces the stored one, also where its calls cost nothing.
            item.usage = item.usage or ItemUsage()
            usage = item.usage._replace(tokens=item.usage.tokens.plus(ahead))
        result = ItemAttempts(run.id, run.claim.epoch, *item.place, (), stage=job.stage.name, usage=usage)
        self._on_stored[id(run.put(None, result))] = on_stored
        if at_once:
            run.shared.writer.flush()

    def _check_usage(self, budget: Budget, job: Job) -> None:
        """End the run at an answer without usage, if no answer of its stage has stated any: no budget can count these.

        Later ones are rare exceptions, such as a broken stream: the first of them is told.
        """
        run, stage = self._run, job.item.stage
        if job.spent.metered:
            self._metered.add(stage)
            if budget.usd is not None and job.spent.priced < job.spent.metered:
                self._check_tiers(budget.usd, job)
            return
        unknown = next((each for each in job.attempts if each.kind is Kind.OK and each.usage is None), None)
        if unknown is None:
            return
        if stage not in self._metered:
            bound = (
                f"an answer of {unknown.key.provider} states no usage, so no budget can count it; a stream of openai "
                "states it with stream_options={'include_usage': True}"
            )
            self._run.fail(ConfigurationError("budget", str(budget), bound))
        elif not self._told_of_usage:
            self._told_of_usage = True
            text = "experiment %s: an answer of %s has no usage: the budget does not count it, nor others like it"
            logger.warning(text, run.experiment.name, unknown.key.provider)
            run.log(LogLevel.WARN, type="usage_unknown", provider=unknown.key.provider)

    def _check_tiers(self, limit: float, job: Job) -> None:
        """End the run at an answer of a service tier whose price is unknown: only the answer states its tier."""
        for each in job.attempts:
            usage = each.usage
            if usage is not None and cost_of(each.key, usage) is None:
                self._on_unpriced(limit, each.key, "@".join(filter(None, (usage.model, usage.tier))))
                return

    def _on_unpriced(self, limit: float, key: Key, model: str) -> None:
        """End the run before a call whose price is unknown. Any thread may call this."""
        name = f"{key.provider}/{model}" if model else key.provider
        bound = f"{name} has no price; tidegate.providers.register_price or TIDEGATE_PRICES adds one"
        self._run.in_loop(partial(self._run.fail, ConfigurationError("budget usd", limit, bound)))


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
