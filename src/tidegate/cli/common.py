"""Parts that all commands use: help, exits in one line, the width of consoles, and the option for a database."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from tidegate.admission.redaction import clean
from tidegate.cli.run_request import UNUSABLE_CODE
from tidegate.core.safe_text import printable
from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class CommandGroup(TyperGroup):
    """Group of commands, whose help has the first sentence of each in full, over several lines where it is long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a name and a sentence for each command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command.help or "")) for name, command in found if command])


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: an unusable value ends it with exit code 2 and one line with field, value and bound."""

    @functools.wraps(command)
    def run(*positional: Any, **named: Any) -> None:
        try:
            command(*positional, **named)
        except ConfigurationError as error:
            raise stop(str(error), UNUSABLE_CODE) from None

    return run


def stop(message: str, code: int = 1) -> typer.Exit:
    typer.echo(f"tidegate: {clean(message)}", err=True)
    return typer.Exit(code)


UNBOUNDED_COLUMNS = 10_000
"""Columns of a file or a pipe. Chosen: wider than any line, so nothing is folded or cut there."""

AnyConsole = TypeVar("AnyConsole", bound="Console")


def unbounded(console: AnyConsole) -> AnyConsole:
    """Return the console, which cuts and folds nothing outside a terminal, unless `COLUMNS` names a width."""
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = UNBOUNDED_COLUMNS
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table; or each of its rows in words, where the terminal is so narrow that cells would be cut."""
    wide = console.options.update(max_width=UNBOUNDED_COLUMNS)
    if console.measure(table, options=wide).maximum <= console.width:
        console.print(table)
        return
    names = [" ".join(_plain(column.header).split()) for column in table.columns[1:]]
    rows = zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True)
    told = (
        f"{first}: "
        + ", ".join(f"{name} {', '.join(cell.splitlines())}" for name, cell in zip(names, cells, strict=True) if cell)
        for first, *cells in rows
    )
    for text in (table.title, *told, table.caption):
        if text:
            console.print(printable(str(text)), markup=False)


def _plain(cell: object) -> str:
    from rich.text import Text

    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


DATABASE = "tidegate.db"
"""Default database, in the working directory. The first run creates it."""

VARIABLE = "TIDEGATE_DB"

Db = Annotated[
    str,
    typer.Option("--db", envvar=VARIABLE, metavar="URL", help="Use this SQLite file, or postgresql://user@host/name."),
]
