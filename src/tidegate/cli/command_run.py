"""Run of the command of `tidegate run`: its status row while it runs, and its line, report and limits at the end."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from tidegate.admission.redaction import clean_arguments
from tidegate.cli.live_view import StatusLine, drawable
from tidegate.cli.run_report import EndedRun, RunReport
from tidegate.cli.status_text import StatusText, end_line
from tidegate.core.safe_text import printable
from tidegate.launch import ungoverned
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import StateFile, environment
from tidegate.launch.gateway_process import GatewayProcess
from tidegate.launch.runs import run_folder, write_command
from tidegate.launch.totals import Folder

STDERR = 2

LOOK_EVERY = 0.5
"""Seconds between two updates of the status line. Chosen: a person sees changes as they happen."""


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
        return self.shown or self.report is not None or self.strict

    @property
    def replaces(self) -> bool:
        """Return whether this process has nothing to do but to become the command."""
        return not self.counts and self.state is None and not self.gateway


def run_command(command: Sequence[str], options: RunOptions) -> int:
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
            say = row.say
            ended = _drawn(child, folder, row)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_EVERY)
        if gateway is not None:
            gateway.end()
        totals = folder.totals()
        missed = ungoverned.read(Path(run_dir), totals.hosts)
        if shown:
            say(end_line(totals, missed, shlex.join(clean_arguments(command))))
        if state is not None:
            _keep(state, run_dir, shown)
        if options.report is not None:
            seconds = time.monotonic() - began_at
            _report(options.report, EndedRun(command, ended, seconds, totals, missed), shown)
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
