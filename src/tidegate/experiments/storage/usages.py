"""Tokens and costs of items, and their sums by stage, which a reader gets without visiting the items.

Theory of operation. An item has one row for each claim under which it made governed calls, with all its attempts under
that claim, and one for each provider's batch that answered it. Where replicas claim chunks of rows, each claim of the
chunk counts. A later result of the same item replaces it. The batch that writes such rows reads those that it replaces,
and adds the difference to the sums, in the same transaction. What an item of an earlier claim has cost stays counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Connection, Executable, Select, bindparam, func, literal, select, tuple_, update

from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.storage.bulk import execute, insert_into, item_values, of_items, put
from tidegate.experiments.storage.database import Database, StorePart
from tidegate.experiments.storage.records import (
    AnnotationResult,
    ItemAttempts,
    ItemUsage,
    RowChunk,
    RunResult,
    TaskCursor,
)
from tidegate.experiments.storage.schema import execution_configs as configs
from tidegate.experiments.storage.schema import spend, usages
from tidegate.experiments.storage.stored_forms import cleaned, shortened
from tidegate.experiments.storage.tally_table import TASKS

Values: TypeAlias = dict[str, Any]

KEY = ("experiment_id", "ordinal", "repetition", "stage", "run_epoch")
COUNTS = TokenTotals._fields

CHUNK_CLAIMS = 1_000_000
"""Claims of a chunk under one claim of its experiment that have keys of their own, as negative numbers. Chosen: a claim
takes milliseconds at least."""


def save(connection: Connection, sqlite: bool, results: Sequence[object]) -> None:
    """Write the usages of a batch of results, and change the sums by them."""
    rows: dict[tuple[Any, ...], Values] = {}
    for result in results:
        if isinstance(result, RunResult | AnnotationResult | ItemAttempts) and result.usage is not None:
            row = _row(result, result.usage)
            rows[_key(row)] = row
    if not rows:
        return
    before = {
        _key(row): TokenTotals(*(row[name] for name in COUNTS))
        for row in map(dict, connection.execute(_stored(sqlite), _items(sqlite, rows.values())).mappings())
    }
    added: dict[tuple[int, str], TokenTotals] = {}
    for key, row in rows.items():
        change = TokenTotals(*(row[name] for name in COUNTS)).less(before.get(key, TokenTotals()))
        stage = row["experiment_id"], row["stage"]
        added[stage] = added.get(stage, TokenTotals()).plus(change)
    execute(connection, sqlite, _put(sqlite), list(rows.values()))
    for (number, name), change in sorted(added.items()):
        connection.execute(_add(sqlite), {"experiment_id": number, "stage": name, **change._asdict()})


def keep_those_of_earlier_claim(connection: Connection, experiment_id: int, claimed: RowChunk) -> None:
    """Keep what another replica has spent on a chunk that is claimed again: the usages of its rows get a key of theirs.

    The experiment's claim has not changed, so the next usage of a row would replace them.
    """
    one = usages.c
    epoch = select(configs.c.epoch).where(configs.c.experiment_id == experiment_id).scalar_subquery()
    connection.execute(
        update(usages)
        .where(one.experiment_id == experiment_id, one.stage == TASKS, one.run_epoch == epoch)
        .where(one.ordinal >= claimed.first, one.ordinal < claimed.end)
        .values(run_epoch=-(one.run_epoch * CHUNK_CLAIMS + claimed.epoch))
    )


class Usages(StorePart):
    """Tokens and costs of experiments."""

    async def spend(self, experiment_id: int) -> dict[str, TokenTotals]:
        """Return the tokens and costs of an experiment by stage: `task`, or an evaluator."""
        return (await self.spends([experiment_id]))[experiment_id]

    async def spends(self, experiment_ids: Sequence[int]) -> dict[int, dict[str, TokenTotals]]:
        """Return the same for several experiments, by their numbers; no item is read for it."""
        one = spend.c
        columns = (one.experiment_id, one.stage, *(one[name] for name in COUNTS))
        query = select(*columns).where(one.experiment_id.in_(experiment_ids)).order_by(one.experiment_id, one.stage)
        found: dict[int, dict[str, TokenTotals]] = {number: {} for number in experiment_ids}
        async with self._database.reading() as connection:
            for row in await connection.execute(query):
                found[row[0]][row[1]] = TokenTotals(*row[2:])
        return found

    async def count_items(self, experiment_id: int) -> dict[str, int]:
        one = usages.c
        used = one.input_tokens + one.output_tokens > 0
        query = select(one.stage, func.count()).where(one.experiment_id == experiment_id, used).group_by(one.stage)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}

    async def last_spent(self, experiment_id: int, stage: str, limit: int) -> Sequence[TokenTotals]:
        async with self._database.reading() as connection:
            return await connection.run_sync(last_spent, experiment_id, stage, limit)


def last_spent(connection: Connection, experiment_id: int, stage: str, limit: int) -> list[TokenTotals]:
    one = usages.c
    query = select(*(one[name] for name in COUNTS)).where(one.experiment_id == experiment_id, one.stage == stage)
    last = query.order_by(one.ordinal.desc(), one.repetition.desc(), one.run_epoch.desc()).limit(limit)
    return [TokenTotals(*row) for row in connection.execute(last)][::-1]


async def read_usages(
    database: Database, experiment_id: int, first: TaskCursor, last: TaskCursor
) -> dict[TaskCursor, dict[str, ItemUsage]]:
    """Return the usages of the items from `first` to `last` by stage, summed over the claims.

    Model, reason and request id are those of the newest claim.
    """
    one = usages.c
    where = tuple_(one.ordinal, one.repetition)
    query = (
        select(usages)
        .where(one.experiment_id == experiment_id, one.ordinal >= first[0], one.ordinal <= last[0])
        .where(where >= tuple_(*map(literal, first)), where <= tuple_(*map(literal, last)))
        .order_by(one.ordinal, one.repetition, one.stage, one.run_epoch)
    )
    found: dict[TaskCursor, dict[str, ItemUsage]] = {}
    async with database.reading() as connection:
        for row in (await connection.execute(query)).mappings():
            of_item = found.setdefault((row["ordinal"], row["repetition"]), {})
            before = of_item.get(row["stage"], ItemUsage())
            of_item[row["stage"]] = ItemUsage(
                before.tokens.plus(TokenTotals(*(row[name] for name in COUNTS))),
                row["model"],
                row["finish_reason"],
                row["request_id"],
                before.waited + row["waited"],
            )
    return found


def _row(result: RunResult | AnnotationResult | ItemAttempts, usage: ItemUsage) -> Values:
    stage = TASKS
    if isinstance(result, AnnotationResult):
        stage = result.evaluator
    elif isinstance(result, ItemAttempts):
        stage = result.stage
    return {
        "experiment_id": result.experiment_id,
        "ordinal": result.ordinal,
        "repetition": result.repetition,
        "stage": shortened(stage),
        # A batch may be read again under a later claim; its rows come before those of any claim.
        "run_epoch": usage.batch - CHUNK_CLAIMS if usage.batch else result.epoch,
        **usage.tokens._asdict(),
        "model": _cleaned(usage.model),
        "finish_reason": _cleaned(usage.finish_reason),
        "request_id": _cleaned(usage.request_id),
        "waited": usage.waited,
    }


def _cleaned(text: str | None) -> str | None:
    return None if text is None else cleaned(text)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _items(sqlite: bool, rows: Any) -> dict[str, Any]:
    return item_values(sqlite, ((row["experiment_id"], row["ordinal"], row["repetition"]) for row in rows))


@cache
def _stored(sqlite: bool) -> Select[Any]:
    columns = [usages.c[name] for name in (*KEY, *COUNTS)]
    return select(*columns).select_from(of_items(sqlite, usages))


@cache
def _put(sqlite: bool) -> Executable:
    put_in = put(sqlite, usages, [one.name for one in usages.c])
    changed = {column.name: put_in.excluded[column.name] for column in usages.c if not column.primary_key}
    statement: Executable = put_in.on_conflict_do_update(index_elements=list(usages.primary_key), set_=changed)
    return statement


@cache
def _add(sqlite: bool) -> Executable:
    names = ("experiment_id", "stage", *COUNTS)
    put_in = insert_into(sqlite, spend).values({name: bindparam(name) for name in names})
    summed = {name: spend.c[name] + put_in.excluded[name] for name in COUNTS}
    statement: Executable = put_in.on_conflict_do_update(index_elements=list(spend.primary_key), set_=summed)
    return statement
