"""Tables as commands print them: as wide as the terminal, or as they need to be where there is none."""

from __future__ import annotations

import os
from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table

UNBOUNDED = 10_000
"""Columns where nobody looks: nothing is folded or cut in a file or a pipe."""


def printer() -> Console:
    """Standard output."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNBOUNDED
    return console


def table(*names: str, right: Collection[str] = (), cut: Collection[str] = ()) -> Table:
    """A table; the columns in `right` are numbers, and those in `cut` end in an ellipsis where they do not fit."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        whole = name in right or name in cut
        made.add_column(
            name, justify="right" if name in right else "left", no_wrap=whole, overflow="ellipsis" if whole else "fold"
        )
    return made
