"""`tidegate status`: the state of the processes of every active run, and the waits of their calls."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from tidegate.cli.errors import stop
from tidegate.cli.status_text import by_waiting, heading, lines, unreadable
from tidegate.core.safe_text import json_line

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
    from tidegate.launch.totals import facts_of

    if watch:
        if as_json:
            raise stop("--watch and --json cannot be combined: a picture is for people; leave one of them out")
        from tidegate.cli.live_view import drawable, picture

        if not drawable(STDOUT, os.environ):
            raise stop("status not watched: the output is no terminal; `tidegate status` prints it once")
        picture(lambda: list(live_runs()), NOTHING)
        return
    now = time.monotonic()
    found = list(live_runs())
    for run in found:
        if not as_json:
            typer.echo(heading(run))
        for key in by_waiting(run):
            if as_json:
                known = {"pid": run.pid, "command": run.command, "elapsed": run.elapsed, **facts_of(key, now)}
                typer.echo(json_line(known))
            else:
                for line in lines(key, now):
                    typer.echo(line)
        for line in unreadable(run):
            typer.echo(line, err=as_json)
    if not found and not as_json:
        typer.echo(NOTHING)
