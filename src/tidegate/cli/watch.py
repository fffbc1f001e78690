"""The status line of `tidegate run`.

The last row of a terminal as a place of its own, below a program that writes to the same terminal.

Theory of operation. The rows above become the scroll region (DECSTBM; apt shows its progress so), so that whatever the
program prints scrolls there; each drawing saves the cursor, goes down, writes, and restores it, in one write. Nothing
is drawn while somebody else holds the terminal: a program that has turned off line mode or echo draws its whole screen
itself, and a job in the background has no screen.

Runs a command under `tidegate run` and shows what its processes do.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.cells import set_cell_size

from tidegate.cli.status_text import StatusText, farewell
from tidegate.launch import ungoverned
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import StateFile, environment
from tidegate.launch.runs import COMMAND, run_folder
from tidegate.launch.totals import Folder

LEAST_ROWS, LEAST_COLUMNS = 4, 24
LOCAL_FLAGS = 3
"""Where `termios.tcgetattr` has the flags that say whether lines are edited and echoed."""


class StatusLine:
    """The last row of the terminal behind a file descriptor; it is taken when there is something to show."""

    def __init__(self, fd: int, environ: Mapping[str, str]) -> None:
        self._fd = fd
        self._dim = "" if environ.get("NO_COLOR") else "\x1b[2m"
        self._rows = 0

    def show(self, text: str) -> None:
        """Puts `text` there, cut to the width; where it cannot be put now, nothing happens."""
        size = self._size()
        if size is None or not text or not self._ours():
            return
        columns, rows = size
        prepare = ""
        if rows != self._rows:
            # The cursor may stand in the last row: down and up again leaves it, or what is there, one row higher.
            prepare = self._release() + "\x1bD\x1b[A"
            self._rows = rows
        line = set_cell_size(text, columns - 1).rstrip()
        self._write(f"{prepare}\x1b7\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[2K\x1b[0m{self._dim}{line}\x1b[0m\x1b8")

    def clear(self) -> None:
        """Gives the row back, empty."""
        if self._rows:
            self._write(self._release())
            self._rows = 0

    def say(self, text: str) -> None:
        """Prints a line where the output ends, on a row of its own even where that ends in the middle of one."""
        size = self._size()
        columns = size[0] if size is not None else 0
        self._write(" " * columns + "\r\x1b[K" * bool(columns) + text + "\n")

    def _release(self) -> str:
        return f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8" if self._rows else ""

    def _size(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._fd)
            if columns >= LEAST_COLUMNS and rows >= LEAST_ROWS:
                return columns, rows
        return None

    def _ours(self) -> bool:
        try:
            flags = termios.tcgetattr(self._fd)[LOCAL_FLAGS]
        except termios.error:
            return False
        if not (flags & termios.ICANON and flags & termios.ECHO):
            return False
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return False
        # Stopped output (Ctrl-S) would stop us, and with us the signals that we pass on.
        return bool(select.select([], [self._fd], [], 0)[1])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "replace"))


def drawable(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether a row can be drawn there at all: on a terminal that knows how to move its cursor."""
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


STDERR = 2
LOOK_EVERY = 0.5
"""Seconds between two drawings of the status line."""


def watch(command: Sequence[str], shown: bool = True, state: StateFile | None = None) -> int:
    """Runs the command, shows what it does, and returns its exit code; ends as it did where a signal ended it.

    With `shown` False only what is learned is kept, in `state`.
    """
    with contextlib.ExitStack() as stack:
        try:
            run_dir = stack.enter_context(run_folder())
        except OSError:
            if state is not None and shown:
                typer.echo("tidegate: there is no room for what is learned: --state is ignored", err=True)
            replace(command, environment(os.environ, None))
        (Path(run_dir) / COMMAND).write_text(f"{os.getpid()} {Path(command[0]).name}\n", "utf-8", "replace")
        learned = state.begin(run_dir) if state is not None else None
        child = Child(command, environment(os.environ, run_dir if shown else None, learned))
        totals = Folder(Path(run_dir))
        if not shown:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
        elif drawable(STDERR, os.environ):
            ended = _drawn(child, totals, run_dir)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
            with contextlib.suppress(OSError):
                typer.echo(f"tidegate: {_last_line(totals, run_dir)}", err=True)
        if state is not None:
            _keep(state, run_dir, shown)
    return child.end_alike(ended)


def _keep(state: StateFile, run_dir: str, shown: bool) -> None:
    try:
        state.end(run_dir)
    except (OSError, ValueError) as error:
        if shown:
            typer.echo(f"tidegate: what was learned could not be kept: {error}", err=True)


def _drawn(child: Child, folder: Folder, run_dir: str) -> int:
    row, status = StatusLine(STDERR, os.environ), StatusText()
    try:
        ended = child.wait(
            lambda: row.show(status.line(folder.totals(), time.monotonic())),
            row.clear,
            LOOK_EVERY,
        )
    finally:
        row.clear()
    row.say(f"tidegate: {_last_line(folder, run_dir)}")
    return ended


def _last_line(folder: Folder, run_dir: str) -> str:
    return farewell(folder.totals(), ungoverned.read(Path(run_dir)))


def _nothing() -> None:
    pass
