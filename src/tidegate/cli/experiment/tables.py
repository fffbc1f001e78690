"""Tables as commands print them: as wide as the terminal, or as they need to be where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table

UNBOUNDED = 10_000
"""Columns where nobody looks: nothing is folded or cut in a file or a pipe."""


class Printer(Console):
    """Standard output; whoever read it and is gone, as `head`, changes nothing of how a command ends."""

    def on_broken_pipe(self) -> None:
        """What is said from now on goes nowhere."""
        self.quiet = True
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def printer() -> Console:
    """Standard output."""
    console = Printer(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
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
