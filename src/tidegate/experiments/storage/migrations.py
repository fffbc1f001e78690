"""Migrations of the schema, the oldest first. What one does is never changed: databases may be between any two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects.postgresql import TIMESTAMP

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Instant = sa.String().with_variant(TIMESTAMP(timezone=True), "postgresql")

RESULT = "status IN ('ok', 'error', 'parked', 'invalid')"
TOKENS = (
    "metered",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "priced",
    "nanodollars",
)


def _first_schema(op: Operations) -> None:
    """Experiments, their rows, results, claims and logs."""
    _datasets(op)
    _experiments(op)
    _results(op)
    _table(
        op,
        "logs",
        ["id"],
        *_needed(id=Number, experiment_id=Number, at=Instant, level=sa.Text, category=sa.Text, detail=sa.Text),
        _of_experiment("logs"),
        _check(op, "logs", "category", "category IN ('TASK', 'EVAL', 'EXPERIMENT')"),
    )
    op.create_index("tidegate_logs_experiment", "tidegate_logs", ["experiment_id", "id"])


def _datasets(op: Operations) -> None:
    _table(
        op,
        "contents",
        ["digest"],
        *_needed(digest=sa.LargeBinary, body=sa.Text),
    )
    _table(
        op,
        "datasets",
        ["id"],
        *_needed(id=Number, source=sa.Text, rows=Number, complete=sa.Boolean, created_at=Instant),
    )
    _table(
        op,
        "dataset_rows",
        ["dataset_id", "ordinal"],
        *_needed(dataset_id=Number, ordinal=Number, name=Name),
        *_optional(digest=sa.LargeBinary, invalid=sa.Text, line=Number),
        sa.UniqueConstraint("dataset_id", "name", name="tidegate_dataset_rows_dataset_id_name_unique"),
        _reference("dataset_rows", ["dataset_id"], "datasets", ["id"], ondelete="CASCADE"),
        _reference("dataset_rows", ["digest"], "contents", ["digest"]),
        _check(op, "dataset_rows", "content", "(digest IS NULL) = (invalid IS NOT NULL)"),
        sqlite_with_rowid=False,
    )


def _experiments(op: Operations) -> None:
    _table(
        op,
        "experiments",
        ["id"],
        *_needed(id=Number, name=Name, dataset_id=Number, repetitions=sa.Integer, spec=sa.Text, created_at=Instant),
        sa.UniqueConstraint("name", name="tidegate_experiments_name_unique"),
        _reference("experiments", ["dataset_id"], "datasets", ["id"]),
        _check(op, "experiments", "repetitions", "repetitions >= 1"),
    )
    states = "status IN ('READY', 'RUNNING', 'COMPLETED', 'STOPPED', 'ERROR', 'BLOCKED')"
    _table(
        op,
        "execution_configs",
        ["experiment_id"],
        *_keys(experiment_id=Number),
        *_needed(status=sa.Text),
        *_optional(claimed_at=Instant, claimed_by=sa.Text),
        *_needed(epoch=Number),
        *_optional(cooldown_until=Instant, last_error=sa.Text),
        *_needed(low_water=Number, task_water=Number, created_at=Instant),
        _of_experiment("execution_configs"),
        _check(op, "execution_configs", "status", states),
        *(
            _check(op, "execution_configs", name, f"(status = 'RUNNING') = ({name} IS NOT NULL)")
            for name in ("claimed_by", "claimed_at")
        ),
    )
    _partial_index(op, "execution_configs", "running", ["claimed_at"], "status = 'RUNNING'")


def _results(op: Operations) -> None:
    item = ["experiment_id", "ordinal", "repetition"]
    _table(
        op,
        "runs",
        item,
        *_needed(experiment_id=Number, ordinal=Number, repetition=sa.Integer, status=sa.Text),
        *_optional(output=sa.Text),
        *_ended(),
        _of_experiment("runs"),
        _check(op, "runs", "status", RESULT),
    )
    _table(
        op,
        "annotations",
        [*item, "evaluator", "output"],
        *_needed(
            experiment_id=Number, ordinal=Number, repetition=sa.Integer, evaluator=Name, output=Name, status=sa.Text
        ),
        *_optional(score=sa.Float, label=sa.Text, value=sa.Text),
        *_ended(),
        _reference("annotations", item, "runs", item, ondelete="CASCADE"),
        _check(op, "annotations", "status", RESULT),
        _check(op, "annotations", "score", "status = 'ok' OR score IS NULL"),
        sqlite_with_rowid=False,
    )
    for table, columns in (("runs", [*item, "status"]), ("annotations", [*item, "evaluator", "status"])):
        _partial_index(op, table, "not_ok", columns, "status <> 'ok'")


def _ended() -> list[sa.Column[Any]]:
    return [
        *_optional(error_kind=sa.Text, error=sa.Text),
        *_needed(attempts=sa.Integer, seconds=sa.Float, epoch=Number, finished_at=Instant),
    ]


def _attempts(op: Operations) -> None:
    """Audit: one row of each attempt at an item, and the statistics of each claim."""
    _table(
        op,
        "attempts",
        ["experiment_id", "ordinal", "repetition", "stage", "run_epoch", "call_index"],
        *_item_of_claim(),
        *_keys(call_index=sa.Integer),
        *_needed(started_at=Instant, latency=sa.Float, waited=sa.Float, status=sa.Text, kind=sa.Text, cause=sa.Text),
        *_optional(http_status=sa.Integer),
        *_needed(key=sa.Text),
        *_optional(retry_after=sa.Float, input_tokens=Number, output_tokens=Number),
        _of_experiment("attempts"),
        _check(op, "attempts", "status", "status IN ('success', 'failure', 'capacity_retry')"),
        sqlite_with_rowid=False,
    )
    _table(
        op,
        "run_stats",
        ["experiment_id", "epoch"],
        *_keys(experiment_id=Number, epoch=Number),
        *_needed(ended_at=Instant, stats=sa.Text),
        _of_experiment("run_stats"),
    )


def _choices(op: Operations) -> None:
    """The choice of a fallback that gave each result, and the numbers of deleted experiments."""
    for table, columns in (
        ("runs", ["experiment_id", "answered_by"]),
        ("annotations", ["experiment_id", "evaluator", "answered_by", "ordinal", "repetition"]),
    ):
        op.add_column(f"tidegate_{table}", sa.Column("answered_by", sa.Text))
        _partial_index(op, table, "answered_by", columns, "answered_by IS NOT NULL")
    _table(
        op,
        "deleted",
        ["experiment_id"],
        *_keys(experiment_id=Number),
        *_needed(dataset_id=Number, deleted_at=Instant),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("tidegate_dataset_rows_digest", "tidegate_dataset_rows", ["digest"])


def _chunks(op: Operations) -> None:
    """The chunks of rows that replicas claim of an experiment which several of them run at once."""
    _table(
        op,
        "chunks",
        ["experiment_id", "first"],
        *_keys(experiment_id=Number, first=Number),
        *_needed(end=Number, epoch=Number),
        *_optional(claimed_by=sa.Text, claimed_at=Instant),
        *_needed(done=sa.Boolean),
        _of_experiment("chunks"),
        _check(op, "chunks", "end", '"first" < "end"'),
    )


def _tallies(op: Operations) -> None:
    """The tallies of the stages; those of older experiments are built when they are first needed."""
    _table(
        op,
        "tallies",
        ["experiment_id", "stage"],
        *_keys(experiment_id=Number),
        *_needed(stage=Name, tally=sa.Text),
        _of_experiment("tallies"),
        sqlite_with_rowid=False,
    )


def _usages(op: Operations) -> None:
    """The tokens and costs of items, and their sums by stage."""
    _table(
        op,
        "usages",
        ["experiment_id", "ordinal", "repetition", "stage", "run_epoch"],
        *_item_of_claim(),
        *_needed(**dict.fromkeys(TOKENS, Number)),
        *_optional(model=sa.Text, finish_reason=sa.Text, request_id=sa.Text),
        *_needed(waited=sa.Float),
        _of_experiment("usages"),
        sqlite_with_rowid=False,
    )
    _table(
        op,
        "spend",
        ["experiment_id", "stage"],
        *_keys(experiment_id=Number),
        *_needed(stage=Name),
        *_needed(**dict.fromkeys(TOKENS, Number)),
        _of_experiment("spend"),
        sqlite_with_rowid=False,
    )


def _batches(op: Operations) -> None:
    """The batches that a provider's Batch API answers, with the rows of each."""
    _table(
        op,
        "batches",
        ["experiment_id", "number"],
        *_keys(experiment_id=Number, number=Number),
        *_needed(
            provider=sa.Text, state=sa.Text, tag=sa.Text, items=sa.Text, count=Number, epoch=Number, created_at=Instant
        ),
        *_optional(file_id=sa.Text, provider_id=sa.Text, detail=sa.Text),
        _of_experiment("batches"),
        _check(op, "batches", "state", "state IN ('intent', 'submitted', 'ended', 'fetched')"),
    )


