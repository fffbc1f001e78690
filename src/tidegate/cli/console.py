"""Consoles of the commands: tables in a file or a pipe are as wide as their content."""

from __future__ import annotations

import os
from typing import TypeVar

from rich.console import Console

UNBOUNDED = 10_000
"""Columns of a file or a pipe. Chosen: wider than any line, so nothing is folded or cut there."""

AnyConsole = TypeVar("AnyConsole", bound=Console)


def unbounded(console: AnyConsole) -> AnyConsole:
    """Return the console, which cuts and folds nothing outside a terminal, unless `COLUMNS` names a width."""
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = UNBOUNDED
    return console
