"""Reads a dataset into the store while its first rows are already being answered."""

from __future__ import annotations

import logging
from functools import partial

from tidegate.errors import CannotRead, StoreError
from tidegate.runner.experiment import Dataset
from tidegate.runner.feeding import Feeder
from tidegate.runner.patience import patiently
from tidegate.runner.reading import batches
from tidegate.runner.running import Running

logger = logging.getLogger("tidegate")

SIZE = 1000
"""Rows of a batch: one transaction each, of some tens of milliseconds."""


async def ingest(running: Running, feeder: Feeder, dataset: Dataset, dataset_id: int) -> None:
    """Stores every row and tells the feeder; what was stored by an earlier reading is passed over.

    A dataset that cannot be read to its end ends the run, with the reason; what was read stays.
    """
    store = running.floor.store
    count = 0
    try:
        async for rows in batches(dataset, SIZE):
            if not running.live:
                return
            await patiently(partial(store.add_rows, dataset_id, rows), "the dataset")
            count += len(rows)
            running.tally.rows += len(rows)
            feeder.rows_came()
        if not running.live:
            # A source may answer its cancellation by an end that is none.
            return
        await patiently(partial(store.complete_dataset, dataset_id, count), "the dataset")
        running.tally.all_rows = True
        feeder.rows_came(complete=True)
    except Exception as error:
        if not isinstance(error, CannotRead | StoreError):
            logger.exception("experiment %s: reading its dataset failed", running.experiment.name)
        running.fail(error)
