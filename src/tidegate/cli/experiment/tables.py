"""Tables as commands print them: as wide as the terminal, or as they need to be where there is none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from tidegate.core.display import printable

UNBOUNDED = 10_000
"""Columns where nobody looks: nothing is folded or cut in a file or a pipe."""


class Printer(Console):
    """Where people look; whoever looked and is gone, as `head`, changes nothing of how a command ends."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts as lines of their own, whatever line breaks and control characters they hold."""
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render tables and pictures, with the control characters of their cells escaped."""
        for each in super().render(renderable, options):
            plain = each.control is not None or each.text == printable(each.text, lines=True)
            yield each if plain else Segment(printable(each.text, lines=True), each.style)

    def on_broken_pipe(self) -> None:
        """Discard everything that is printed from now on."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def printer(*, stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    console = Printer(highlight=False, stderr=stderr)
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


def bad(number: int) -> str:
    """Return how many went wrong, in rich's markup: red, unless nothing did."""
    return f"[red]{number}[/red]" if number else "0"
