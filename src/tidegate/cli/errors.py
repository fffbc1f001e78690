"""Error exits of the commands: one line on standard error and an exit code, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from tidegate.admission.redaction import clean
from tidegate.errors import ConfigurationError

UNUSABLE = 2
"""Exit code for an unusable value, the same as for an unknown option (click: UsageError.exit_code)."""


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: an unusable value ends it with exit code 2 and one line with field, value and bound."""

    @functools.wraps(command)
    def run(*positional: Any, **named: Any) -> None:
        try:
            command(*positional, **named)
        except ConfigurationError as error:
            raise stop(str(error), UNUSABLE) from None

    return run


def stop(message: str, code: int = 1) -> typer.Exit:
    typer.echo(f"tidegate: {clean(message)}", err=True)
    return typer.Exit(code)
