"""The state of an experiment whose code or credentials are not here: BLOCKED, with the reason, and nothing lost."""

from __future__ import annotations

import typer

from tidegate.cli.complaints import stop
from tidegate.cli.experiment.codes import Code
from tidegate.cli.experiment.database import existing
from tidegate.errors import CannotLoad
from tidegate.runner import Experiment, RunnerSettings
from tidegate.runner.replica import gone, named
from tidegate.storage import ExperimentRow, Status, Store


async def block(url: str, row: ExperimentRow, error: CannotLoad) -> typer.Exit:
    """Says why an experiment cannot run here, and returns what to raise.

    One that was about to run, or whose replica has died, is BLOCKED from then on, so that nobody takes it up in vain.
    One that was stopped or has ended stays so.
    """
    if row.status in (Status.READY, Status.RUNNING):
        stale_after = 0.0 if gone(row.claimed_by) else RunnerSettings.from_environment().stale_after
        async with existing(url) as store:
            claim = await store.claim(row.id, named(), stale_after)
            if claim is not None:
                await store.release(claim, Status.BLOCKED, error.reason)
    return stop(str(error), Code.BLOCKED)


async def block_new(url: str, experiment: Experiment, error: CannotLoad) -> typer.Exit:
    """As `block`, for an experiment that the database may not have yet."""
    store = await Store.open(url)
    try:
        row = await store.create(experiment.name, experiment.spec(), experiment.repetitions, experiment.described)
    finally:
        await store.close()
    return await block(url, row, error)
