"""`tidegate run`: any Python command with tidegate in it and in its Python children."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tidegate.cli.complaints import stop
from tidegate.cli.last_row import LastRow, drawable
from tidegate.cli.run_lines import Status, farewell
from tidegate.launch.child import Child, Unstartable, replace
from tidegate.launch.environment import environment, running
from tidegate.launch.totals import Folder
from tidegate.settings import Settings

STDOUT, STDERR = 1, 2
LOOK_EVERY = 0.5
"""Seconds between two drawings of the status line."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD [ARGS]...", help="what to run, as you would without us")],
) -> None:
    """Run a command with every LLM call of its Python processes at the provider's true limit.

    Everything after `run` belongs to the command, options too.
    """
    settings = Settings.from_environment()
    try:
        if settings.disabled:
            if settings.log and heard():
                typer.echo("tidegate: TIDEGATE_DISABLED is set; the command runs ungoverned", err=True)
            replace(command, os.environ)
        if not settings.log or not heard() or running(os.environ):
            replace(command, environment(os.environ, None))
        raise typer.Exit(_watched(command))
    except Unstartable as error:
        raise stop(str(error), error.code) from None


def heard() -> bool:
    """Whether a line on standard error would spoil nothing: it is a terminal, or goes elsewhere than the output."""
    try:
        err = os.fstat(STDERR)
        if os.isatty(STDERR):
            return True
        out = os.fstat(STDOUT)
    except OSError:
        return False
    return (err.st_dev, err.st_ino) != (out.st_dev, out.st_ino)


def _watched(command: list[str]) -> int:
    """Runs the command, shows what it does, and returns its exit code; ends as it did where a signal ended it."""
    # A process that outlives the command may still write there.
    with TemporaryDirectory(prefix="tidegate-run-", ignore_cleanup_errors=True) as run_dir:
        folder, status = Folder(Path(run_dir)), Status()
        row = LastRow(STDERR, os.environ)
        child = Child(command, environment(os.environ, run_dir))

        def show() -> None:
            row.show(status.line(folder.totals(), time.monotonic()))

        try:
            ended = child.wait(show if drawable(STDERR, os.environ) else _nothing, row.clear, LOOK_EVERY)
        finally:
            row.clear()
        said = f"tidegate: {farewell(folder.totals())}"
        if drawable(STDERR, os.environ):
            row.say(said)
        else:
            typer.echo(said, err=True)
    return child.end_alike(ended)


def _nothing() -> None:
    pass
