"""`tidegate experiment run` and `resume`: has a runner of its own run one experiment, and tells how it goes."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from typing import Any

from rich.console import Console

import tidegate
from tidegate.cli.experiment import results
from tidegate.cli.experiment.blocking import block, block_new, lacking
from tidegate.cli.experiment.codes import Code, code_of
from tidegate.cli.experiment.database import existing, found
from tidegate.cli.experiment.progress import LOOK_EVERY, Display, waits
from tidegate.cli.experiment.publishing import published
from tidegate.cli.experiment.signals import heard
from tidegate.cli.experiment.tally import Tally
from tidegate.cli.run_lines import clock
from tidegate.errors import CannotLoad
from tidegate.runner import Experiment, ExperimentRunner, RunnerSettings, load
from tidegate.runner.loading import restored
from tidegate.runner.replica import gone
from tidegate.runner.summary import Summary
from tidegate.storage import ExperimentRow, Failure, Status

BEHIND = 500
"""Results at which it is said that the database is slow or away: half of what a runner holds for it."""


def run_source(source: str, url: str, max_concurrency: int | None) -> int:
    """Runs the experiment at `source`; returns the exit code."""
    _govern()
    experiment = load(source)
    if reason := lacking(experiment):
        raise asyncio.run(block_new(url, experiment, CannotLoad(source, reason)))
    return asyncio.run(_conducted(experiment, url, max_concurrency))


def resume_named(name: str, url: str, max_concurrency: int | None) -> int:
    """Goes on with an experiment that the database has; returns the exit code."""
    _govern()
    row = asyncio.run(_row(name, url))
    try:
        # Outside any loop, as `run` does it: what is imported may have one of its own.
        experiment = restored(row.spec)
    except CannotLoad as error:
        raise asyncio.run(block(url, row, error)) from None
    return asyncio.run(_conducted(experiment, url, max_concurrency))


async def _row(name: str, url: str) -> ExperimentRow:
    async with existing(url) as store:
        return await found(store, name)


def _govern() -> None:
    """Before any code of the user's is imported: whatever clients it makes are governed."""
    tidegate.install()
    # As `python -m` has it: a console script does not look where it is called.
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


async def _conducted(experiment: Experiment, url: str, max_concurrency: int | None) -> int:
    given: dict[str, Any] = {} if max_concurrency is None else {"max_concurrency": max_concurrency}
    settings = RunnerSettings.from_environment(**given)
    runner = ExperimentRunner(url, settings=settings, recover=False)
    began = time.monotonic()
    async with runner:
        with published(experiment.name, runner.replica):
            return await Conducting(runner, experiment, began).ended()


class Conducting:
    """One experiment in one runner, from its claim to its end."""

    def __init__(self, runner: ExperimentRunner, experiment: Experiment, began: float) -> None:
        self._runner = runner
        self._experiment = experiment
        self._began = began
        self._display = Display(experiment.name, Console(stderr=True, highlight=False))
        self._tally = Tally()
        self._interrupts = 0
        self._going: asyncio.Task[None] | None = None

    async def ended(self) -> int:
        """Runs it to its end, says how that was, and returns the exit code."""
        runner, experiment = self._runner, self._experiment
        await self._say_whose_it_is()
        number = self._number = await runner.start(experiment)
        with heard(self._interrupted, self._told_to_go), self._display.shown():
            waiting = asyncio.ensure_future(runner.wait(number))
            while not waiting.done() and self._going is None:
                self._look()
                await asyncio.wait({waiting}, timeout=LOOK_EVERY)
            if self._going is not None:
                await asyncio.gather(self._going, waiting, return_exceptions=True)
                self._display.say(f"{experiment.name}: ended by a signal; the claim is kept: {self._resume} goes on")
                return Code.TERMINATED
            summary = await waiting
        failures = await runner.store.failures(number)
        self._report(summary, failures)
        return code_of(summary, failures)

    async def _say_whose_it_is(self) -> None:
        row = await self._runner.store.find(self._experiment.name)
        if row is None or row.status is not Status.RUNNING or gone(row.claimed_by):
            return
        quiet = row.quiet or 0.0
        left = self._runner.settings.stale_after - quiet
        if left > 0:
            self._display.say(
                f"{row.name} is claimed by replica {row.claimed_by}, heard of {quiet:.0f} s ago: "
                f"it is taken over if nothing more is heard for {left:.0f} s"
            )

    def _look(self) -> None:
        seen = self._runner.progress(self._number)
        if seen is None:
            return
        now = time.monotonic()
        self._tally.look(seen.stages, now)
        if seen.unwritten > BEHIND:
            self._display.note = f"{seen.unwritten} results wait for the database"
        elif not self._interrupts:
            self._display.note = ""
        self._display.look(self._tally, waits(seen.stages, tidegate.registry().snapshot()), now)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            grace = self._runner.settings.grace
            self._display.note = f"stopping: what is under way may finish ({grace:.0f} s); Ctrl-C again cancels it"
            self._display.say(f"{self._experiment.name}: {self._display.note}")
            self._runner.leave(self._number)
        else:
            self._display.note = "cancelling"
            self._runner.hasten()
            # Where even that does not end it, as while the database is away: a third one ends the process.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _told_to_go(self) -> None:
        if self._going is None:
            self._display.note = f"ending: what is under way may finish ({self._runner.settings.grace:.0f} s)"
            self._display.say(f"{self._experiment.name}: {self._display.note}")
            self._going = asyncio.ensure_future(self._runner.shutdown())

    def _report(self, summary: Summary, failures: list[Failure]) -> None:
        console = Console(highlight=False)
        console.print(results.headline(summary), markup=False, soft_wrap=True)
        for table in results.tables(summary, failures):
            console.print(table)
        snapshot = tidegate.registry().snapshot()
        absorbed = snapshot.refused - sum(key.given_up for key in snapshot.keys.values())
        wall = clock(time.monotonic() - self._began)
        console.print(f"{absorbed} {'429' if absorbed == 1 else '429s'} absorbed, wall time {wall}", markup=False)
        if code_of(summary, failures) in (Code.ERRORS, Code.PARKED, Code.BROKEN_OFF):
            console.print(f"{self._resume} tries again what has failed", markup=False, soft_wrap=True)
        elif summary.status is Status.STOPPED:
            console.print(f"{self._resume} goes on", markup=False, soft_wrap=True)
        elif summary.status is Status.RUNNING:
            console.print(f"replica {summary.experiment.claimed_by} has taken it over", markup=False)

    @property
    def _resume(self) -> str:
        return f"`tidegate experiment resume {shlex.quote(self._experiment.name)}`"
