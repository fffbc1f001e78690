"""`tidegate experiment stop`: the user's stop, through the database."""

from __future__ import annotations

import asyncio

import typer

from tidegate.cli.complaints import stop
from tidegate.cli.experiment.codes import Code
from tidegate.cli.experiment.database import existing, found
from tidegate.errors import CoolingDown
from tidegate.storage import Status, Store, Toggle
from tidegate.storage.claims import COOL_DOWN

AGAIN = 0.5
"""Seconds between two tries while a cool-down lasts."""


async def stop_named(name: str, url: str) -> int:
    """Stops an experiment; returns the exit code: 0 where it is stopped, also where it was not running."""
    async with existing(url) as store:
        row = await found(store, name)
        toggled = await store.stop(row.id)
        if toggled is Toggle.COOLING:
            typer.echo(f"{row.name} was resumed a moment ago: it is stopped in {COOL_DOWN:.0f} s at the most", err=True)
            toggled = await _once_cooled(store, row.id)
    if toggled is Toggle.COOLING:
        raise stop(str(CoolingDown(row.name)), Code.FAILED)
    if toggled is Toggle.ALREADY:
        typer.echo(f"{row.name} is not running: it is {row.status}")
    elif row.status is Status.RUNNING:
        typer.echo(f"{row.name} is stopped: replica {row.claimed_by} hears of it within a heartbeat")
    else:
        typer.echo(f"{row.name} is stopped")
    return Code.DONE


async def _once_cooled(store: Store, number: int) -> Toggle:
    toggled = Toggle.COOLING
    for _ in range(round((COOL_DOWN + 1.0) / AGAIN)):
        await asyncio.sleep(AGAIN)
        toggled = await store.stop(number)
        if toggled is not Toggle.COOLING:
            break
    return toggled