def _attempt_tokens(op: Operations) -> None:
    """The cached and reasoning tokens of kept attempts; those of older attempts are unknown."""
    for name in ("cached_tokens", "reasoning_tokens"):
        op.add_column("tidegate_attempts", sa.Column(name, Number))


def _score_sums(op: Operations) -> None:
    """Tallies with sums of scores as doubles: those before had integers, and are built from the results when needed."""
    op.execute("DELETE FROM tidegate_tallies")


MIGRATIONS: dict[str, Callable[[Operations], None]] = {
    "0001": _first_schema,
    "0002": _attempts,
    "0003": _choices,
    "0004": _chunks,
    "0005": _tallies,
    "0006": _usages,
    "0007": _batches,
    "0008": _attempt_tokens,
    "0009": _score_sums,
}
"""Migrations by the version that each one leads to."""


def _table(op: Operations, name: str, key: list[str], *parts: Any, **options: Any) -> None:
    columns = [part for part in parts if isinstance(part, sa.Column)]
    primary = sa.PrimaryKeyConstraint(*key, name=f"tidegate_{name}_key")
    op.create_table(f"tidegate_{name}", *columns, primary, *parts[len(columns) :], **options)


def _needed(**kinds: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _optional(**kinds: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name, kind in kinds.items()]


def _keys(**kinds: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False, autoincrement=False) for name, kind in kinds.items()]


def _item_of_claim() -> list[sa.Column[Any]]:
    item = _keys(experiment_id=Number, ordinal=Number, repetition=sa.Integer)
    return [*item, *_needed(stage=Name), *_keys(run_epoch=Number)]


def _reference(
    table: str, columns: list[str], other: str, keys: list[str], ondelete: str | None = None
) -> sa.ForeignKeyConstraint:
    name = f"tidegate_{table}_{'_'.join(columns)}_reference"
    return sa.ForeignKeyConstraint(columns, [f"tidegate_{other}.{key}" for key in keys], ondelete=ondelete, name=name)


def _of_experiment(table: str) -> sa.ForeignKeyConstraint:
    return _reference(table, ["experiment_id"], "experiments", ["id"], ondelete="CASCADE")


def _check(op: Operations, table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"tidegate_{table}_{name}_check"))


def _partial_index(op: Operations, table: str, name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(
        f"tidegate_{table}_{name}", f"tidegate_{table}", columns, postgresql_where=where, sqlite_where=where
    )
