"""`tidegate run`: any Python command, with tidegate active in it and in its Python children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.errors import stop
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.launch.environment import StateFile

STDOUT, STDERR = 1, 2


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD [ARGS]...", help="Command to execute, with its arguments.")
    ],
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="FILE", help="Start from the limits in FILE, and save the learned limits to it."
        ),
    ] = None,
) -> None:
    """Run a command, and send every LLM call of its Python processes at the provider's true rate limit.

    Options after CMD are passed to the command.
    """
    if os.name != "posix":
        raise stop("run not available: it needs a POSIX system; put `import tidegate.auto` into the program instead")
    # Imported late: these need a POSIX system.
    from tidegate.cli.watch import watch
    from tidegate.launch.child import Unstartable, replace
    from tidegate.launch.environment import environment, runs_inside

    settings = Settings.from_environment()
    shown = settings.log and is_stderr_readable()
    try:
        if settings.disabled:
            if shown:
                typer.echo("tidegate: run disabled: TIDEGATE_DISABLED is set; the command runs ungoverned", err=True)
            replace(command, os.environ)
        shown = shown and not runs_inside(os.environ)
        kept = _kept(state, shown)
        if not shown and kept is None:
            replace(command, environment(os.environ, None))
        raise typer.Exit(watch(command, shown, kept))
    except Unstartable as error:
        raise stop(str(error), error.code) from None


def _kept(state: Path | None, shown: bool) -> StateFile | None:
    if state is None:
        return None
    from tidegate.launch.environment import StateFile

    kept = StateFile(state)
    if kept.outdated and shown:
        why = "another version of tidegate wrote it; it is replaced once limits are learned"
        typer.echo(f"tidegate: state file {state} ignored: {why}", err=True)
    return kept


def is_stderr_readable() -> bool:
    """Return whether a line on standard error does no harm: it is a terminal, or differs from standard output."""
    try:
        err = os.fstat(STDERR)
        if os.isatty(STDERR):
            return True
        out = os.fstat(STDOUT)
    except OSError:
        return False
    return (err.st_dev, err.st_ino) != (out.st_dev, out.st_ino)
