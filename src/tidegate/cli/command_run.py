"""Run of the command of `tidegate run`: its status row while it runs, its line, report and limits at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.admission.redaction import clean, clean_arguments
from tidegate.cli.end_line import end_line
from tidegate.cli.run_request import STDERR, say
from tidegate.cli.status_row import StatusLine, drawable
from tidegate.core.safe_text import printable
from tidegate.errors import ConfigurationError
from tidegate.launch.child import Child, replace
from tidegate.launch.environment import environment
from tidegate.launch.runs import Ungoverned, read_ungoverned, run_folder, write_command
from tidegate.launch.totals import Folder, KeyTotal, QuotaTotal, Totals

if TYPE_CHECKING:
    from tidegate.launch.gateway_process import GatewayProcess
    from tidegate.launch.state_file import StateFile

REPORT_VERSION = 1
"""Version of the report; a field that changes its meaning or goes raises it."""

COUNTS = {
    "answered": "answered",
    "given_up": "given_up",
    "refusals_retried": "absorbed",
    "failed_attempts": "failed",
    "failed_calls": "failed_calls",
}
"""Names of the counts in the report, and those of the counters."""


class EndedRun(NamedTuple):
    """Ended run: its command, its wait status, its duration in seconds, its counts, and what was not governed."""

    command: Sequence[str]
    status: int
    seconds: float
    totals: Totals
    ungoverned: Ungoverned


class RunReport:
    """File for the report; raises `ConfigurationError` for a missing folder."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        if not self._path.parent.is_dir():
            raise ConfigurationError("--report", str(path), "its folder does not exist")

    def write(self, run: EndedRun) -> None:
        """Write the report; raise `OSError` where that fails. An earlier report stays until the new one is whole."""
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            part.write_text(json.dumps(facts(run), indent=2) + "\n", "utf-8")
            part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)


def facts(run: EndedRun) -> dict[str, Any]:
    """Return an ended run as plain values. Durations are in seconds."""
    totals, missed = run.totals, run.ungoverned
    signaled = os.WIFSIGNALED(run.status)
    return {
        "version": REPORT_VERSION,
        "command": clean_arguments(run.command),
        "exit_code": None if signaled else os.waitstatus_to_exitcode(run.status),
        "signal": os.WTERMSIG(run.status) if signaled else None,
        "seconds": round(run.seconds, 3),
        "calls": totals.calls,
        **{name: totals.sum(counter) for name, counter in COUNTS.items()},
        "failures": dict(totals.failures),
        "abandoned": sum(each.abandoned for each in totals.keys.values()),
        "in_flight": sum(each.in_flight for each in totals.keys.values()),
        "waiting": sum(each.queued for each in totals.keys.values()),
        "keys": [_key(each) for each in sorted(totals.keys.values(), key=lambda each: (-each.calls, each.key))],
        "not_governed": {
            "calls": missed.calls,
            "hosts": dict(missed.hosts),
            "websocket_sessions": dict(missed.sockets),
            "processes": [clean(each) for each in missed.processes],
        },
        "unreadable_processes": {str(pid): why for pid, why in totals.unreadable.items()},
    }


def _key(key: KeyTotal) -> dict[str, Any]:
    return {
        "key": key.key,
        "calls": key.calls,
        **{name: key.counts[counter] for name, counter in COUNTS.items()},
        "abandoned": key.abandoned,
        "in_flight": key.in_flight,
        "waiting": key.queued,
        "quotas": [_quota(each) for each in key.quotas.values()],
    }


def _quota(quota: QuotaTotal) -> dict[str, Any]:
    return {
        "name": quota.name,
        "limit": quota.limit,
        "window": quota.window,
        "used": quota.used,
        "share_used": quota.share,
    }


LOOK_SECONDS = 0.5
"""Seconds between two updates of the status line. Chosen: a person sees changes as they happen."""

GIVEN_UP_CODE = 75
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
        tell = _say
        if shown and drawable(STDERR, os.environ):
            row = StatusLine(STDERR, os.environ)
            tell = row.say
            ended = _drawn(child, folder, row)
        else:
            ended = child.wait(_nothing, _nothing, LOOK_SECONDS)
        if gateway is not None:
            gateway.end()
        totals = folder.totals()
        missed = read_ungoverned(Path(run_dir), totals.hosts)
        if shown:
            tell(end_line(totals, missed, shlex.join(clean_arguments(command))))
        if state is not None:
            _keep(state, run_dir, shown)
        if options.report is not None:
            seconds = time.monotonic() - began_at
            _report(options.report, EndedRun(command, ended, seconds, totals, missed), shown)
    code = child.end_alike(ended)
    return GIVEN_UP_CODE if options.strict and not code and totals.sum("given_up") else code


def _gateway(environ: Mapping[str, str], shown: bool) -> GatewayProcess | None:
    """Start the gateway of a run; None, with a line, where that fails."""
    from tidegate.launch.gateway_process import GatewayProcess

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
        say(printable(text))


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
            say(f"learned limits not saved: {why}; the state file is unchanged")


def _drawn(child: Child, folder: Folder, row: StatusLine) -> int:
    from tidegate.cli.status_text import StatusText

    status = StatusText()
    try:
        return child.wait(
            lambda: row.show(partial(status.line, folder.totals(), time.monotonic())),
            row.clear,
            LOOK_SECONDS,
        )
    finally:
        row.clear()


def _nothing() -> None:
    pass
