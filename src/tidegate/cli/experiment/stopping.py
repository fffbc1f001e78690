"""`tidegate experiment stop`: the user's stop, through the database."""

from __future__ import annotations

from functools import partial

import typer

from tidegate.cli.experiment.codes import Code
from tidegate.cli.experiment.cooling import once_cooled
from tidegate.cli.experiment.database import existing, found
from tidegate.errors import CoolingDown
from tidegate.runner.replica import actor
from tidegate.storage import ExperimentRow, Status, Store, Toggle


async def stop_named(name: str, url: str) -> int:
    """Stops an experiment; returns the exit code: 0 where it is stopped, also where it was not running."""
    async with existing(url) as store:
        row = await found(store, name)
        what = f"{row.name} was resumed a moment ago: it is stopped"
        toggled = await once_cooled(partial(_stopped, store, row), partial(typer.echo, err=True), what)
    if toggled is Toggle.ALREADY:
        typer.echo(f"{row.name} is not running: it is {row.status}")
    elif row.status is Status.RUNNING:
        typer.echo(f"{row.name} is stopped: replica {row.claimed_by} hears of it within a heartbeat")
    else:
        typer.echo(f"{row.name} is stopped")
    return Code.DONE


async def _stopped(store: Store, row: ExperimentRow) -> Toggle:
    toggled = await store.stop(row.id, actor())
    if toggled is Toggle.COOLING:
        raise CoolingDown(row.name)
    return toggled
