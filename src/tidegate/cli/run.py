"""`tidegate run`: any Python command, with tidegate active in it and in its Python children."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.run_begin import begin
from tidegate.cli.run_request import RunRequest


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
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write totals and keys to FILE at the end, as JSON.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 75 if calls were given up and the command itself succeeded.")
    ] = False,
    gateway: Annotated[
        bool | None,
        typer.Option(
            "--gateway/--no-gateway",
            help="Govern programs that are not Python, too. By default, it depends on CMD: on for programs of Node.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a command, and send every LLM call of its Python processes at the provider's true rate limit.

    Options after CMD are passed to the command.
    """
    raise typer.Exit(begin(RunRequest(command, state, report, strict, gateway)))
