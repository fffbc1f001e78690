"""Batches of results, written in full or not at all, and only for claims that are the newest.

A batch is checked against rows of `execution_configs`, which stay locked until it is committed: on PostgreSQL by FOR
SHARE, on SQLite by the write lock. For results of a replica that contributes to an experiment, the rows are those of
`chunks`. A later claim waits for that, so none can happen between check and write. The same
query reads the version of the schema, and the database's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    Integer,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    literal,
    not_,
    select,
    tuple_,
)

from tidegate.core.values import AnsweredBy
from tidegate.errors import NotStorable, SchemaMismatch
from tidegate.experiments.storage import stage_sums
from tidegate.experiments.storage.bulk import execute, put, unnested
from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.records import (
    Annotation,
    AnnotationResult,
    ClaimStats,
    ItemAttempts,
    LogLine,
    RunResult,
)
from tidegate.experiments.storage.schema import (
    HEAD,
    NOT_ENDED,
    OK,
    annotation_rows,
    attempts,
    chunks,
    execution_configs,
    logs,
    not_ok,
    run_stats,
    runs,
    version,
)
from tidegate.experiments.storage.stored_forms import cleaned, cleaned_if_any, encoded, now, shortened

EVAL_ITEM = ("experiment_id", "ordinal", "repetition", "evaluator")

KEPT_LINES = 1500
"""Lines kept of each experiment's log. Precedent: Heroku's Logplex keeps the last 1,500 of an application."""

MAX_CHOICES, CHOICE_BYTES = 3, 200
"""Choices of fallbacks that are kept of a result, and the bytes of each of their three texts. Derived from PostgreSQL,
as `stored_forms.MAX_NAME_BYTES`."""

ATTEMPT_FACTS = (
    "latency", "waited", "status", "cause", "http_status", "retry_after", "input_tokens", "output_tokens",
    "cached_tokens", "reasoning_tokens",
)  # fmt: skip
"""Fields of an attempt that are stored as they are."""

Values = dict[str, Any]
Result = RunResult | AnnotationResult | ItemAttempts | ClaimStats | LogLine


async def write(database: Database, batch: Sequence[Result]) -> frozenset[int]:
    """Write the results of the newest epochs; return the experiments whose results were rejected.

    Raise `SchemaMismatch` where another version of tidegate has changed the schema.
    """
    if not batch:
        return frozenset()
    return await database.transacted(partial(_write, batch, database.sqlite))


def _write(batch: Sequence[Result], sqlite: bool, connection: Connection) -> frozenset[int]:
    # Before the claims, so that no batch holds up a heartbeat while it waits for another one.
    stage_sums.lock(connection, {one.experiment_id for one in batch if isinstance(one, RunResult | AnnotationResult)})
    epochs, at = write_state(connection, {result.experiment_id for result in batch})
    lost = frozenset(
        one.experiment_id for one in batch if _contributor(one) is None and epochs.get(one.experiment_id) != one.epoch
    ) | _not_held(connection, epochs, [one for one in batch if _contributor(one) is not None])
    kept = [one for one in batch if one.experiment_id not in lost]
    ended = _one_each(runs, [_run(result) for result in kept if isinstance(result, RunResult)])
    judged = [result for result in kept if isinstance(result, AnnotationResult)]
    annotated = _one_each(
        annotation_rows, [_annotation(result, one) for result in judged for one in result.annotations]
    )
    stage_sums.change(connection, sqlite, ended, annotated)
    for statement, values in _statements(sqlite, kept, ended, judged, annotated, at):
        if values:
            execute(connection, sqlite, statement, values)
    stage_sums.save_usages(connection, sqlite, kept)
    for experiment_id in sorted({one.experiment_id for one in kept if isinstance(one, LogLine)}):
        connection.execute(_prune(), {"experiment": experiment_id, "kept": KEPT_LINES})
    return lost


def _contributor(result: Result) -> str | None:
    return result.contributor if isinstance(result, RunResult | ItemAttempts | LogLine) else None


def _not_held(connection: Connection, epochs: Mapping[int, int], contributed: Sequence[Result]) -> frozenset[int]:
    """Return the experiments with a result of a row whose chunk its contributor does not hold."""
    if not contributed:
        return frozenset()
    held: dict[tuple[int, str], list[tuple[int, int]]] = {}
    given = {
        "experiments": sorted({one.experiment_id for one in contributed}),
        "replicas": sorted({_contributor(one) or "" for one in contributed}),
    }
    for row in connection.execute(_chunks_held(), given):
        held.setdefault((row.experiment_id, row.claimed_by), []).append((row.first, row.end))
    return frozenset(
        one.experiment_id
        for one in contributed
        if one.experiment_id not in epochs
        or (
            isinstance(one, RunResult)
            and not any(
                first <= one.ordinal < end for first, end in held.get((one.experiment_id, one.contributor or ""), ())
            )
        )
    )


@cache
def _chunks_held() -> Select[Any]:
    column = chunks.c
    return (
        select(column.experiment_id, column.claimed_by, column.first, column.end)
        .where(
            column.experiment_id.in_(bindparam("experiments", expanding=True)),
            column.claimed_by.in_(bindparam("replicas", expanding=True)),
            ~column.done,
        )
        .order_by(column.experiment_id, column.first)
        .with_for_update(read=True)
    )


def write_state(connection: Connection, experiment_ids: Iterable[int]) -> tuple[dict[int, int], datetime]:
    """Return the newest epochs, which cannot change until the transaction ends, and the database's time.

    Raise `SchemaMismatch`.
    """
    rows = connection.execute(_newest(), {"experiments": sorted(experiment_ids)}).all()
    for row in rows:
        if row.found != HEAD:
            raise SchemaMismatch(found=row.found, expected=HEAD)
    return {row.experiment_id: row.epoch for row in rows}, rows[0].at if rows else datetime.now(UTC)


@cache
def _newest() -> Select[Any]:
    columns = execution_configs.c
    return (
        select(
            columns.experiment_id,
            columns.epoch,
            select(version.c.version_num).scalar_subquery().label("found"),
            now().label("at"),
        )
        .where(columns.experiment_id.in_(bindparam("experiments", expanding=True)))
        .order_by(columns.experiment_id)
        .with_for_update(read=True, of=execution_configs)
    )


def _statements(
    sqlite: bool,
    kept: Sequence[Result],
    ended: list[Values],
    judged: Sequence[AnnotationResult],
    annotated: list[Values],
    at: datetime,
) -> Iterable[tuple[Executable, list[Values]]]:
    yield _put(sqlite, runs), ended
    yield _forget(sqlite), [_of_eval(result) for result in judged]
    yield _put(sqlite, annotation_rows), annotated
    yield _note(sqlite), [_line(result) for result in kept if isinstance(result, LogLine)]
    yield _add_attempts(sqlite), _attempts(kept, at)
    for end in (False, True):
        # A statement may write a row once: the newest statistics of a claim stand for those before.
        found = {
            (one.experiment_id, one.epoch): one for one in kept if isinstance(one, ClaimStats) and one.ended is end
        }
        yield _put_stats(sqlite, end), [_stats(one) for one in found.values()]


def _one_each(table: Table, rows: Sequence[Values]) -> list[Values]:
    """Return one row of each identity: the last ok one, else the last one."""
    keys = table.primary_key.columns.keys()
    last: dict[tuple[Any, ...], Values] = {}
    for row in rows:
        identity = tuple(row[key] for key in keys)
        before = last.get(identity)
        if before is None or row["status"] == "ok" or before["status"] != "ok":
            last[identity] = row
    return list(last.values())


@cache
def _put(sqlite: bool, table: Table) -> Executable:
    """Return a statement that writes rows over those of the same identity, but no failed one over an ok one."""
    put_in = put(sqlite, table, [one.name for one in table.c if one.name != "finished_at"], finished_at=now())
    columns = {column.name: put_in.excluded[column.name] for column in table.c if not column.primary_key}
    worse = and_(table.c.status == OK, put_in.excluded.status != OK)
    statement: Executable = put_in.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=columns, where=not_(worse)
    )
    return statement


@cache
def _note(sqlite: bool) -> Executable:
    statement: Executable = put(sqlite, logs, ("experiment_id", "level", "category", "detail"), at=now())
    return statement


@cache
def _add_attempts(sqlite: bool) -> Executable:
    """Return a statement that adds attempts; one that is there already stays."""
    statement: Executable = put(sqlite, attempts, [one.name for one in attempts.c]).on_conflict_do_nothing()
    return statement


@cache
def _put_stats(sqlite: bool, end: bool) -> Executable:
    """Return a statement that writes the statistics of a claim over those written before."""
    at = now() if end else literal(NOT_ENDED, run_stats.c.ended_at.type)
    put_in = put(sqlite, run_stats, ("experiment_id", "epoch", "stats"), ended_at=at)
    statement: Executable = put_in.on_conflict_do_update(
        index_elements=list(run_stats.primary_key),
        set_={"stats": put_in.excluded.stats, "ended_at": put_in.excluded.ended_at},
    )
    return statement


@cache
def _prune() -> Executable:
    """Return a statement that removes all but the last lines of an experiment's log."""
    line = logs.alias("line").c
    older = select(line.id).where(line.experiment_id == bindparam("experiment"))
    newest_of_them = older.order_by(line.id.desc()).offset(bindparam("kept", type_=Integer)).limit(1).scalar_subquery()
    return delete(logs).where(logs.c.experiment_id == bindparam("experiment"), logs.c.id <= newest_of_them)


