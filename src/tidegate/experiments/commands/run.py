"""Command `tidegate experiment run`: one runner of one experiment, messages, signals, report.

Theory of operation. The first Ctrl-C stops the run, the second cancels it, the third ends the process at once. TERM and
HUP end the process but keep the claim. The event loop handles the first two. Code that blocks the loop delays them, so
Python's signal handler itself counts the third.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import typer

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli.common import stop
from tidegate.core.events import Event, SlotReleased
from tidegate.core.values import Kind, Outcome
from tidegate.core.wait_text import clock, failure_text
from tidegate.errors import CannotLoad, StoppedElsewhere, UnknownExperiment
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings, StateChanged, Subscription
from tidegate.experiments.commands import display
from tidegate.experiments.commands.common import (
    Code,
    after_cooldown,
    block_new,
    code_of,
    command,
    install,
    loaded,
    published,
    row_of,
)
from tidegate.experiments.commands.display import LOOK_SECONDS, Display, ShownCounts, printer, spent_text, waits
from tidegate.experiments.commands.plan import Correction, first_lines
from tidegate.experiments.engine.budget import budget_options
from tidegate.experiments.engine.experiment import advice, changed_parts
from tidegate.experiments.engine.loader import lacking, restored
from tidegate.experiments.engine.progress import WORDS, Summary
from tidegate.experiments.engine.queues import TASK
from tidegate.experiments.engine.replica import STALE_SECONDS, is_dead, owner
from tidegate.experiments.storage import Failure, ResultStatus, RunResult, Status
from tidegate.experiments.storage.results import KEPT_LINES


@contextlib.contextmanager
def last_failures(registry: RateLimitRegistry) -> Iterator[dict[str, str]]:
    """Keep the last transient failure of each key in a few words, by the key's printed form, while the block lasts."""
    last: dict[str, str] = {}

    def listen(event: Event) -> None:
        if isinstance(event, SlotReleased) and event.kind is Kind.TRANSIENT:
            last[str(event.key)] = failure_text(Outcome(event.kind, event.cause, status=event.status))

    unsubscribe = registry.subscribe(listen)
    try:
        yield last
    finally:
        unsubscribe()


async def notices(runner: ExperimentRunner, experiment: Experiment, *, resumed: bool) -> list[str]:
    """Return the messages to print before a run: the present owner, the answers of earlier runs, and changes since.

    With `resumed` the user named a stored experiment, so the number of its earlier answers is not reported.
    """
    row = await runner.store.experiments.find(experiment.name)
    if row is None:
        return []
    lines: list[str] = []
    quiet = row.quiet or 0.0
    if row.status is Status.RUNNING and not is_dead(row.claimed_by) and quiet < STALE_SECONDS:
        by = owner(row, await runner.store.reports.last_logs(row.id, KEPT_LINES))
        lines.append(
            f"{row.name} not started yet: it is run by {by}, last heartbeat {quiet:.0f} s ago; attach with "
            f"{command('show', row.name, runner.url)}; this command waits for its end, and takes it over after "
            f"{STALE_SECONDS - quiet:.0f} s without a heartbeat"
        )
    counts = await runner.store.reports.counts(row.id)
    if answered := counts.runs.get(ResultStatus.OK, 0):
        are = "answer is" if answered == 1 else "answers are"
        lines += [] if resumed else [f"{row.name}: {answered} {are} kept; --fresh, or a new name, asks all again"]
        if parts := changed_parts(row, experiment):
            lines.append(f"{row.name} changed: {advice(parts)}")
    return lines


