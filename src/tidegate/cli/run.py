"""`tidegate run`: any Python command with tidegate in it and in its Python children."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tidegate.cli.complaints import stop
from tidegate.launch.child import Child, Unstartable, replace
from tidegate.launch.environment import environment
from tidegate.settings import Settings


def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD [ARGS]...", help="what to run, as you would without us")],
) -> None:
    """Run a command with every LLM call of its Python processes at the provider's true limit.

    Everything after `run` belongs to the command, options too.
    """
    settings = Settings.from_environment()
    try:
        if settings.disabled:
            replace(command, os.environ)
        if not settings.log:
            replace(command, environment(os.environ, None))
        child = Child(command, environment(os.environ, None))
        raise typer.Exit(child.end_alike(child.wait(lambda: None, lambda: None, 60.0)))
    except Unstartable as error:
        raise stop(str(error), error.code) from None
