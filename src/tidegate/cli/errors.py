"""The end of a command that cannot go on: one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from tidegate.errors import ConfigurationError
from tidegate.redaction import clean

UNUSABLE = 2
"""The exit code of a value that cannot be used, as of an unknown option (click: UsageError.exit_code)."""


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """The same command; a value it cannot use ends it with exit code 2 and the field, the value and the bound."""

    @functools.wraps(command)
    def run(*positional: Any, **named: Any) -> None:
        try:
            command(*positional, **named)
        except ConfigurationError as error:
            raise stop(str(error), UNUSABLE) from None

    return run


def stop(complaint: str, code: int = 1) -> typer.Exit:
    """Says the complaint on standard error; returns what to raise."""
    typer.echo(f"tidegate: {clean(complaint)}", err=True)
    return typer.Exit(code)
