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
    command: Annotated[list[str], typer.Argument(metavar="CMD [ARGS]...", help="what to run, as you would without us")],
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Begin with what is in FILE, and leave there what was learned."),
    ] = None,
) -> None:
    """Run a command with every LLM call of its Python processes at the provider's true limit.

    Options after CMD belong to the command.
    """
    if os.name != "posix":
        raise stop("run needs a POSIX system; elsewhere, `import tidegate.auto` in the program does the same")
    # Imported late: these need a POSIX system.
    from tidegate.cli.watch import watch
    from tidegate.launch.child import Unstartable, replace
    from tidegate.launch.environment import environment, running

    settings = Settings.from_environment()
    shown = settings.log and heard()
    try:
        if settings.disabled:
            if shown:
                typer.echo("tidegate: TIDEGATE_DISABLED is set; the command runs ungoverned", err=True)
            replace(command, os.environ)
        shown = shown and not running(os.environ)
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
        typer.echo(f"tidegate: {state} is of another version: it is ignored, and written again", err=True)
    return kept


def heard() -> bool:
    """Return whether a line on standard error does no harm: it is a terminal, or differs from standard output."""
    try:
        err = os.fstat(STDERR)
        if os.isatty(STDERR):
            return True
        out = os.fstat(STDOUT)
    except OSError:
        return False
    return (err.st_dev, err.st_ino) != (out.st_dev, out.st_ino)
