"""`tidegate experiment show`: one experiment, its scores, what it waits for where it runs on this machine, its log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import typer

from tidegate.cli.experiment import results
from tidegate.cli.experiment.database import existing, found
from tidegate.cli.experiment.hints import command
from tidegate.cli.experiment.publishing import told_by
from tidegate.cli.experiment.tables import printer
from tidegate.cli.run_lines import clock
from tidegate.cli.status import facts as key_facts
from tidegate.core.display import json_line
from tidegate.core.snapshot import foresee
from tidegate.launch.totals import KeyTotal
from tidegate.runner.progress import Summary
from tidegate.runner.replica import gone, owner, stopper
from tidegate.storage import Failure, LoggedLine, ResultStatus, Status
from tidegate.storage.results import KEPT_LINES


async def shown(name: str, url: str, as_json: bool, lines: int) -> None:
    """Prints how an experiment stands."""
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        summary = Summary(row, await store.counts(row.id), tuple(await store.scores(row.id)))
        failures = await store.failures(row.id)
        log = await store.last_logs(row.id, max(lines, KEPT_LINES))
    by, stopped = owner(row, log) if row.status is Status.RUNNING else "", stopper(row, log)
    log = log[len(log) - lines :] if lines < len(log) else log
    keys = _keys(summary)
    if as_json:
        now = time.monotonic()
        waits = [key_facts(key, now) for key in keys]
        whose = {"run_by": by or None, "stopped_by": stopped or None}
        told = {**results.facts(summary, failures), **whose, "keys": waits, "log": [_logged(each) for each in log]}
        typer.echo(json_line(told))
        return
    _print(summary, failures, keys, log, url, by, stopped)


def _print(
    summary: Summary,
    failures: list[Failure],
    keys: list[KeyTotal],
    log: list[LoggedLine],
    url: str,
    by: str,
    stopped: str,
) -> None:
    console = printer()
    console.print(summary.headline, markup=False, soft_wrap=True)
    row = summary.experiment
    console.print(f"dataset: {row.source}{'' if row.complete else ', not read to its end yet'}", markup=False)
    if row.status is Status.RUNNING:
        heard = f", heard of {row.quiet:.0f} s ago" if row.quiet is not None else ""
        if gone(row.claimed_by):
            heard = f", whose process is gone: {command('resume', row.name, url)} goes on"
        console.print(f"run by replica {row.claimed_by}{heard}", markup=False, soft_wrap=True)
        console.print(f"  {by}", markup=False, soft_wrap=True)
        for line in _waits(keys, time.monotonic()):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if stopped:
        console.print(f"stopped by {stopped}", markup=False, soft_wrap=True)
    for table in results.tables(summary, failures):
        console.print(table)
    parked = sum(each.count for each in failures if each.status is ResultStatus.PARKED)
    if parked and row.status is not Status.RUNNING:
        said = f"{parked} parked: {command('resume', row.name, url)} tries them again"
        console.print(said, markup=False, soft_wrap=True)
    for each in log:
        console.print(_line(each), markup=False, soft_wrap=True)


def _keys(summary: Summary) -> list[KeyTotal]:
    """The keys of the process that runs it, where that is one of this machine's."""
    replica = summary.experiment.claimed_by
    if replica is None or os.name != "posix":
        return []
    return told_by(replica)


def _waits(keys: list[KeyTotal], now: float) -> Iterator[str]:
    for key in keys:
        seen = key.outlook(now)
        # What waits for this key waits outside its queue: when the next one may go is asked as if it stood there.
        ahead = foresee(seen._replace(waiting=max(1, seen.waiting)))
        when = f"next one in {clock(ahead.seconds)}" if ahead.seconds else "next one now"
        when = "next one when one ends" if ahead.seconds is None else when
        gate = f" ({ahead.gate})" if ahead.gate and ahead.seconds != 0.0 else ""
        yield f"{key.key}: {key.in_flight} in flight of {key.slots}, {when}{gate}"


def _line(line: LoggedLine) -> str:
    """A log line for people: what happened first, then its details."""
    kind = line.detail.get("type", "")
    details = [f"{name} {value}" for name, value in line.detail.items() if name != "type"]
    told = f"{kind} ({', '.join(details)})" if details else kind
    return f"{line.at.astimezone():%Y-%m-%d %H:%M:%S} {line.level} {line.category} {told}"


def _logged(line: LoggedLine) -> dict[str, Any]:
    return {
        "at": line.at.isoformat(),
        "level": line.level.value,
        "category": line.category.value,
        "detail": dict(line.detail),
    }