@cache
def _forget(sqlite: bool) -> Executable:
    """Return a statement that removes failures of eval items.

    An evaluator without declared outputs may fail under one name and succeed under another.
    """
    columns = [annotation_rows.c[name] for name in EVAL_ITEM]
    if sqlite:
        return delete(annotation_rows).where(
            *(column == bindparam(f"of_{column.name}") for column in columns), not_ok(annotation_rows)
        )
    return delete(annotation_rows).where(tuple_(*columns).in_(unnested(columns, "of_")), not_ok(annotation_rows))


def _run(result: RunResult) -> Values:
    return {
        "experiment_id": result.experiment_id,
        "ordinal": result.ordinal,
        "repetition": result.repetition,
        "status": result.status,
        "output": result.output,
        "error_kind": cleaned_if_any(result.error_kind),
        "error": cleaned_if_any(result.error),
        "attempts": result.attempts,
        "seconds": result.seconds,
        "epoch": result.epoch,
        "answered_by": _choices(result.answered_by),
    }


def _of_eval(result: AnnotationResult) -> Values:
    return {
        "of_experiment_id": result.experiment_id,
        "of_ordinal": result.ordinal,
        "of_repetition": result.repetition,
        "of_evaluator": shortened(result.evaluator),
    }


def _annotation(result: AnnotationResult, one: Annotation) -> Values:
    return {
        "experiment_id": result.experiment_id,
        "ordinal": result.ordinal,
        "repetition": result.repetition,
        "evaluator": shortened(result.evaluator),
        "output": shortened(one.output),
        "status": one.status,
        "score": one.score,
        "label": cleaned_if_any(one.label),
        "value": one.value,
        "error_kind": cleaned_if_any(one.error_kind),
        "error": cleaned_if_any(one.error),
        "attempts": result.attempts,
        "seconds": result.seconds,
        "epoch": result.epoch,
        "answered_by": _choices(result.answered_by),
    }


