"""Ranges of rows that one replica or one provider has: chunks for replicas, batches at Batch APIs.

Several replicas may run one experiment at once (PostgreSQL only). The replica that claims the experiment is its owner.
The owner adds the chunks, and ends the experiment. Owner and contributors claim chunks in the same way: one UPDATE,
timed by the database's clock. A chunk whose claim is not renewed for `stale_after` seconds is free again. The name of a
replica is unique, so a batch of a contributor's results is accepted while the chunk still has that name. A user's start
deletes all chunks.

The budget is in the experiment's stored spec, so it is one for all replicas. A claim holds a lock on the experiment,
and reserves the cost of all rows of the chunks that are claimed (`storage.spend_reserve`). Where only a part of a free
chunk fits, the chunk is divided, and the part is claimed. Rows of a chunk that have ended stay reserved until it is
done: that starts fewer rows for a while, and never too many.

A batch is written before the provider gets it, with its rows and a random tag. So a process that finds the record of a
dead one knows which rows may be at the provider, and looks there before it submits any of them. Each write locks the
experiment's row of `execution_configs`, as a batch of results does, and needs the newest claim.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from tidegate.core.token_totals import TokenTotals, added
from tidegate.errors import ClaimLost
from tidegate.experiments.storage import stage_sums
from tidegate.experiments.storage.bulk import insert_into
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.records import BatchRecord, BatchState, Claim, RowChunk
from tidegate.experiments.storage.results import write_state
from tidegate.experiments.storage.schema import batches, chunks, execution_configs, experiments, spend
from tidegate.experiments.storage.spend_reserve import (
    RECENT_JOBS,
    RecentJobs,
    StageReserve,
    budget_amount,
    rows_within,
)
from tidegate.experiments.storage.stage_sums import TASKS
from tidegate.experiments.storage.stored_forms import ago, cleaned, decoded, now
from tidegate.experiments.storage.tally import StageTally

MAX_ROWS = 256
"""Maximum rows of a chunk. Chosen: about 5 s of work of 50 functions with answers of 1 s."""

LEAST_CHUNKS = 64
"""Minimum chunks of the rows that are stored, where these are fewer than this times `MAX_ROWS`. Chosen: 16 for each of
four replicas."""

chunk = chunks.c
config = execution_configs.c
TASKS_RUN = exists(literal_column("1")).where(config.experiment_id == chunk.experiment_id, text("status = 'RUNNING'"))


class Chunks(StorePart):
    """Chunks of rows, and the claims on them."""

    async def reset(self, held: Claim) -> None:
        """Delete the chunks of an experiment, so that no replica holds one; raise `ClaimLost` for an older claim."""

        def work(connection: Connection) -> None:
            newest = select(config.epoch).where(config.experiment_id == held.experiment_id).with_for_update(read=True)
            if connection.execute(newest).scalar_one_or_none() != held.epoch:
                raise ClaimLost(held.experiment_id)
            connection.execute(delete(chunks).where(chunk.experiment_id == held.experiment_id))

        await self._database.transacted(work)

    async def add(self, experiment_id: int, until: int) -> None:
        """Add chunks for the stored rows below the ordinal `until` that no chunk has."""
        size = min(MAX_ROWS, max(1, until // LEAST_CHUNKS))

        def work(connection: Connection) -> None:
            # One replica at a time: the owner, and one that takes the experiment over.
            connection.execute(
                select(config.epoch).where(config.experiment_id == experiment_id).with_for_update(key_share=True)
            )
            last = select(func.coalesce(func.max(chunk.end), 0)).where(chunk.experiment_id == experiment_id)
            begin = connection.execute(last).scalar_one()
            rows = [
                {"experiment_id": experiment_id, "first": first, "end": min(first + size, until)}
                for first in range(begin, until, size)
            ]
            if rows:
                connection.execute(insert(chunks), rows)

        await self._database.transacted(work)

    async def claim(self, experiment_id: int, replica: str, stale_after: float) -> RowChunk | TokenTotals | None:
        """Return the first chunk that is not done and that no live replica holds, now claimed; None without one.

        An experiment that does not run gives no chunk.
        """
        free = (
            select(chunk.first)
            .where(chunk.experiment_id == experiment_id, _free(stale_after), TASKS_RUN)
            .order_by(chunk.first)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        taken = (
            update(chunks)
            .where(chunk.experiment_id == experiment_id, chunk.first == free)
            .values(claimed_by=replica, claimed_at=now(), epoch=chunk.epoch + 1)
            .returning(chunk.first, chunk.end, chunk.epoch, chunk.claimed_by, chunk.done)
        )

        def work(connection: Connection) -> RowChunk | TokenTotals | None:
            take = taken
            budget = stored(connection, experiment_id)
            if budget is not None:
                fits = fit(connection, experiment_id, budget, _free(stale_after))
                if not isinstance(fits, int):
                    return fits
                # Another chunk may have become free since: only this one is as small as the budget asks for.
                take = taken.where(chunk.first == fits)
            row = connection.execute(take).one_or_none()
            if row is None:
                return None
            taken_over = RowChunk(*row)
            if taken_over.epoch > 1:
                stage_sums.keep_those_of_earlier_claim(connection, experiment_id, taken_over)
            return taken_over

        return await self._database.transacted(work)

    async def of(self, experiment_id: int) -> list[RowChunk]:
        query = (
            select(chunk.first, chunk.end, chunk.epoch, chunk.claimed_by, chunk.done)
            .where(chunk.experiment_id == experiment_id)
            .order_by(chunk.first)
        )
        async with self._database.reading() as connection:
            return [RowChunk(*row) for row in (await connection.execute(query)).all()]

    async def finish(self, experiment_id: int, replica: str, first: int) -> bool:
        """Mark a chunk as done; return False where this replica does not hold it."""
        done = (
            update(chunks).where(_of(experiment_id, replica), chunk.first == first).values(done=True, claimed_at=None)
        )
        return await self._database.transacted(lambda connection: bool(connection.execute(done).rowcount))

    async def renew(self, replica: str, held: Mapping[int, Collection[int]]) -> frozenset[int]:
        """Renew the claims on the chunks that a replica has `held`: their first rows by experiment.

        Return the experiments that run. A claim that the replica never heard of is not renewed: its connection broke
        after the claim was stored, or its run ended during it. So that chunk becomes free, for this replica as well.
        """
        places = [(number, first) for number, firsts in held.items() for first in firsts]
        renewed = (
            update(chunks)
            .where(tuple_(chunk.experiment_id, chunk.first).in_(places), chunk.claimed_by == replica, ~chunk.done)
            .values(claimed_at=now())
        )
        running = select(config.experiment_id).where(config.experiment_id.in_(held), text("status = 'RUNNING'"))

        def work(connection: Connection) -> frozenset[int]:
            if places:
                connection.execute(renewed)
            return frozenset(connection.execute(running).scalars())

        return await self._database.transacted(work)

    async def release(self, experiment_id: int, replica: str) -> None:
        freed = update(chunks).where(_of(experiment_id, replica)).values(claimed_by=None, claimed_at=None)
        await self._database.transacted(lambda connection: bool(connection.execute(freed).rowcount))

    async def to_join(self, stale_after: float) -> list[int]:
        """Return the running experiments with a chunk that is not done and that no live replica holds."""
        query = (
            select(chunk.experiment_id).where(_free(stale_after), TASKS_RUN).distinct().order_by(chunk.experiment_id)
        )
        async with self._database.reading() as connection:
            return list((await connection.execute(query)).scalars())

    async def workers(self, experiment_id: int, stale_after: float) -> int:
        live = and_(chunk.experiment_id == experiment_id, ~chunk.done, chunk.claimed_at >= ago(stale_after))
        query = select(func.count(chunk.claimed_by.distinct())).where(live)
        async with self._database.reading() as connection:
            return int((await connection.execute(query)).scalar_one())


def _free(stale_after: float) -> ColumnElement[bool]:
    return and_(~chunk.done, or_(chunk.claimed_by.is_(None), chunk.claimed_at < ago(stale_after)))


def _of(experiment_id: int, replica: str) -> ColumnElement[bool]:
    return and_(chunk.experiment_id == experiment_id, chunk.claimed_by == replica, ~chunk.done)


def stored(connection: Connection, experiment_id: int) -> Mapping[str, float] | None:
    """Return the amounts of an experiment's budget, None without one."""
    spec = connection.execute(select(experiments.c.spec).where(experiments.c.id == experiment_id)).scalar_one_or_none()
    budget = decoded(spec).get("budget") if spec is not None else None
    return budget if isinstance(budget, dict) else None


