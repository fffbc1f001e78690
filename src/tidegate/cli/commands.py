"""Command group of `tidegate`: version, help, mistakes, and lazy loading of its commands."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

import tidegate
from tidegate.cli.common import CommandGroup, in_one_line

UsageError: Any = typer.BadParameter.__base__
"""Error of an option or an argument. The class is named so, as typer brings its own copy of click."""

COMMANDS = {
    "demo": "tidegate.cli.demo",
    "docs": "tidegate.cli.docs",
    "doctor": "tidegate.cli.doctor.command",
    "gateway": "tidegate.cli.servers",
    "run": "tidegate.cli.run",
    "serve": "tidegate.cli.servers",
    "simulate": "tidegate.cli.simulate",
    "status": "tidegate.cli.status",
    "experiment": "tidegate.experiments.commands.group",
}
"""Module of each command, in the order of the help."""


class Commands(CommandGroup):
    """Command group that imports a command only when it is named."""

    def main(self, *positional: Any, **named: Any) -> Any:
        """Run the command line. A usage error is one line, as every other error of a command."""
        alone = named.get("standalone_mode", True)
        named["standalone_mode"] = False
        if not alone:
            return super().main(*positional, **named)
        try:
            code = super().main(*positional, **named)
        except UsageError as error:
            if error.message.startswith("Usage:"):
                # A group without a command shows its help.
                error.show()
                sys.exit(error.exit_code)
            command = error.ctx.command_path if error.ctx is not None else "tidegate"
            text = error.format_message().rstrip(".")
            typer.echo(f"tidegate: {text[:1].lower()}{text[1:]} (`{command} --help` lists what there is)", err=True)
            sys.exit(error.exit_code)
        except typer.Abort:
            typer.echo("tidegate: aborted", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None for an unknown name; that loads all commands, from which suggestions are made."""
        for name in (cmd_name,) if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.add_command(_load(name), name)
        return super().get_command(ctx, cmd_name)


def _load(name: str) -> Any:
    module = import_module(COMMANDS[name])
    if name == "experiment":
        return get_command(module.app)
    command = getattr(module, name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    # Options after the first argument of `run` belong to the program that it starts.
    alone.command(name, context_settings={"allow_interspersed_args": name != "run"})(in_one_line(command))
    return get_command(alone)


app = typer.Typer(
    cls=Commands,
    name="tidegate",
    help="Run every LLM call at the provider's true rate limit, without configuration.",
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
