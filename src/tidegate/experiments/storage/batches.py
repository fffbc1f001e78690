"""Batches of experiments at the Batch APIs of providers.

Theory of operation. A batch is written before the provider gets it, with its rows and a random tag. So a process that
finds the record of a dead one knows which rows may be at the provider, and looks there before it submits any of them.
Each write locks the experiment's row of `execution_configs`, as a batch of results does, and needs the newest claim.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, func, select

from tidegate.errors import ClaimLost
from tidegate.experiments.storage.bulk import insert_into
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.json_codec import cleaned
from tidegate.experiments.storage.records import BatchRecord, BatchState, Claim
from tidegate.experiments.storage.results import write_state
from tidegate.experiments.storage.schema import batches
from tidegate.experiments.storage.sql_clock import now

batch = batches.c
COLUMNS = (batch.number, batch.provider, batch.state, batch.tag, batch["items"], batch["count"], batch.file_id,
           batch.provider_id, batch.detail, batch.epoch, batch.created_at)  # fmt: skip


class Batches(StorePart):
    """Batches at the providers."""

    async def save(self, held: Claim, record: BatchRecord) -> BatchRecord:
        """Write a batch over the one with its number, or as a new one where that is 0; return it as it is stored.

        Raise `ClaimLost` where the claim is not the newest.
        """
        values = {
            "provider": record.provider,
            "state": record.state,
            "tag": record.tag,
            "items": json.dumps(record.items, separators=(",", ":")),
            "count": record.count,
            "epoch": held.epoch,
            "file_id": record.file_id,
            "provider_id": record.provider_id,
            "detail": None if record.detail is None else cleaned(record.detail),
        }

        def work(connection: Connection) -> BatchRecord:
            if write_state(connection, [held.experiment_id]).epochs.get(held.experiment_id) != held.epoch:
                raise ClaimLost(held.experiment_id)
            number = record.number
            if not number:
                last = select(func.coalesce(func.max(batch.number), 0)).where(batch.experiment_id == held.experiment_id)
                number = connection.execute(last).scalar_one() + 1
            identity = {"experiment_id": held.experiment_id, "number": number}
            put = insert_into(self._database.sqlite, batches).values(**identity, **values, created_at=now())
            put = put.on_conflict_do_update(index_elements=list(batches.primary_key), set_=values)
            return _record(connection.execute(put.returning(*COLUMNS)).one())

        return await self._database.transacted(work)

    async def of(self, experiment_id: int) -> list[BatchRecord]:
        """Return the batches of an experiment, by their number."""
        query = select(*COLUMNS).where(batch.experiment_id == experiment_id).order_by(batch.number)
        async with self._database.reading() as connection:
            return [_record(row) for row in await connection.execute(query)]

    async def counts(self) -> dict[int, dict[str, int]]:
        """Return the number of batches by experiment and state; experiments without any are left out."""
        query = select(batch.experiment_id, batch.state, func.count()).group_by(batch.experiment_id, batch.state)
        found: dict[int, dict[str, int]] = {}
        async with self._database.reading() as connection:
            for number, state, count in await connection.execute(query.order_by(batch.experiment_id, batch.state)):
                found.setdefault(number, {})[state] = count
        return found

    async def provider_ids(self, provider: str) -> frozenset[str]:
        """Return the provider's names of all batches that are known in this database."""
        query = select(batch.provider_id).where(batch.provider == provider, batch.provider_id.is_not(None))
        async with self._database.reading() as connection:
            return frozenset((await connection.execute(query)).scalars())


def _record(row: Any) -> BatchRecord:
    number, provider, state, tag, items, *others = row
    return BatchRecord(
        number, provider, BatchState(state), tag, tuple((one, first, end) for one, first, end in json.loads(items)),
        *others,
    )  # fmt: skip