def fit(
    connection: Connection, experiment_id: int, budget: Mapping[str, float], free: ColumnElement[bool]
) -> int | TokenTotals | None:
    """Make the first free chunk as small as the budget asks for, and return its first row; None where none fits now.

    Return what was spent where none will ever fit: nothing is under way and no answer waits for its judgement. The lock
    on the experiment lasts until the transaction ends.
    """
    row = connection.execute(
        select(experiments.c.spec, experiments.c.repetitions)
        .where(experiments.c.id == experiment_id)
        .with_for_update(key_share=True)
    ).one()
    chunk = chunks.c
    first = connection.execute(
        select(chunk.first, chunk.end, chunk.epoch)
        .where(chunk.experiment_id == experiment_id, free)
        .order_by(chunk.first)
        .limit(1)
    ).one_or_none()
    if first is None:
        return None
    claimed = and_(chunk.experiment_id == experiment_id, ~chunk.done, ~free)
    under_way = select(func.coalesce(func.sum(chunk.end - chunk.first), 0)).where(claimed)
    ahead = int(connection.execute(under_way).scalar_one()) * row.repetitions
    names = [TASKS, *(decoded(row.spec).get("evaluators") or {})]
    tallies = stage_sums.tallies_of(connection, experiment_id)
    spent = {each.stage: TokenTotals(*each[1:]) for each in connection.execute(_spend(experiment_id))}
    size = int(first.end - first.first)
    repetitions = int(row.repetitions)
    wanted = size * repetitions
    this = and_(chunk.experiment_id == experiment_id, chunk.first == first.first)
    for name, amount in budget.items():
        known = [_reserve(connection, experiment_id, name, stage, tallies, ahead) for stage in names]
        wanted = rows_within(amount, sum(budget_amount(name, tokens) for tokens in spent.values()), known, wanted)
        if not wanted:
            idle = not any(stage.under_way for stage in known)
            return added(spent.values()) if idle else None
    rows = max(1, wanted // repetitions)
    if rows < size:
        middle = first.first + rows
        connection.execute(update(chunks).where(this).values(end=middle))
        connection.execute(
            insert(chunks).values(experiment_id=experiment_id, first=middle, end=first.end, epoch=first.epoch)
        )
    return int(first.first)


def _reserve(
    connection: Connection, experiment_id: int, name: str, stage: str, tallies: Mapping[str, StageTally], ahead: int
) -> StageReserve:
    """Return what the reserve for the items of a stage needs to know, if `ahead` rows are claimed."""
    answered = tallies[TASKS].counts.get("ok", 0) if TASKS in tallies else 0
    measured = tallies[stage].items if stage in tallies else 0
    unjudged = max(0, answered - measured) if stage != TASKS else 0
    last = stage_sums.last_spent(connection, experiment_id, stage, RECENT_JOBS)
    return StageReserve(ahead + unjudged, measured, RecentJobs([name], last).reserve[name])


def _spend(experiment_id: int) -> Any:
    columns = [spend.c[name] for name in TokenTotals._fields]
    return select(spend.c.stage, *columns).where(spend.c.experiment_id == experiment_id)


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
            if write_state(connection, [held.experiment_id])[0].get(held.experiment_id) != held.epoch:
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
        query = select(batch.provider_id).where(batch.provider == provider, batch.provider_id.is_not(None))
        async with self._database.reading() as connection:
            return frozenset((await connection.execute(query)).scalars())


def _record(row: Any) -> BatchRecord:
    number, provider, state, tag, items, *others = row
    return BatchRecord(
        number, provider, BatchState(state), tag, tuple((one, first, end) for one, first, end in json.loads(items)),
        *others,
    )  # fmt: skip
