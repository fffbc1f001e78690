"""Shared parts of the experiment commands: exit codes, the database, the cooldown, counts, commands to type next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import typer

import tidegate
from tidegate.admission import hooks
from tidegate.cli.common import DATABASE, VARIABLE, stop
from tidegate.errors import CannotLoad, CoolingDown, StoreError, UnknownExperiment
from tidegate.experiments import Experiment, load
from tidegate.experiments.commands.display import printer
from tidegate.experiments.engine.loader import FORMS, is_source, reread
from tidegate.experiments.engine.progress import Summary
from tidegate.experiments.engine.replica import STALE_SECONDS, is_dead, replica_name, replica_tag
from tidegate.experiments.engine.run_state import limit_reached
from tidegate.experiments.storage import ExperimentRow, Failure, ResultStatus, Status, Store
from tidegate.experiments.storage.claims import COOLDOWN_SECONDS
from tidegate.experiments.storage.database import has_secret, parsed


class Code(IntEnum):
    """Exit codes: one for each outcome that a script would handle differently.

    2 is click's code for unusable input. 130 and 143 are a shell's codes for SIGINT and SIGTERM.
    """

    DONE = 0
    FAILED = 1
    UNUSABLE = 2
    ERRORS = 3
    PARKED = 4
    STOPPED = 5
    BLOCKED = 6
    BROKEN_OFF = 7
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Code.DONE: "every row (of the first N with `--limit N`) was answered, and every answer judged",
    Code.FAILED: "the command failed: the database or the dataset is missing, or another process runs it",
    Code.UNUSABLE: "an option, a name or a file cannot be used",
    Code.ERRORS: "the run is complete, but rows or evaluations failed or are invalid; `run` tries failed ones again",
    Code.PARKED: "the run is complete, but rows or evaluations are parked; `run` tries them again",
    Code.STOPPED: "it was stopped, here or elsewhere, or its provider was down for `max_outage`; `run` continues it",
    Code.BLOCKED: "its code cannot be loaded here, or a credential is missing; the last line names it",
    Code.BROKEN_OFF: "the run ended early: too many failures of one kind in a row, a dataset that cannot be read, "
    "or a database file that was deleted or replaced; correct the cause, then `run` continues it",
    Code.INTERRUPTED: "Ctrl-C before the run began, for example while another process runs it; nothing has changed",
    Code.TERMINATED: "SIGTERM or SIGHUP: work in flight had 30 s to finish; the claim is kept, a process may continue",
}

BY_STATUS = {
    Status.READY: Code.FAILED,
    Status.RUNNING: Code.FAILED,
    Status.STOPPED: Code.STOPPED,
    Status.BLOCKED: Code.BLOCKED,
    Status.ERROR: Code.BROKEN_OFF,
}


def code_of(summary: Summary, failures: list[Failure], limit: int | None = None) -> Code:
    """Return the exit code of a run that has ended, or was to do the first `limit` rows."""
    limited = limit is not None and summary.last_error == limit_reached(limit)
    if summary.status is not Status.COMPLETED and not limited:
        return BY_STATUS[summary.status]
    asked = summary.experiment.spec.get("evaluators")
    # An evaluator that the experiment no longer has may have failed: a resume would not change that.
    known = {None, *(asked if isinstance(asked, dict) else (each.evaluator for each in failures))}
    failed = [each for each in failures if each.evaluator in known]
    if any(each.status is not ResultStatus.PARKED for each in failed):
        return Code.ERRORS
    if failed:
        return Code.PARKED
    return Code.DONE if summary.complete or limited else Code.ERRORS


@asynccontextmanager
async def existing(url: str, *, to_read: bool = False) -> AsyncIterator[Store]:
    """Open the existing store at a URL. A missing SQLite file is an error, and is not created.

    A store that is opened `to_read` need not be writable.
    """
    if not is_there(url):
        raise StoreError(
            f"database {parsed(url).database!r} not found: there is no such file; create it with `tidegate experiment "
            "run`, or name another one with --db or TIDEGATE_DB"
        )
    store = await (Store.open_to_read(url) if to_read else Store.open(url))
    try:
        yield store
    finally:
        await store.close()


def is_there(url: str) -> bool:
    """Return False if the database is an SQLite file that is missing."""
    place = parsed(url)
    return place.get_backend_name() != "sqlite" or Path(place.database or "").exists()


async def found(store: Store, name: str) -> ExperimentRow:
    """Return the experiment with that name or number. Raise `UnknownExperiment`."""
    row = await store.experiments.find(name)
    if row is None:
        raise UnknownExperiment(name)
    return row


T = TypeVar("T")

RETRY_SECONDS = 0.5
"""Seconds between two attempts while a cooldown lasts. Chosen: ten attempts in the cooldown of
`experiments.storage.claims.COOLDOWN_SECONDS`."""


async def after_cooldown(toggle: Callable[[], Awaitable[T]], say: Callable[[str], None], notice: str) -> T:
    """Return the result of `toggle`, which is repeated until the cooldown is over.

    Report a wait once: call `say` with `notice` and the longest wait. Raise `CoolingDown` a second after the
    cooldown should have ended: toggles of other users restart it.
    """
    patience, reported = COOLDOWN_SECONDS + 1.0, False
    while True:
        try:
            return await toggle()
        except CoolingDown:
            if patience <= 0.0:
                raise
            if not reported:
                say(f"{notice} within {COOLDOWN_SECONDS:.0f} s")
                reported = True
        await sleep(RETRY_SECONDS)
        patience -= RETRY_SECONDS


def command(verb: str, name: str, url: str, *more: str) -> str:
    """Return `tidegate experiment VERB NAME` as it is typed here, with `--db` for a database that an option named.

    A URL with a password is replaced by `…`.
    """
    words = ["tidegate", "experiment", verb, name, *more]
    if url not in (DATABASE, os.environ.get(VARIABLE)):
        words += ["--db", "…" if has_secret(parsed(url)) else url]
    return f"`{' '.join(word if word == '…' else shlex.quote(word) for word in words)}`"


@contextlib.contextmanager
def published(name: str, replica: str) -> Iterator[None]:
    """Keep the counts of every key opened in this block in a folder that other processes can read.

    Do nothing without POSIX, where no folder can be made, or below `tidegate run`, which keeps the counts already.
    """
    if os.name != "posix":
        yield
        return
    from tidegate.launch.bootstrap import KeyRecorder
    from tidegate.launch.environment import runs_inside
    from tidegate.launch.runs import run_folder, write_command

    with contextlib.ExitStack() as stack:
        if not runs_inside(os.environ):
            with contextlib.suppress(OSError):
                folder = stack.enter_context(run_folder())
                write_command(Path(folder), _command(name, replica))
                before = hooks.on_new_queue
                stack.callback(setattr, hooks, "on_new_queue", before)
                hooks.on_new_queue = KeyRecorder(folder).on_new_queue
        yield


def _command(name: str, replica: str) -> str:
    return f"tidegate experiment {name} {replica_tag(replica)}"


async def block(url: str, row: ExperimentRow, error: CannotLoad) -> typer.Exit:
    """Report why an experiment cannot run here, and return the exception to raise.

    An experiment that is READY, or whose replica has died, becomes BLOCKED, so that no other replica claims it in vain.
    A stopped or ended one keeps its state.
    """
    if row.status in (Status.READY, Status.RUNNING):
        stale_after = 0.0 if is_dead(row.claimed_by) else STALE_SECONDS
        async with existing(url) as store:
            claim = await store.claims.claim(row.id, replica_name(), stale_after)
            if claim is not None:
                await store.claims.release(claim, Status.BLOCKED, error.reason)
    return stop(str(error), Code.BLOCKED)


async def block_new(url: str, experiment: Experiment, error: CannotLoad) -> typer.Exit:
    """Block as `block` does, for an experiment that the database may not have yet."""
    store = await Store.open(url)
    try:
        row = await store.experiments.create(
            experiment.name, experiment.spec(), experiment.repetitions, experiment.described
        )
    finally:
        await store.close()
    return await block(url, row, error)


def loaded(source: str, url: str, *, to_read: bool = False) -> tuple[Experiment, ExperimentRow | None]:
    """Return the experiment at `source` and None, or an experiment of the database and its row; raise `CannotLoad`.

    One of the database that cannot run here becomes BLOCKED, unless the database is opened `to_read`.
    """
    error = CannotLoad(source, f"it names no file, no object of a module, no experiment of the database; use {FORMS}")
    if is_source(source):
        try:
            return load(source), None
        except CannotLoad as failed:
            # An experiment may have a name that looks like a file or an object.
            error = failed
    row = asyncio.run(row_of(source, url, to_read=to_read)) if is_there(url) else None
    if row is None:
        raise error
    try:
        experiment, notice = reread(row.spec)
    except CannotLoad as failed:
        raise (stop(str(failed), Code.BLOCKED) if to_read else asyncio.run(block(url, row, failed))) from None
    if notice:
        printer(stderr=True).print(f"{row.name}: {notice}", markup=False, soft_wrap=True)
    return experiment, row


async def row_of(name: str, url: str, *, to_read: bool = False) -> ExperimentRow | None:
    async with existing(url, to_read=to_read) as store:
        return await store.experiments.find(name)


def install() -> None:
    """Install tidegate before any code of the user is imported, so that all its clients are governed."""
    tidegate.install()
    # As with `python -m`: a console script does not search the working directory.
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
