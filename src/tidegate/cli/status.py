"""`tidegate status`: the state of the processes of every active run, and the waits of their calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.errors import stop
from tidegate.cli.status_text import shared_by, without_others
from tidegate.core.display import json_line, printable
from tidegate.core.token_totals import token_facts, tokens_text
from tidegate.core.wait_text import CLOSED, amount, clock, duration, sized, wait_text
from tidegate.launch.totals import KeyTotal

if TYPE_CHECKING:
    from tidegate.launch.runs import ProgramRun

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

    if watch:
        if as_json:
            raise stop("--watch and --json cannot be combined: a picture is for people; leave one of them out")
        from tidegate.cli.watch import drawable

        if not drawable(STDOUT, os.environ):
            raise stop("status not watched: the output is no terminal; `tidegate status` prints it once")
        from rich.console import Console

        from tidegate.cli import live_status

        live_status.watch(lambda: list(live_runs()), _heading, state_lines, NOTHING, Console(highlight=False))
        return
    now = time.monotonic()
    found = list(live_runs())
    for run in found:
        if not as_json:
            typer.echo(_heading(run))
        for key in sorted(run.totals.keys.values(), key=lambda each: (-each.waiting, each.key)):
            if as_json:
                known = {"pid": run.pid, "command": run.command, "elapsed": run.elapsed, **facts(key, now)}
                typer.echo(json_line(known))
            else:
                for line in lines(key, now):
                    typer.echo(line)
        for pid, why in run.totals.unreadable.items():
            typer.echo(f"  counts of process {pid} unreadable: {why}; they are not shown", err=as_json)
    if not found and not as_json:
        typer.echo(NOTHING)


def _heading(run: ProgramRun) -> str:
    if run.unreadable:
        return printable(f"{run.command} unreadable: {run.unreadable}; use the `tidegate status` of its environment")
    return printable(f"{run.command} (pid {run.pid}, running for {duration(run.elapsed)})")


def facts(key: KeyTotal, now: float) -> dict[str, Any]:
    """Return one key as plain values. Durations are in seconds, None where they cannot be estimated.

    The limits are those of `members` processes, whichever program they belong to, which are `shared_through` a file, a
    server or Ray.

    `calls` are answered, given up, failed, abandoned, in flight or waiting. `retried` of the `refused` attempts were
    followed by another.
    """
    seen = key.outlook(now)
    head, ahead = key.head_wait(seen), key.eta(seen)
    return {
        "key": key.key,
        "in_flight": key.in_flight,
        "limit": key.slots,
        "waiting": key.waiting,
        "calls": key.calls,
        "answered": key.counts["answered"],
        "given_up": key.counts["given_up"],
        "failed": key.counts["failed_calls"],
        "abandoned": key.abandoned,
        "refused": key.counts["refused"],
        "retried": key.counts["absorbed"],
        "members": key.members,
        "shared_through": key.carrier if key.members > 1 else "",
        "gate": head.gate,
        "next_in": head.seconds,
        "stated_wait": head.stated,
        "eta": ahead.seconds,
        "eta_gate": ahead.gate,
        "eta_without": key.unseen_members,
        "tokens": token_facts(key.tokens),
        "quotas": [{"name": q.name, "level": q.level, "limit": q.limit, "window": q.window} for q in seen.quotas],
    }


def lines(key: KeyTotal, now: float) -> Iterator[str]:
    """Yield one key as lines of text, with its quotas; the reason of a wait goes first."""
    yield from state_lines(key, now)
    for quota in key.outlook(now).quotas:
        yield f"    {amount(quota.usable)} of {sized(quota.name, quota.limit, quota.window)} left"


def state_lines(key: KeyTotal, now: float) -> Iterator[str]:
    """Yield the lines of a key without its quotas."""
    seen = key.outlook(now)
    head, ahead = key.head_wait(seen), key.eta(seen)
    yield f"  {key.key}"
    if key.waiting or head.gate in CLOSED:
        yield f"    {wait_text(*head)}"
    parts = [f"{key.in_flight} of at most {key.slots} in flight", f"{key.waiting} waiting"]
    if key.waiting:
        parts.append("ETA unknown" if ahead.seconds is None else f"ETA {clock(ahead.seconds)}{without_others(key)}")
    if key.members > 1:
        parts.append(shared_by(key.members, key.carrier))
    yield f"    {' · '.join(parts)}"
    if text := tokens_text(key.tokens):
        yield f"    {text}"