def _attempts(kept: Sequence[Result], at: datetime) -> list[Values]:
    """Return the rows of the attempts in a batch; the database's time is `at`."""
    elapsed = time.monotonic()
    return [
        {
            "experiment_id": result.experiment_id,
            "ordinal": result.ordinal,
            "repetition": result.repetition,
            "stage": shortened(one.stage),
            "run_epoch": result.epoch,
            "call_index": one.index,
            "started_at": at - timedelta(seconds=elapsed - one.began_at),
            **{name: getattr(one, name) for name in ATTEMPT_FACTS},
            "kind": cleaned(one.kind),
            "key": cleaned(one.key),
        }
        for result in kept
        if isinstance(result, RunResult | AnnotationResult | ItemAttempts)
        for one in result.audit
    ]


def _stats(result: ClaimStats) -> Values:
    return {"experiment_id": result.experiment_id, "epoch": result.epoch, "stats": encoded(result.stats)}


def _line(line: LogLine) -> Values:
    try:
        detail = encoded(line.detail)
    except NotStorable as error:
        detail = encoded({"type": "not_storable", "error": str(error)})
    return {
        "experiment_id": line.experiment_id,
        "level": line.level,
        "category": line.category,
        "detail": detail,
    }


def _choices(answered_by: tuple[AnsweredBy, ...]) -> str | None:
    """Return the stored form of choices, which an index can hold; None without any."""
    if not answered_by:
        return None
    return encoded([[_cut(text) for text in each] for each in answered_by[:MAX_CHOICES]])


def _cut(text: str) -> str:
    return cleaned(text).encode()[:CHOICE_BYTES].decode(errors="ignore")
