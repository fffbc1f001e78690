"""The last row of the terminal, in which `tidegate run` shows the state of its calls.

Theory of operation. The rows above the last one become the scroll region (DECSTBM; apt shows its progress so). The
program's output scrolls only there. Each update saves the cursor, moves down, writes, and restores the cursor, in one
write. Nothing is drawn while another program holds the terminal. A program that has turned off line mode or echo draws
the whole screen itself. A job in the background has no screen.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Mapping

from tidegate.core.safe_text import printable

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
        # Imported late: a run without a terminal draws nothing.
        from rich.cells import set_cell_size

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
