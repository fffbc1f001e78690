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
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import environment
from tidegate.launch.folders import run_folder
from tidegate.launch.runs import COMMAND
from tidegate.launch.totals import Folder

STDERR = 2
LOOK_EVERY = 0.5
"""Seconds between two drawings of the status line."""


def watch(command: Sequence[str]) -> int:
    """Runs the command, shows what it does, and returns its exit code; ends as it did where a signal ended it."""
    with contextlib.ExitStack() as stack:
        try:
            run_dir = stack.enter_context(run_folder())
        except OSError:
            replace(command, environment(os.environ, None))
        (Path(run_dir) / COMMAND).write_text(f"{os.getpid()} {Path(command[0]).name}\n", "utf-8", "replace")
        child = Child(command, environment(os.environ, run_dir))
        totals = Folder(Path(run_dir))
        if drawable(STDERR, os.environ):
            ended = _drawn(child, totals)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
            with contextlib.suppress(OSError):
                typer.echo(f"tidegate: {farewell(totals.totals())}", err=True)
    return child.end_alike(ended)


def _drawn(child: Child, folder: Folder) -> int:
    row, status = LastRow(STDERR, os.environ), Status()
    try:
        ended = child.wait(
            lambda: row.show(status.line(folder.totals(), time.monotonic())),
            row.clear,
            LOOK_EVERY,
        )
    finally:
        row.clear()
    row.say(f"tidegate: {farewell(folder.totals())}")
    return ended


def _nothing() -> None:
    pass
