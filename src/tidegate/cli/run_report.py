"""Report of `tidegate run --report FILE.json`: the totals and the keys of an ended run as plain values."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.admission.redaction import clean, clean_arguments
from tidegate.errors import ConfigurationError
from tidegate.launch.totals import KeyTotal, QuotaTotal, Totals
from tidegate.launch.ungoverned import Ungoverned

VERSION = 1
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
        "version": VERSION,
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
