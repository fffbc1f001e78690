"""Runs a command under `tidegate run` and shows what its processes do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from tidegate.cli.last_row import LastRow, drawable
from tidegate.cli.run_lines import Status, farewell
from tidegate.launch import ungoverned
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import environment
from tidegate.launch.folders import run_folder
from tidegate.launch.learning import StateFile
from tidegate.launch.runs import COMMAND
from tidegate.launch.totals import Folder

STDERR = 2
LOOK_EVERY = 0.5
"""Seconds between two drawings of the status line."""


def watch(command: Sequence[str], shown: bool = True, state: StateFile | None = None) -> int:
    """Runs the command, shows what it does, and returns its exit code; ends as it did where a signal ended it.

    With `shown` False only what is learned is kept, in `state`.
    """
    with contextlib.ExitStack() as stack:
        try:
            run_dir = stack.enter_context(run_folder())
        except OSError:
            if state is not None and shown:
                typer.echo("tidegate: there is no room for what is learned: --state is ignored", err=True)
            replace(command, environment(os.environ, None))
        (Path(run_dir) / COMMAND).write_text(f"{os.getpid()} {Path(command[0]).name}\n", "utf-8", "replace")
        learned = state.begin(run_dir) if state is not None else None
        child = Child(command, environment(os.environ, run_dir if shown else None, learned))
        totals = Folder(Path(run_dir))
        if not shown:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
        elif drawable(STDERR, os.environ):
            ended = _drawn(child, totals, run_dir)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
            with contextlib.suppress(OSError):
                typer.echo(f"tidegate: {_last_line(totals, run_dir)}", err=True)
        if state is not None:
            _keep(state, run_dir, shown)
    return child.end_alike(ended)


def _keep(state: StateFile, run_dir: str, shown: bool) -> None:
    try:
        state.end(run_dir)
    except (OSError, ValueError) as error:
        if shown:
            typer.echo(f"tidegate: what was learned could not be kept: {error}", err=True)


def _drawn(child: Child, folder: Folder, run_dir: str) -> int:
    row, status = LastRow(STDERR, os.environ), Status()
    try:
        ended = child.wait(
            lambda: row.show(status.line(folder.totals(), time.monotonic())),
            row.clear,
            LOOK_EVERY,
        )
    finally:
        row.clear()
    row.say(f"tidegate: {_last_line(folder, run_dir)}")
    return ended


def _last_line(folder: Folder, run_dir: str) -> str:
    return farewell(folder.totals(), ungoverned.read(Path(run_dir)))


def _nothing() -> None:
    pass
