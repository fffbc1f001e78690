"""`tidegate`: the commands and what they share."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import tidegate
from tidegate.cli.complaints import in_one_line
from tidegate.cli.demo import demo
from tidegate.cli.doctor import doctor
from tidegate.cli.experiment.commands import app as experiment
from tidegate.cli.explain import explain
from tidegate.cli.run import run
from tidegate.cli.simulate import simulate
from tidegate.cli.status import status

app = typer.Typer(
    name="tidegate",
    help="Run every LLM call at your provider's true limit. Nothing to configure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {tidegate.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


for _command in (demo, doctor, explain, run, simulate, status):
    # What follows the command of `run` is that command's own, options too.
    _parsing = {"allow_interspersed_args": _command is not run}
    app.command(_command.__name__, context_settings=_parsing)(in_one_line(_command))

app.add_typer(experiment, name="experiment")


def main() -> None:
    """Runs the command line, and ends the process with its exit code."""
    if sys.stdout is None:
        # Closed by a shell (`>&-`): what is said goes nowhere, as with `print`.
        sys.stdout = io.StringIO()
    app()
