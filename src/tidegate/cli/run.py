"""`tidegate run`: any Python command, with tidegate active in it and in its Python children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.common import stop
from tidegate.settings import Settings, unknown_variables

if TYPE_CHECKING:
    from tidegate.launch.environment import StateFile

STDERR = 2


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
    if os.name != "posix":
        raise stop("run not available: it needs a POSIX system; put `import tidegate.auto` into the program instead")
    # Imported late: these need a POSIX system.
    from tidegate.cli.command_run import RunOptions, RunReport, run_command
    from tidegate.launch.child import Unstartable, replace
    from tidegate.launch.environment import environment, runs_inside

    settings = Settings.from_environment()
    shown = settings.log and is_stderr_open()
    try:
        if settings.disabled:
            if shown:
                typer.echo("tidegate: run disabled: TIDEGATE_DISABLED is set; the command runs ungoverned", err=True)
            replace(command, os.environ)
        if settings.prices is not None:
            _check_prices(settings.prices)
        written = RunReport(report) if report is not None else None
        if runs_inside(os.environ):
            if shown and (written is not None or strict):
                why = "the enclosing `tidegate run` counts the calls; give the options to that one"
                typer.echo(f"tidegate: --report and --strict ignored: {why}", err=True)
            shown, written, strict = False, None, False
        if shown:
            for name, meant in unknown_variables(os.environ).items():
                typer.echo(f"tidegate: {name} not read: there is no such setting; did you mean {meant}?", err=True)
        options = RunOptions(shown, _kept(state, shown), written, strict, _has_gateway(command, gateway, shown))
        if options.replaces:
            replace(command, environment(os.environ, None))
        raise typer.Exit(run_command(command, options))
    except Unstartable as error:
        raise stop(str(error), error.code) from None


def _check_prices(path: Path) -> None:
    """Raise `ConfigurationError` for an unusable file of prices, with which no process would be governed.

    The command gets its absolute path, as its processes may work in other directories.
    """
    from tidegate.providers import load_prices

    load_prices(path)
    os.environ["TIDEGATE_PRICES"] = str(path.absolute())


def _has_gateway(command: list[str], asked: bool | None, shown: bool) -> bool:
    """Return whether the run has a gateway; stop where one is asked for and a package is missing."""
    from tidegate.launch.gateway_process import missing_package, wanted

    if not wanted(command, asked, os.environ):
        return False
    missing = missing_package()
    if not missing:
        return True
    text = f"gateway not available: {missing} is not installed; run: pip install 'tidegate[ui]'"
    if asked:
        raise stop(text)
    if shown:
        typer.echo(f"tidegate: {text}; programs of Node run ungoverned", err=True)
    return False


def _kept(state: Path | None, shown: bool) -> StateFile | None:
    if state is None:
        return None
    from tidegate.launch.environment import StateFile

    kept = StateFile(state)
    if kept.outdated and shown:
        why = "another version of tidegate wrote it; it is replaced once limits are learned"
        typer.echo(f"tidegate: state file {state} ignored: {why}", err=True)
    return kept


def is_stderr_open() -> bool:
    try:
        os.fstat(STDERR)
    except OSError:
        return False
    return True
