"""`tidegate status`, and the live view on a terminal: the last row of `tidegate run`, and `status --watch`.

Theory of operation. For the row, those above the last one become the scroll region (DECSTBM; apt shows its progress
so). The program's output scrolls only there. Each update saves the cursor, moves down, writes, and restores the cursor,
in one write. Nothing is drawn while another program holds the terminal. A program that has turned off line mode or echo
draws the whole screen itself. A job in the background has no screen.

The picture imports rich late: it would delay the start of each program under `tidegate run` by 50 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import set_cell_size

from tidegate.cli.common import UNBOUNDED, stop
from tidegate.cli.status_list import ListedLine, ListedRun, folded, is_idle, lines_of, listed, unreadable
from tidegate.core.safe_text import json_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

PERIOD = 1.0
"""Seconds between two pictures. Chosen: that of the live page (`server.limit_history.PERIOD`)."""

LEAST_ROWS, LEAST_COLUMNS = 4, 24
"""Smallest terminal that gets a status line: `LEAST_ROWS` lines high and `LEAST_COLUMNS` characters wide. Chosen: below
that, the line leaves no room for the program or for its own text."""

LOCAL_FLAGS = 3
"""Index of the flags for line mode and echo in the result of `termios.tcgetattr`."""


class StatusLine:
    """Status line in the last row of the terminal behind a file descriptor. The first text reserves the row."""

    def __init__(self, fd: int, environ: Mapping[str, str]) -> None:
        self._fd = fd
        self._dim = "" if environ.get("NO_COLOR") else "\x1b[2m"
        self._rows = 0

    def show(self, text: Callable[[int], str]) -> None:
        """Draw `text` of as many columns as the terminal has. Do nothing while the row cannot be drawn."""
        size = self._size()
        if size is None or not self._ours():
            return
        columns, rows = size
        line = set_cell_size(text(columns - 1), columns - 1).rstrip()
        if not line:
            return
        prepare = ""
        if rows != self._rows:
            # If the cursor is in the last row, down (it scrolls) and up again moves it and the text one row higher.
            prepare = self._release() + "\x1bD\x1b[A"
            self._rows = rows
        self._write(f"{prepare}\x1b7\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[2K\x1b[0m{self._dim}{line}\x1b[0m\x1b8")

    def clear(self) -> None:
        """Clear the status row, and give it back to the terminal's own output."""
        if self._rows:
            self._write(self._release())
            self._rows = 0

    def say(self, text: str) -> None:
        """Print a line of tidegate on a separate row, even if the program's output ends inside a row."""
        size = self._size()
        columns = size[0] if size is not None else 0
        self._write(" " * columns + "\r\x1b[K" * bool(columns) + f"tidegate: {printable(text)}\n")

    def _release(self) -> str:
        return f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8" if self._rows else ""

    def _size(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._fd)
            if columns >= LEAST_COLUMNS and rows >= LEAST_ROWS:
                return columns, rows
        return None

    def _ours(self) -> bool:
        import termios

        try:
            flags = termios.tcgetattr(self._fd)[LOCAL_FLAGS]
        except termios.error:
            return False
        if not (flags & termios.ICANON and flags & termios.ECHO):
            return False
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return False
        # Stopped output (Ctrl-S) would block this process, and with it the signals that it forwards.
        return bool(select.select([], [self._fd], [], 0)[1])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "replace"))


def drawable(fd: int, environ: Mapping[str, str]) -> bool:
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def picture(look: Callable[[], Iterable[ListedLine]]) -> None:
    """Draw the lines that `look` returns until Ctrl-C, and how many more there are where they do not fit.

    A separate screen keeps the terminal as it was.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def drawn() -> RenderableType:
        title = ListedLine(f"tidegate status · {time.strftime('%H:%M:%S')} · Ctrl-C ends", "dim")
        shown = [part for line in (title, *look()) for part in folded(line, console.width)]
        beyond = len(shown) - console.height
        if beyond > 0:
            more = ListedLine(f"… {beyond + 1} more lines: `tidegate status NAME` shows less", "dim")
            shown[console.height - 1 :] = [more]
        return Group(*(Text(line.text, line.style, no_wrap=True) for line in shown))

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(PERIOD)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return


STDOUT = 1

NOTHING = (
    "no active program found: one is shown from its first call on, `tidegate run` from its start; TIDEGATE_STATUS=off "
    "and TIDEGATE_LOG=off hide them"
)


def status(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|PID|MODEL]",
            help="Show only the program of this process; or programs and keys with this text in their name.",
        ),
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Show idle keys, too: those without a call in the last minute.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per key and line, idle ones included.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it again each second, until Ctrl-C.")] = False,
) -> None:
    """Show your active programs and experiments: for each key, why its calls wait, until when, and how many.

    The program and the key in most trouble are first.
    """
    if os.name != "posix":
        raise stop("status not available: it reads the counts of `tidegate run`, which needs a POSIX system")
    from tidegate.launch.runs import live_runs

    def look(now: float) -> list[ListedRun]:
        return listed(live_runs(), now, wanted, everything=everything or as_json)

    def shown(*, with_outcomes: bool) -> Iterable[ListedLine]:
        now = time.monotonic()
        found = look(now)
        nothing = f"no active program or key has {wanted!r} in its name" if wanted else NOTHING
        return lines_of(found, now, with_outcomes=with_outcomes) if found else [ListedLine(nothing)]

    if watch:
        if as_json:
            raise stop("--watch and --json cannot be combined: a picture is for people; leave one of them out")
        if not drawable(STDOUT, os.environ):
            raise stop("status not watched: the output is no terminal; `tidegate status` prints it once")
        picture(partial(shown, with_outcomes=True))
    elif as_json:
        _print_json(look)
    else:
        columns = shutil.get_terminal_size((UNBOUNDED, 0)).columns
        for line in shown(with_outcomes=False):
            for part in folded(line, columns):
                typer.echo(part.text)


def _print_json(look: Callable[[float], list[ListedRun]]) -> None:
    from tidegate.launch.totals import facts_of

    now = time.monotonic()
    for run, keys, _ in look(now):
        for key in keys:
            known = {"pid": run.pid, "command": run.command, "elapsed": run.elapsed, "idle": is_idle(key, now)}
            typer.echo(json_line({**known, **facts_of(key, now)}))
        for line in unreadable(run):
            typer.echo(line, err=True)