TERMINATING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end the process and keep the claim."""

KILLING_INTERRUPTS = 3
"""Number of the Ctrl-C that ends the process, whatever it does. Chosen: the earlier ones stop the run in order, and a
repeated one may be an accident."""

SHOW_CURSOR = b"\x1b[?25h\n"
"""Bytes that show the cursor, which the picture of a run hides (ECMA-48, xterm: DECTCEM)."""


@contextlib.contextmanager
def signal_handlers(on_interrupt: Callable[[], None], on_termination: Callable[[], None]) -> Iterator[None]:
    """Call the functions in the running loop at each signal. Do nothing where loops handle none (Windows)."""
    loop = asyncio.get_running_loop()
    put = []
    for number, call in [(signal.SIGINT, on_interrupt), *((each, on_termination) for each in TERMINATING)]:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call)
            put.append(number)
    if signal.SIGINT in put:
        # Replaces the loop's handler, which does nothing: its wakeup descriptor notifies the loop of a signal.
        signal.signal(signal.SIGINT, partial(_kill_at_last, count(1)))
        signal.siginterrupt(signal.SIGINT, False)
    try:
        yield
    finally:
        for number in put:
            loop.remove_signal_handler(number)


def _kill_at_last(counted: Iterator[int], number: int, frame: FrameType | None) -> None:
    """Count the calls of a signal handler, and end the process at the last one."""
    if next(counted) < KILLING_INTERRUPTS:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), SHOW_CURSOR)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


LATE_RESULTS = 500
"""Unwritten results at which the display reports a slow or missing database. Derived from `results.UNWRITTEN_RESULTS`:
half of it."""


def run_source(
    source: str,
    url: str,
    given: Mapping[str, Any],
    limit: int | None = None,
    *,
    fresh: bool = False,
    spread: bool = False,
) -> int:
    """Run the experiment at `source`, or its first `limit` rows. Return the exit code.

    A source that names no code and no file is the name or number of an experiment of the database. With `fresh` it runs
    under a name that is not used yet; with `spread` other replicas may answer rows of it.
    """
    install()
    # Outside any event loop: imported code may run its own loop.
    experiment, row = loaded(source, url)
    if row is None and (reason := lacking(experiment.credentials)):
        raise asyncio.run(block_new(url, experiment, CannotLoad(source, reason)))
    experiment.spread = experiment.spread or spread
    return run_loop(_run_experiment(experiment, url, given, limit, resumed=row is not None, fresh=fresh), given)


def join_named(name: str, url: str, given: Mapping[str, Any]) -> int:
    """Answer chunks of an experiment that another replica runs. Return the exit code."""
    install()
    row = asyncio.run(row_of(name, url))
    if row is None:
        raise UnknownExperiment(name)
    if not row.spec.get("spread"):
        again = command("run", "SOURCE", url, "--spread")
        raise stop(f"{row.name} not joined: it runs in one process at a time; {again} lets others join (PostgreSQL)")
    if row.status is not Status.RUNNING:
        raise stop(f"{row.name} not joined: its state is {row.status}; {command('run', row.name, url)} continues it")
    try:
        # Outside any event loop, as in `run`: imported code may run its own loop.
        experiment = restored(row.spec)
    except CannotLoad as error:
        raise stop(f"{row.name} not joined: {error.reason}", Code.BLOCKED) from None
    return run_loop(_join_experiment(experiment, url, given), given)


def run_loop(main: Coroutine[Any, Any, int], given: Mapping[str, Any]) -> int:
    """Run `main` as `asyncio.run` does, which waits for ever for a function that ignores its cancellation.

    Such functions have the `grace` of the settings, and the process ends without them.
    """
    with contextlib.closing(main):
        # An unusable setting is raised before there is a loop to close.
        grace = RunnerSettings.from_environment(**given).grace
        runner = asyncio.Runner()
        try:
            return runner.run(main)
        finally:
            left = runner.run(_ended_tasks(grace))
            if left:
                more = f" and {len(left) - 1} more" if len(left) > 1 else ""
                typer.echo(
                    f"{left[0]}{more} not ended: its cancellation was ignored; the process ends without it", err=True
                )
                # The end of the process destroys these tasks, which is no further news.
                runner.get_loop().set_exception_handler(lambda loop, context: None)
                _unclosed.append(runner)
            else:
                runner.close()


_unclosed: list[asyncio.Runner] = []


async def _ended_tasks(seconds: float) -> list[str]:
    """Cancel all other tasks of the loop, and return the names of those that do not end within these seconds."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for each in tasks:
        each.cancel()
    left = (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else ()
    return sorted(each.get_name() for each in left)


async def _run_experiment(
    experiment: Experiment,
    url: str,
    given: Mapping[str, Any],
    limit: int | None,
    *,
    resumed: bool,
    fresh: bool,
) -> int:
    runner = ExperimentRunner(
        url, settings=RunnerSettings.from_environment(**given), recover=False, report_changes=False
    )
    began = time.monotonic()
    async with runner:
        if fresh:
            experiment = await runner.fresh(experiment)
        with published(experiment.name, runner.replica):
            return await ExperimentCommand(runner, experiment, began, limit).ended(resumed)


async def _join_experiment(experiment: Experiment, url: str, given: Mapping[str, Any]) -> int:
    runner = ExperimentRunner(
        url,
        settings=RunnerSettings.from_environment(**given),
        recover=False,
        restore=lambda spec: experiment,
        report_changes=False,
    )
    began = time.monotonic()
    async with runner:
        with published(experiment.name, runner.replica):
            return await ContributorCommand(runner, experiment, began).joined()


def given_settings(
    max_concurrency: int | None, budget_usd: float | None = None, budget_tokens: int | None = None
) -> dict[str, Any]:
    named = {"max_concurrency": max_concurrency, "budget_usd": budget_usd, "budget_tokens": budget_tokens}
    return {name: value for name, value in named.items() if value is not None}


class ExperimentCommand:
    """One experiment in one runner, from its claim to its end."""

    _kept = "; the claim is kept"

    def __init__(
        self, runner: ExperimentRunner, experiment: Experiment, began: float, limit: int | None = None
    ) -> None:
        self._limit = limit
        self._runner = runner
        self._experiment = experiment
        self._began = began
        self._display = Display(experiment.name, printer(stderr=True))
        self._tally = ShownCounts()
        self._correction = Correction()
        self._failures: dict[str, str] = {}
        self._interrupts = 0
        self._shutdown: asyncio.Task[None] | None = None

    async def ended(self, resumed: bool) -> int:
        """Run the experiment to its end, report the result, and return the exit code. `resumed`: a name was given."""
        runner, experiment = self._runner, self._experiment
        # Before the notices: what they say about another run must not be old when this one starts.
        for each in await first_lines(experiment, runner.store, runner.settings.max_concurrency, self._limit):
            self._display.say(each)
        for each in await notices(runner, experiment, resumed=resumed):
            self._display.say(each)
        try:
            number = self._number = await self._started()
        except StoppedElsewhere as error:
            self._display.say(f"{experiment.name} not started: it was stopped by {error.by or 'a user'}")
            summary = await runner.summary(experiment.name)
            self._report(summary, await runner.store.reports.failures(summary.experiment.id))
            return Code.STOPPED
        ended = await self._watched()
        if ended is None:
            return Code.TERMINATED
        failures = await runner.store.reports.failures(number)
        self._report(ended, failures)
        return code_of(ended, failures, self._limit)

    async def _watched(self) -> Summary | None:
        """Show the run until its end; return None where a signal ended it."""
        runner = self._runner
        with (
            last_failures(tidegate.registry()) as self._failures,
            signal_handlers(self._interrupted, self._terminated),
            self._display.shown(),
        ):
            waiting = asyncio.ensure_future(runner.wait(self._number))
            while not (self._shutdown or waiting).done():
                self._look()
                await asyncio.wait({self._shutdown or waiting}, timeout=LOOK_SECONDS)
            if self._shutdown is not None:
                await asyncio.gather(self._shutdown, waiting, return_exceptions=True)
                self._display.say(self._terminated_text())
                return None
            return await waiting

    def _terminated_text(self) -> str:
        continues = self._command("run")
        return f"{self._experiment.name} ended: by a signal; the claim is kept, {continues} continues it"

    async def _started(self) -> int:
        """Return the experiment's number once it is claimed, after any cooldown."""
        notice = f"{self._experiment.name} not started yet: it was stopped or resumed a moment ago; it starts"
        start = partial(self._runner.start, self._experiment, follow=True, limit=self._limit)
        return await after_cooldown(start, self._display.say, notice)

    def _look(self) -> None:
        seen = self._runner.progress(self._number)
        if seen is None:
            return
        now = time.monotonic()
        self._tally.update(seen.stages, now, seen.all_rows, seen.rest)
        self._tally.spent = spent_text(seen.tokens, seen.budget)
        if line := self._correction.line(seen):
            self._display.say(line)
        if seen.unwritten > LATE_RESULTS:
            self._display.note = f"{seen.unwritten} results wait for the database"
        elif not self._interrupts and self._shutdown is None:
            batched = seen.stages[TASK].under_way if self._experiment.batch else 0
            self._display.note = f"{batched} rows are in batches of the provider" if batched else ""
        self._display.update(self._tally, waits(seen.stages, tidegate.registry().snapshot(), self._failures), now)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            grace = self._runner.settings.grace
            self._display.end(f"stopping: work in flight has {grace:.0f} s to finish; Ctrl-C again cancels it")
            self._runner.leave(self._number)
        else:
            self._display.end("cancelling work in flight; Ctrl-C again ends the process at once")
            self._runner.hasten()

    def _terminated(self) -> None:
        if self._shutdown is None:
            self._display.end(f"ending: work in flight has {self._runner.settings.grace:.0f} s to finish{self._kept}")
            self._shutdown = asyncio.ensure_future(self._runner.shutdown())

    def _report(self, summary: Summary, failures: list[Failure]) -> None:
        console = printer()
        console.print(summary.headline, markup=False, soft_wrap=True)
        for table in display.tables(summary, failures):
            console.print(table)
        for each_line in display.calls(summary):
            console.print(each_line, markup=False, soft_wrap=True)
        refused = tidegate.registry().snapshot().refused
        wall = clock(time.monotonic() - self._began)
        console.print(f"{display.refusals(refused, summary)}, wall time {wall}", markup=False)
        for line in display.bounds(tidegate.registry().snapshot()):
            console.print(line, markup=False, soft_wrap=True)
        if next_ := self._next(summary, failures):
            console.print(next_, markup=False, soft_wrap=True)

    def _next(self, summary: Summary, failures: list[Failure]) -> str:
        """Return the next step for the user; empty if there is none."""
        if summary.status is Status.RUNNING:
            return f"experiment taken over: replica {summary.experiment.claimed_by} runs it now"
        parked = sum(each.count for each in failures if each.status is ResultStatus.PARKED)
        if summary.status is Status.STOPPED:
            # The budget of the spec, or of this command's options, is spent: only a larger one continues the run.
            larger = budget_options(summary.last_error or "")
            return f"{self._command('run', *larger)} continues it" + (
                f", and tries {parked} parked again" if parked else ""
            )
        if self._runner.saved is not None:
            return f"{self._command('run')} continues it from the copy"
        once = "once the cause is corrected, " if summary.status is Status.ERROR else ""
        if parked and not any(each.status is ResultStatus.ERROR for each in failures):
            return f"{once}{self._command('run')} tries the {parked} parked again"
        if any(each.status in (ResultStatus.ERROR, ResultStatus.PARKED) for each in failures):
            return f"{once}{self._command('run')} tries the failed ones again"
        if once:
            return f"{once}{self._command('run')} continues it"
        return f"{self._command('export')} writes every answer" if summary.answered else ""

    def _command(self, verb: str, *more: str) -> str:
        saved = self._runner.saved
        return command(verb, self._experiment.name, self._runner.url if saved is None else str(saved), *more)


class ContributorCommand(ExperimentCommand):
    """Chunks of an experiment that another replica owns, from the first claim to the last."""

    _kept = ""

    async def joined(self) -> int:
        """Answer chunks until none is left, report the result, and return the exit code."""
        runner, name = self._runner, self._experiment.name
        row = await runner.store.experiments.find(name)
        if row is None:
            raise UnknownExperiment(name)
        self._number = row.id
        by = owner(row, await runner.store.reports.last_logs(row.id, KEPT_LINES))
        # Before the start, so that no result is missed.
        events = runner.subscribe(name)
        if not await runner.join(row.id):
            events.close()
            self._display.say(f"{name} not joined: it has ended since")
            return Code.FAILED
        self._display.say(f"{name} joined: rows are answered here too; it is run by {by}")
        counted = Counter[ResultStatus]()
        counting = asyncio.ensure_future(_count(events, counted))
        summary = await self._watched()
        reason = await counting
        if summary is None:
            return Code.TERMINATED
        self._report_part(summary, counted, reason)
        if self._interrupts:
            return Code.STOPPED
        return Code.BROKEN_OFF if reason and summary.status is Status.RUNNING else Code.DONE

    def _report_part(self, summary: Summary, counted: Counter[ResultStatus], reason: str | None) -> None:
        console = printer()
        # The experiment's own state says why it ended.
        why = f" ({reason})" if reason and summary.status is Status.RUNNING else ""
        counts = ", ".join(f"{counted[each]} {word}" for each, word in WORDS.items() if counted[each])
        here = f"{counted[ResultStatus.OK]} answered" + (f", {counts}" if counts else "")
        console.print(f"{self._experiment.name}: part of this process ended{why}: {here}", markup=False, soft_wrap=True)
        console.print(summary.headline, markup=False, soft_wrap=True)
        refused = tidegate.registry().snapshot().refused
        wall = clock(time.monotonic() - self._began)
        console.print(f"{display.refusals(refused, summary)}, wall time {wall}", markup=False)
        if summary.status is Status.RUNNING:
            shows = self._command("show")
            console.print(f"the owner judges the answers; {shows} shows its state", markup=False, soft_wrap=True)

    def _terminated_text(self) -> str:
        return f"{self._experiment.name} left: by a signal; its other rows are answered elsewhere"


async def _count(events: Subscription, counted: Counter[ResultStatus]) -> str | None:
    """Count the results of this replica by status until the end of its part; return the reason of that end."""
    reason = None
    async for event in events:
        if isinstance(event, RunResult):
            counted[event.status] += 1
        elif isinstance(event, StateChanged):
            reason = event.reason
    return reason
