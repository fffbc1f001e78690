"""`tidegate experiment run` and `resume`: has a runner of its own run one experiment, and tells how it goes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from typing import Any

import tidegate
from tidegate.cli.experiment import earlier, results
from tidegate.cli.experiment.blocking import block, block_new
from tidegate.cli.experiment.codes import Code, code_of
from tidegate.cli.experiment.cooling import once_cooled
from tidegate.cli.experiment.database import existing, found
from tidegate.cli.experiment.hints import command
from tidegate.cli.experiment.progress import LOOK_EVERY, Display, waits
from tidegate.cli.experiment.publishing import published
from tidegate.cli.experiment.signals import heard
from tidegate.cli.experiment.tables import printer
from tidegate.cli.experiment.tally import Tally
from tidegate.cli.experiment.trouble import Trouble
from tidegate.cli.run_lines import clock
from tidegate.errors import CannotLoad, StoppedElsewhere
from tidegate.runner import Experiment, ExperimentRunner, RunnerSettings, load
from tidegate.runner.loader import lacking, restored
from tidegate.runner.progress import Summary
from tidegate.storage import ExperimentRow, Failure, ResultStatus, Status

BEHIND = 500
"""Results at which it is said that the database is slow or away: half of what a runner holds for it."""


def run_source(source: str, url: str, max_concurrency: int | None) -> int:
    """Runs the experiment at `source`; returns the exit code."""
    _govern()
    experiment = load(source)
    if reason := lacking(experiment.credentials):
        raise asyncio.run(block_new(url, experiment, CannotLoad(source, reason)))
    return asyncio.run(_conducted(experiment, url, max_concurrency, again=False))


def resume_named(name: str, url: str, max_concurrency: int | None) -> int:
    """Goes on with an experiment that the database has; returns the exit code."""
    _govern()
    row = asyncio.run(_row(name, url))
    try:
        # Outside any loop, as `run` does it: what is imported may have one of its own.
        experiment = restored(row.spec)
    except CannotLoad as error:
        raise asyncio.run(block(url, row, error)) from None
    return asyncio.run(_conducted(experiment, url, max_concurrency, again=True))


async def _row(name: str, url: str) -> ExperimentRow:
    async with existing(url) as store:
        return await found(store, name)


def _govern() -> None:
    """Before any code of the user's is imported: whatever clients it makes are governed."""
    tidegate.install()
    # As `python -m` has it: a console script does not look where it is called.
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


async def _conducted(experiment: Experiment, url: str, max_concurrency: int | None, *, again: bool) -> int:
    given: dict[str, Any] = {} if max_concurrency is None else {"max_concurrency": max_concurrency}
    settings = RunnerSettings.from_environment(**given)
    runner = ExperimentRunner(url, settings=settings, recover=False)
    began = time.monotonic()
    async with runner:
        with published(experiment.name, runner.replica):
            return await Conducting(runner, experiment, began).ended(again)


