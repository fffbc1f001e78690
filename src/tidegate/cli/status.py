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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import set_cell_size

from tidegate.cli.common import stop
from tidegate.cli.status_text import by_waiting, heading, lines, outcomes, unreadable
from tidegate.core.safe_text import json_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.launch.runs import ProgramRun

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


def picture(look: Callable[[], Sequence[ProgramRun]], nothing: str) -> None:
    """Draw all programs that `look` returns, and `nothing` where there is none, until Ctrl-C.

    A separate screen keeps the terminal as it was.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def drawn() -> RenderableType:
        title = Text(f"tidegate status · {time.strftime('%H:%M:%S')} · Ctrl-C ends", style="dim")
        runs = look()
        return Group(title, *(part for run in runs for part in _program(run)), *([] if runs else [Text(nothing)]))

    console = Console(highlight=False)
    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(PERIOD)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return


def _program(run: ProgramRun) -> Iterator[RenderableType]:
    from rich.text import Text

    now = time.monotonic()
    yield Text(heading(run), style="bold")
    for key in by_waiting(run):
        yield from map(Text, lines(key, now))
        yield Text(f"    {outcomes(key)}", style="red" if key.counts["given_up"] else "")
    for line in unreadable(run):
        yield Text(line, style="red")


STDOUT = 1

NOTHING = (
    "no active run found: `tidegate run` keeps no counts if TIDEGATE_LOG is off; another program that uses tidegate is "
    "shown from its first call on, unless TIDEGATE_STATUS is off"
)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per key and line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it again each second, until Ctrl-C.")] = False,
) -> None:
    """Show your active programs and experiments: for each key, why its calls wait, until when, and how many."""
    if os.name != "posix":
        raise stop("status not available: it reads the counts of `tidegate run`, which needs a POSIX system")
    from tidegate.launch.runs import live_runs
    from tidegate.launch.totals import facts_of

    if watch:
        if as_json:
            raise stop("--watch and --json cannot be combined: a picture is for people; leave one of them out")
        if not drawable(STDOUT, os.environ):
            raise stop("status not watched: the output is no terminal; `tidegate status` prints it once")
        picture(lambda: list(live_runs()), NOTHING)
        return
    now = time.monotonic()
    found = list(live_runs())
    for run in found:
        if not as_json:
            typer.echo(heading(run))
        for key in by_waiting(run):
            if as_json:
                known = {"pid": run.pid, "command": run.command, "elapsed": run.elapsed, **facts_of(key, now)}
                typer.echo(json_line(known))
            else:
                for line in lines(key, now):
                    typer.echo(line)
        for line in unreadable(run):
            typer.echo(line, err=as_json)
    if not found and not as_json:
        typer.echo(NOTHING)
