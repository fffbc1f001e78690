"""`tidegate status`: the state of the processes of every active run, and the waits of their calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tidegate.cli.errors import stop
from tidegate.cli.status_text import amount, clock, sized
from tidegate.core.display import json_line, printable
from tidegate.core.snapshot import estimate_eta
from tidegate.launch.totals import KeyTotal

NOTHING = (
    "no active run found: `tidegate run` keeps no counts if TIDEGATE_LOG is off, or if standard output and standard "
    "error are one file"
)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per key and line.")] = False,
) -> None:
    """Show your active runs and experiments: for each key, the calls in flight, the waiting calls and their ETA."""
    if os.name != "posix":
        raise stop("status not available: it reads the counts of `tidegate run`, which needs a POSIX system")
    from tidegate.launch.runs import live_runs

    now = time.monotonic()
    found = list(live_runs())
    for run in found:
        if not as_json:
            typer.echo(printable(f"{run.command} (pid {run.pid})"))
        for key in sorted(run.totals.keys.values(), key=lambda each: (-each.waiting, each.key)):
            if as_json:
                typer.echo(json_line({"pid": run.pid, "command": run.command, **facts(key, now)}))
            else:
                for line in lines(key, now):
                    typer.echo(line)
    if not found and not as_json:
        typer.echo(NOTHING)


def facts(key: KeyTotal, now: float) -> dict[str, Any]:
    """Return one key as plain values. Durations are in seconds, None where they cannot be estimated."""
    seen = key.outlook(now)
    ahead = estimate_eta(seen)
    return {
        "key": key.key,
        "in_flight": key.in_flight,
        "limit": key.slots,
        "waiting": key.waiting,
        "gate": ahead.gate,
        "eta": ahead.seconds,
        "quotas": [{"name": q.name, "level": q.level, "limit": q.limit, "window": q.window} for q in seen.quotas],
    }


def lines(key: KeyTotal, now: float) -> Iterator[str]:
    """Yield one key as lines of text.

    The `gate` is the limiter of the key that holds its calls back.
    """
    seen = key.outlook(now)
    ahead = estimate_eta(seen)
    yield f"  {key.key}"
    parts = [f"{key.in_flight} of at most {key.slots} in flight", f"{key.waiting} waiting"]
    if key.waiting:
        parts.append(f"gate: {ahead.gate or 'none'}")
        parts.append("ETA unknown" if ahead.seconds is None else f"ETA {clock(ahead.seconds)}")
    yield f"    {' · '.join(parts)}"
    for quota in seen.quotas:
        yield f"    {amount(max(0.0, quota.level))} of {sized(quota.name, quota.limit, quota.window)} left"