class Conducting:
    """One experiment in one runner, from its claim to its end."""

    def __init__(self, runner: ExperimentRunner, experiment: Experiment, began: float) -> None:
        self._runner = runner
        self._experiment = experiment
        self._began = began
        self._display = Display(experiment.name, printer(stderr=True))
        self._tally = Tally()
        self._trouble = Trouble()
        self._interrupts = 0
        self._going: asyncio.Task[None] | None = None

    async def ended(self, again: bool) -> int:
        """Runs it to its end, says how that was, and returns the exit code; `again` says that it was resumed."""
        runner, experiment = self._runner, self._experiment
        for each in await earlier.told(runner, experiment, again=again):
            self._display.say(each)
        try:
            number = self._number = await self._started()
        except StoppedElsewhere as error:
            self._display.say(f"{experiment.name} was stopped by {error.by or 'a user'}: it is not started here")
            summary = await runner.summary(experiment.name)
            self._report(summary, await runner.store.failures(summary.experiment.id))
            return Code.STOPPED
        registry = tidegate.registry()
        with self._trouble.heard(registry), heard(self._interrupted, self._told_to_go), self._display.shown():
            waiting = asyncio.ensure_future(runner.wait(number))
            while not (self._going or waiting).done():
                self._look()
                await asyncio.wait({self._going or waiting}, timeout=LOOK_EVERY)
            if self._going is not None:
                await asyncio.gather(self._going, waiting, return_exceptions=True)
                self._display.say(
                    f"{experiment.name}: ended by a signal; the claim is kept: {self._typed('resume')} goes on"
                )
                return Code.TERMINATED
            summary = await waiting
        failures = await runner.store.failures(number)
        self._report(summary, failures)
        return code_of(summary, failures)

    async def _started(self) -> int:
        """The experiment's number once it is claimed; a cool-down is waited out."""
        what = f"{self._experiment.name} was stopped or resumed a moment ago: it goes on"
        start = partial(self._runner.start, self._experiment, follow=True)
        return await once_cooled(start, self._display.say, what)

    def _look(self) -> None:
        seen = self._runner.progress(self._number)
        if seen is None:
            return
        now = time.monotonic()
        self._tally.look(seen.stages, now, seen.all_rows)
        if seen.unwritten > BEHIND:
            self._display.note = f"{seen.unwritten} results wait for the database"
        elif not self._interrupts and self._going is None:
            self._display.note = ""
        self._display.look(self._tally, waits(seen.stages, tidegate.registry().snapshot(), self._trouble.of), now)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            grace = self._runner.settings.grace
            self._display.end(f"stopping: what is under way may finish ({grace:.0f} s); Ctrl-C again cancels it")
            self._runner.leave(self._number)
        else:
            self._display.end("cancelling; Ctrl-C again ends the process at once")
            self._runner.hasten()

    def _told_to_go(self) -> None:
        if self._going is None:
            self._display.end(f"ending: what is under way may finish ({self._runner.settings.grace:.0f} s)")
            self._going = asyncio.ensure_future(self._runner.shutdown())

    def _report(self, summary: Summary, failures: list[Failure]) -> None:
        console = printer()
        console.print(summary.headline, markup=False, soft_wrap=True)
        for table in results.tables(summary, failures):
            console.print(table)
        snapshot = tidegate.registry().snapshot()
        absorbed = snapshot.refused - sum(key.given_up for key in snapshot.keys.values())
        wall = clock(time.monotonic() - self._began)
        console.print(f"{absorbed} {'429' if absorbed == 1 else '429s'} absorbed, wall time {wall}", markup=False)
        if next_ := self._next(summary, failures):
            console.print(next_, markup=False, soft_wrap=True)

    def _next(self, summary: Summary, failures: list[Failure]) -> str:
        """Return what there is to be done about it."""
        if summary.status is Status.RUNNING:
            return f"replica {summary.experiment.claimed_by} has taken it over"
        parked = sum(each.count for each in failures if each.status is ResultStatus.PARKED)
        if summary.status is Status.STOPPED:
            return f"{self._typed('resume')} goes on" + (f", with {parked} parked too" if parked else "")
        if self._runner.saved is not None:
            return f"{self._typed('resume')} goes on from the copy"
        if parked and not any(each.status is ResultStatus.ERROR for each in failures):
            return f"{self._typed('resume')} tries again the {parked} that are parked"
        if any(each.status in (ResultStatus.ERROR, ResultStatus.PARKED) for each in failures):
            return f"{self._typed('resume')} tries again what has failed"
        if summary.status is Status.ERROR:
            return f"{self._typed('resume')} goes on once that is mended"
        return f"{self._typed('export')} writes every answer" if summary.answered else ""

    def _typed(self, verb: str) -> str:
        saved = self._runner.saved
        return command(verb, self._experiment.name, self._runner.url if saved is None else str(saved))
