"""A terminal with one program on it, and what is seen there."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyte

from tests.cli.running import PYTHON

COLUMNS, ROWS = 150, 12
PATIENCE = 300.0
"""Seconds after which a screen that does not come fails the test."""


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A new session's first program makes its standard input the session's terminal, and becomes the real one."""


class Terminal:
    """A terminal of a few rows with one program on it."""

    def __init__(self, *command: str, env: dict[str, str], cwd: Path, columns: int) -> None:
        self.screen = pyte.HistoryScreen(columns, ROWS, history=1000, ratio=1)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.fd, theirs = pty.openpty()
        termios.tcsetwinsize(self.fd, (ROWS, columns))
        words = [PYTHON, "-c", TAKE_TERMINAL, *command]
        self.process = subprocess.Popen(
            words, env=env, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        termios.tcsetwinsize(self.fd, (rows, columns))

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def everything(self) -> list[str]:
        width = range(self.screen.columns)
        gone = ["".join(line[x].data for x in width).rstrip() for line in self.screen.history.top]
        return gone + self.rows()

    def until(self, seen: Callable[[Terminal], object]) -> None:
        """Lets it go on until `seen` holds."""
        end = time.monotonic() + PATIENCE
        while not seen(self):
            assert time.monotonic() < end, self.rows()
            assert self._go_on(), self.rows()

    def to_the_end(self) -> int:
        """Lets it end; its exit code."""
        end = time.monotonic() + PATIENCE
        while self._go_on():
            assert time.monotonic() < end, self.rows()
        return self.process.wait(PATIENCE)

    def hang_up(self) -> int:
        """Closes the window; the exit code of what ran in it."""
        os.close(self.fd)
        self.fd = -1
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it and the programs that it started, whatever they do."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(PATIENCE)
        if self.fd >= 0:
            os.close(self.fd)

    def _go_on(self) -> bool:
        if not select.select([self.fd], [], [], PATIENCE)[0]:
            return False
        try:
            content = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += content
        self._stream.feed(content)
        return bool(content)
