"""Status line of `tidegate run`: the command runs, and the terminal's last row shows the state of its processes.

Theory of operation. The rows above the last one become the scroll region (DECSTBM; apt shows its progress so). The
program's output scrolls only there. Each update saves the cursor, moves down, writes, and restores the cursor, in one
write. Nothing is drawn while another program holds the terminal. A program that has turned off line mode or echo draws
the whole screen itself. A job in the background has no screen.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer
from rich.cells import set_cell_size

from tidegate.cli.run_report import EndedRun, RunReport
from tidegate.cli.status_text import StatusText, end_line
from tidegate.core.display import printable
from tidegate.launch import ungoverned
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import StateFile, environment
from tidegate.launch.gateway_process import GatewayProcess
from tidegate.launch.runs import run_folder, write_command
from tidegate.launch.shared_counters import FAILURES
from tidegate.launch.text_counts import read_counts
from tidegate.launch.totals import Folder
from tidegate.redaction import clean_arguments

LEAST_ROWS, LEAST_COLUMNS = 4, 24
"""Smallest terminal that gets a status line: `LEAST_ROWS` lines high and `LEAST_COLUMNS` characters wide. Raising
either removes the line from more terminals. Chosen: below that, the line leaves no room for the program or for its own
text."""

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
        """Print a line after the program's output, on a separate row even if the output ends inside a row."""
        size = self._size()
        columns = size[0] if size is not None else 0
        self._write(" " * columns + "\r\x1b[K" * bool(columns) + text + "\n")

    def say_ours(self, text: str) -> None:
        """Print a line of tidegate after the program's output."""
        self.say(f"tidegate: {printable(text)}")

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
        # Stopped output (Ctrl-S) would block this process, and with it the signals that it forwards.
        return bool(select.select([], [self._fd], [], 0)[1])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "replace"))


def drawable(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether the row can be drawn at all: on a terminal that can move its cursor."""
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


STDERR = 2

LOOK_EVERY = 0.5
"""Seconds between two updates of the status line. Raising it saves work and shows changes later. Chosen: equal to
`launch.shared_counters.OUTLOOK_EVERY`, after which the forecast is new."""


GIVEN_UP = 75
"""Exit code under `--strict` of a command that succeeded while calls were given up (sysexits.h: EX_TEMPFAIL)."""


class RunOptions(NamedTuple):
    """Options of `tidegate run`: show nothing unless `shown`; see its help for the others."""

    shown: bool = True
    state: StateFile | None = None
    report: RunReport | None = None
    strict: bool = False
    gateway: bool = False

    @property
    def counts(self) -> bool:
        """Return whether the counts of the processes are needed."""
        return self.shown or self.report is not None or self.strict

    @property
    def replaces(self) -> bool:
        """Return whether this process has nothing to do but to become the command."""
        return not self.counts and self.state is None and not self.gateway


def watch(command: Sequence[str], options: RunOptions) -> int:
    """Run the command, show its state, and return its exit code. If a signal ends the command, end in the same way."""
    began_at = time.monotonic()
    shown, state = options.shown, options.state
    with contextlib.ExitStack() as stack:
        try:
            run_dir = stack.enter_context(run_folder())
        except OSError as error:
            ignored = [
                *(["--state"] if state is not None else []),
                *(["--report"] if options.report is not None else []),
                *(["--strict"] if options.strict else []),
            ]
            if ignored and shown:
                why = f"no temporary folder could be created ({error.strerror or error})"
                _say(f"{', '.join(ignored)} ignored: {why}; the command runs, nothing is counted or saved")
            replace(command, environment(os.environ, None))
        write_command(Path(run_dir), shlex.join(clean_arguments(command)))
        learned = state.begin(run_dir) if state is not None else None
        environ = environment(os.environ, run_dir if options.counts else None, learned)
        gateway = _gateway(environ, shown) if options.gateway else None
        if gateway is not None:
            stack.callback(gateway.end)
            environ = gateway.environ(environ)
        child = Child(command, environ)
        folder = Folder(Path(run_dir))
        say = _say
        if shown and drawable(STDERR, os.environ):
            row = StatusLine(STDERR, os.environ)
            say = row.say_ours
            ended = _drawn(child, folder, row)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
        if gateway is not None:
            gateway.end()
        totals, missed = folder.totals(), ungoverned.read(Path(run_dir))
        failures = read_counts(Path(run_dir), FAILURES)
        if shown:
            say(end_line(totals, missed, failures, shlex.join(clean_arguments(command))))
        if state is not None:
            _keep(state, run_dir, shown)
        if options.report is not None:
            seconds = time.monotonic() - began_at
            _report(options.report, EndedRun(command, ended, seconds, totals, missed, failures), shown)
    code = child.end_alike(ended)
    return GIVEN_UP if options.strict and not code and totals.sum("given_up") else code


def _gateway(environ: Mapping[str, str], shown: bool) -> GatewayProcess | None:
    """Start the gateway of a run; None, with a line, where that fails."""
    try:
        gateway = GatewayProcess(environ, Path.cwd())
    except OSError as error:
        if shown:
            _say(f"gateway not started: {error.strerror or error}; programs that are not Python run ungoverned")
        return None
    if shown:
        for name, reason in gateway.redirection.kept.items():
            _say(f"{name} left unchanged: {reason}; calls to that server run ungoverned (`tidegate docs gateway`)")
    return gateway


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        typer.echo(f"tidegate: {printable(text)}", err=True)


def _report(report: RunReport, run: EndedRun, shown: bool) -> None:
    try:
        report.write(run)
    except OSError as error:
        if shown:
            _say(f"report not written: {error.strerror or error}; an earlier one is unchanged")


def _keep(state: StateFile, run_dir: str, shown: bool) -> None:
    try:
        state.end(run_dir)
    except (OSError, ValueError) as error:
        if shown:
            why = str(error) or type(error).__name__
            typer.echo(f"tidegate: learned limits not saved: {why}; the state file is unchanged", err=True)


def _drawn(child: Child, folder: Folder, row: StatusLine) -> int:
    status = StatusText()
    try:
        return child.wait(
            lambda: row.show(partial(status.line, folder.totals(), time.monotonic())),
            row.clear,
            LOOK_EVERY,
        )
    finally:
        row.clear()


def _nothing() -> None:
    pass
