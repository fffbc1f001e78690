"""Deletion of an experiment by a user: its run is stopped first, wherever it is."""

from __future__ import annotations

import asyncio

from tidegate.errors import ClaimedElsewhere, CoolingDown
from tidegate.experiments.engine.replica import actor, is_dead
from tidegate.experiments.storage import ExperimentRow, Status, Store, Toggle

LOOK_SECONDS = 0.5
"""Seconds between two checks for the end of a stopped run. Raising it saves queries and notices the end later. Chosen:
a person waits for the end."""


async def stop_and_delete(store: Store, row: ExperimentRow, *, force: bool, patience: float) -> None:
    """Stop an experiment, wait for the end of its run, and delete it.

    The owner of its claim notices the stop at its next heartbeat, and ends its run. The wait lasts at most `patience`
    seconds from the stop; it is left out with `force`, or where the owner's process has ended on this machine. Results
    that come later are refused. Raise `CoolingDown` shortly after a user's resume, and `ClaimedElsewhere` where
    somebody has resumed the experiment meanwhile.
    """
    if row.status is Status.RUNNING and await store.claims.stop(row.id, actor()) is Toggle.COOLING:
        raise CoolingDown(row.name)
    if not force and not is_dead(row.claimed_by):
        while True:
            if not await store.deletion.is_ending(row.id, patience):
                break
            await asyncio.sleep(LOOK_SECONDS)
    if not await store.deletion.remove(row.id):
        now = await store.experiments.find(row.id)
        if now is not None:
            raise ClaimedElsewhere(now.name, now.claimed_by, now.quiet)
