"""Command `tidegate experiment delete`."""

from __future__ import annotations

import sys
from functools import partial

import typer

from tidegate.cli.errors import stop
from tidegate.experiments.commands.common import Code, after_cooldown, command, existing, found
from tidegate.experiments.engine.deletion import stop_and_delete
from tidegate.experiments.engine.replica import STALE_SECONDS, is_dead
from tidegate.experiments.storage import ResultStatus, Status


async def delete_named(name: str, url: str, *, yes: bool, force: bool) -> int:
    """Delete an experiment after a confirmation. Return the exit code."""
    say = partial(typer.echo, err=True)
    async with existing(url) as store:
        row = await found(store, name)
        counts = await store.reports.counts(row.id)
        answers = counts.runs.get(ResultStatus.OK, 0)
        held = f"{counts.rows} {'row' if counts.rows == 1 else 'rows'}, {answers} answered"
        if not yes:
            if not sys.stdin.isatty():
                confirmed = command("delete", row.name, url, "--yes")
                raise stop(f"{row.name} not deleted: it has {held}; {confirmed} deletes it", Code.UNUSABLE)
            if not typer.confirm(f"Delete {row.name} ({held})?"):
                say(f"{row.name} not deleted")
                return Code.FAILED
        if row.status is Status.RUNNING and not force and not is_dead(row.claimed_by):
            say(
                f"{row.name} not deleted yet: replica {row.claimed_by} runs it; its run is stopped, and waited for at "
                f"most {STALE_SECONDS:.0f} s"
            )
        notice = f"{row.name} not deleted yet: it was started or resumed a moment ago; it is stopped"
        deleting = partial(stop_and_delete, store, row, force=force, patience=STALE_SECONDS)
        await after_cooldown(deleting, say, notice)
    typer.echo(f"{row.name} deleted: {held}")
    return Code.DONE
