"""Sums by stage in the database: tallies of results, and tokens and costs; each batch of results changes both.

An experiment has a tally of its tasks from its creation on. A batch reads the results that it is about to replace, and
adds the difference. On PostgreSQL it holds a lock on the tally of the tasks from before that until its end, so the
batches of two replicas cannot miss each other's results. This lock is taken before all others.

An item has one row of tokens and costs for each claim under which it made governed calls, with all its attempts under
that claim, and one for each provider's batch that answered it. Where replicas claim chunks of rows, each claim of the
chunk counts. A later result of the same item replaces it. The batch that writes such rows reads those that it replaces,
and adds the difference to the sums, in the same transaction. What an item of an earlier claim has cost stays counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    Table,
    bindparam,
    insert,
    literal,
    select,
    tuple_,
    update,
)

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
from tidegate.experiments.storage.schema import annotation_rows, execution_configs, runs, spend, tallies, usages
from tidegate.experiments.storage.stored_forms import cleaned_if_any, shortened
from tidegate.experiments.storage.tally import ResultFacts, StageTally

TASKS = "task"
"""Stage of the tasks; no evaluator may have this name (`experiments.engine.queues.TASK_STAGE`)."""

BUILD_ROWS = 5_000
"""Results that are read at once while a tally is built."""

Item = tuple[int, int, int]
"""(experiment, ordinal, repetition)."""

Values = Mapping[str, Any]
ByStage = dict[int, dict[str, StageTally]]


def change(connection: Connection, sqlite: bool, ended: Sequence[Values], annotated: Sequence[Values]) -> None:
    """Change the tallies by the rows that a batch is about to write, one of each identity."""
    known = _read(connection, {row["experiment_id"] for row in (*ended, *annotated)})
    touched: dict[tuple[int, str], StageTally] = {}

    def stage(number: int, name: str) -> StageTally:
        return touched.setdefault((number, name), known[number].setdefault(name, StageTally()))

    runs_before = {_item(row): _facts(row) for row in _stored(connection, sqlite, runs, ended)}
    for row in ended:
        before = runs_before.get(_item(row))
        # The statement of the batch writes no failed result over an ok one.
        if before is None or before.status != "ok" or row["status"] == "ok":
            stage(row["experiment_id"], TASKS).change([before] if before else [], [_facts(row)])
    judged_before: dict[tuple[Item, str], dict[str | None, ResultFacts]] = {}
    for row in _stored(connection, sqlite, annotation_rows, annotated):
        judged_before.setdefault((_item(row), row["evaluator"]), {})[row["output"]] = _facts(row)
    judged: dict[tuple[Item, str], list[ResultFacts]] = {}
    for row in annotated:
        judged.setdefault((_item(row), row["evaluator"]), []).append(_facts(row))
    for (item, evaluator), results in judged.items():
        _change(stage(item[0], evaluator), judged_before.get((item, evaluator), {}), results)
    _save(connection, sqlite, ((*key, tally) for key, tally in sorted(touched.items(), key=lambda each: each[0])))


def _change(stage: StageTally, before: Mapping[str | None, ResultFacts], results: Sequence[ResultFacts]) -> None:
    # The batch first forgets what failed, and writes no failed result over an ok one.
    after = {output: facts for output, facts in before.items() if facts.status == "ok"}
    for facts in results:
        if facts.status == "ok" or facts.output not in after:
            after[facts.output] = facts
    stage.change(list(before.values()), list(after.values()))


def lock(connection: Connection, experiment_ids: Iterable[int]) -> None:
    """Let no other transaction change the tallies of these experiments until this one ends."""
    numbers = sorted(set(experiment_ids))
    if numbers and connection.dialect.name != "sqlite":
        connection.execute(_locking(), {"experiments": numbers}).all()


def begin(connection: Connection, experiment_id: int) -> None:
    first = json.dumps(StageTally().to_json())
    connection.execute(insert(tallies).values(experiment_id=experiment_id, stage=TASKS, tally=first))


class Tallies(StorePart):
    """Tallies of experiments, by stage."""

    async def of(self, experiment_ids: Sequence[int]) -> dict[int, dict[str, StageTally]]:
        """Return the tallies of experiments by stage (`task`, then the evaluators); no result is read for it."""
        found: ByStage = {number: {} for number in experiment_ids}
        query = select(tallies).where(tallies.c.experiment_id.in_(experiment_ids))
        async with self._database.reading() as connection:
            for row in await connection.execute(query):
                found[row.experiment_id][row.stage] = StageTally.from_json(json.loads(row.tally))
        return found


def build(connection: Connection, experiment_id: int) -> None:
    """Tally all results of an experiment, which has no tally; none is written meanwhile."""
    for stage, tally in _counted(connection, experiment_id).items():
        _save(connection, connection.dialect.name == "sqlite", [(experiment_id, stage, tally)])


def tallies_of(connection: Connection, experiment_id: int) -> Mapping[str, StageTally]:
    """Return the tallies of one experiment by stage, inside a transaction."""
    return _read(connection, {experiment_id}).get(experiment_id, {})


def _counted(connection: Connection, experiment_id: int) -> dict[str, StageTally]:
    stages = {TASKS: StageTally()}
    for row in _streamed(connection, _columns(runs).where(runs.c.experiment_id == experiment_id)):
        stages[TASKS].change([], [_facts(row._mapping)])
    one = annotation_rows.c
    of_items = _columns(annotation_rows).where(one.experiment_id == experiment_id)
    item: tuple[int, int, str] | None = None
    results: list[ResultFacts] = []
    for row in _streamed(connection, of_items.order_by(one.ordinal, one.repetition, one.evaluator, one.output)):
        this = row.ordinal, row.repetition, row.evaluator
        if item is not None and this != item:
            stages.setdefault(item[2], StageTally()).change([], results)
            results = []
        item = this
        results.append(_facts(row._mapping))
    if item is not None:
        stages.setdefault(item[2], StageTally()).change([], results)
    return stages


def _streamed(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    with connection.execute(query, execution_options={"yield_per": BUILD_ROWS}) as result:
        yield from result


def _read(connection: Connection, experiment_ids: set[int]) -> ByStage:
    found: ByStage = {}
    # One by one: for a list, SQLite may scan a table that it knows to be small.
    for number in experiment_ids:
        for row in connection.execute(_reading(), {"experiment": number}):
            found.setdefault(number, {})[row.stage] = StageTally.from_json(json.loads(row.tally))
    return found


def _save(connection: Connection, sqlite: bool, changed: Iterable[tuple[int, str, StageTally]]) -> None:
    for number, stage, tally in changed:
        values = {"experiment_id": number, "stage": stage, "tally": json.dumps(tally.to_json(), ensure_ascii=False)}
        connection.execute(_putting(sqlite), values)


def _stored(connection: Connection, sqlite: bool, table: Table, rows: Sequence[Values]) -> Sequence[Any]:
    if not rows:
        return []
    return connection.execute(_before(sqlite, table), item_values(sqlite, map(_item, rows))).mappings().all()


@cache
def _before(sqlite: bool, table: Table) -> Select[Any]:
    return _columns(table).select_from(of_items(sqlite, table))


def _columns(table: Table) -> Select[Any]:
    names = ["experiment_id", "ordinal", "repetition", "status", "error_kind", "error", "attempts", "seconds"]
    if table is runs:
        return select(*(table.c[name] for name in names))
    more = [table.c[name] for name in ("evaluator", "output", "score", "label", "answered_by")]
    return select(*(table.c[name] for name in names), *more, table.c.value.isnot(None).label("value"))


def _facts(row: Values) -> ResultFacts:
    kind, error = row["error_kind"] or "", row["error"] or ""
    if "evaluator" not in row:
        attempts, seconds = row["attempts"], row["seconds"]
        return ResultFacts(str(row["status"]), kind=kind, error=error, attempts=attempts, seconds=seconds)
    return ResultFacts(
        str(row["status"]),
        row["output"],
        None if row["score"] is None else float(row["score"]),
        row["label"],
        row["value"] not in (None, False, 0),
        row["answered_by"] is not None,
        kind,
        error,
        row["attempts"],
        row["seconds"],
    )


def _item(row: Values) -> Item:
    return row["experiment_id"], row["ordinal"], row["repetition"]


@cache
def _reading() -> Select[Any]:
    return select(tallies.c.stage, tallies.c.tally).where(tallies.c.experiment_id == bindparam("experiment"))


@cache
def _locking() -> Select[Any]:
    one = tallies.c
    return (
        select(one.experiment_id)
        .where(one.experiment_id.in_(bindparam("experiments", expanding=True)), one.stage == TASKS)
        .order_by(one.experiment_id)
        .with_for_update()
    )


@cache
def _putting(sqlite: bool) -> Any:
    put = insert_into(sqlite, tallies).values({name: bindparam(name) for name in ("experiment_id", "stage", "tally")})
    return put.on_conflict_do_update(index_elements=list(tallies.primary_key), set_={"tally": put.excluded.tally})


UsageRow: TypeAlias = dict[str, Any]

KEY = ("experiment_id", "ordinal", "repetition", "stage", "run_epoch")
COUNTS = TokenTotals._fields

CHUNK_CLAIMS = 1_000_000
"""Claims of a chunk under one claim of its experiment that have keys of their own, as negative numbers. Chosen: a claim
takes milliseconds at least."""


def save_usages(connection: Connection, sqlite: bool, results: Sequence[object]) -> None:
    """Write the usages of a batch of results, and change the sums by them."""
    rows: dict[tuple[Any, ...], UsageRow] = {}
    for result in results:
        if isinstance(result, RunResult | AnnotationResult | ItemAttempts) and result.usage is not None:
            row = _row(result, result.usage)
            rows[_key(row)] = row
    if not rows:
        return
    before = {
        _key(row): TokenTotals(*(row[name] for name in COUNTS))
        for row in map(dict, connection.execute(_stored_usages(sqlite), _items(sqlite, rows.values())).mappings())
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
    epoch = (
        select(execution_configs.c.epoch).where(execution_configs.c.experiment_id == experiment_id).scalar_subquery()
    )
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


def _row(result: RunResult | AnnotationResult | ItemAttempts, usage: ItemUsage) -> UsageRow:
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
        "model": cleaned_if_any(usage.model),
        "finish_reason": cleaned_if_any(usage.finish_reason),
        "request_id": cleaned_if_any(usage.request_id),
        "waited": usage.waited,
    }


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _items(sqlite: bool, rows: Any) -> dict[str, Any]:
    return item_values(sqlite, ((row["experiment_id"], row["ordinal"], row["repetition"]) for row in rows))


@cache
def _stored_usages(sqlite: bool) -> Select[Any]:
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
