"""`tidegate experiment stop`: the user's stop, through the database."""

from __future__ import annotations

import typer

from tidegate.cli.complaints import stop
from tidegate.cli.experiment.codes import Code
from tidegate.cli.experiment.database import existing, found
from tidegate.storage import Status, Toggle
from tidegate.storage.claims import COOL_DOWN


async def stop_named(name: str, url: str) -> int:
    """Stops an experiment; returns the exit code: 0 where it is stopped, also where it was not running."""
    async with existing(url) as store:
        row = await found(store, name)
        toggled = await store.stop(row.id)
    if toggled is Toggle.COOLING:
        raise stop(f"{row.name} was stopped or resumed a moment ago: try again in {COOL_DOWN:.0f} s", Code.FAILED)
    if toggled is Toggle.ALREADY:
        typer.echo(f"{row.name} is not running: it is {row.status}")
    elif row.status is Status.RUNNING:
        typer.echo(f"{row.name} is stopped: replica {row.claimed_by} hears of it within a heartbeat")
    else:
        typer.echo(f"{row.name} is stopped")
    return Code.DONE
