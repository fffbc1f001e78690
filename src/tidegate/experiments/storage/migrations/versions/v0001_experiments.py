"""The first schema: experiments, their rows, results, claims and logs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0001"
down_revision = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Instant = sa.String().with_variant(TIMESTAMP(timezone=True), "postgresql")

RESULT = "status IN ('ok', 'error', 'parked', 'invalid')"
NOT_OK = sa.text("status <> 'ok'")
RUNNING = sa.text("status = 'RUNNING'")


def upgrade() -> None:
    _datasets()
    _experiments()
    _results()
    _logs()


def _datasets() -> None:
    op.create_table(
        "tidegate_contents",
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="tidegate_contents_key"),
    )
    op.create_table(
        "tidegate_datasets",
        sa.Column("id", Number, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("rows", Number, nullable=False),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="tidegate_datasets_key"),
    )
    op.create_table(
        "tidegate_dataset_rows",
        sa.Column("dataset_id", Number, nullable=False),
        sa.Column("ordinal", Number, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("digest", sa.LargeBinary),
        sa.Column("invalid", sa.Text),
        sa.Column("line", Number),
        sa.PrimaryKeyConstraint("dataset_id", "ordinal", name="tidegate_dataset_rows_key"),
        sa.UniqueConstraint("dataset_id", "name", name="tidegate_dataset_rows_dataset_id_name_unique"),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["tidegate_datasets.id"],
            ondelete="CASCADE",
            name="tidegate_dataset_rows_dataset_id_reference",
        ),
        sa.ForeignKeyConstraint(
            ["digest"], ["tidegate_contents.digest"], name="tidegate_dataset_rows_digest_reference"
        ),
        sa.CheckConstraint(
            "(digest IS NULL) = (invalid IS NOT NULL)", name=op.f("tidegate_dataset_rows_content_check")
        ),
        sqlite_with_rowid=False,
    )


def _experiments() -> None:
    op.create_table(
        "tidegate_experiments",
        sa.Column("id", Number, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("dataset_id", Number, nullable=False),
        sa.Column("repetitions", sa.Integer, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="tidegate_experiments_key"),
        sa.UniqueConstraint("name", name="tidegate_experiments_name_unique"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["tidegate_datasets.id"], name="tidegate_experiments_dataset_id_reference"
        ),
        sa.CheckConstraint("repetitions >= 1", name=op.f("tidegate_experiments_repetitions_check")),
    )
    op.create_table(
        "tidegate_execution_configs",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("claimed_at", Instant),
        sa.Column("claimed_by", sa.Text),
        sa.Column("epoch", Number, nullable=False),
        sa.Column("cooldown_until", Instant),
        sa.Column("last_error", sa.Text),
        sa.Column("low_water", Number, nullable=False),
        sa.Column("task_water", Number, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", name="tidegate_execution_configs_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_execution_configs_experiment_id_reference",
        ),
        sa.CheckConstraint(
            "status IN ('READY', 'RUNNING', 'COMPLETED', 'STOPPED', 'ERROR', 'BLOCKED')",
            name=op.f("tidegate_execution_configs_status_check"),
        ),
        sa.CheckConstraint(
            "(status = 'RUNNING') = (claimed_by IS NOT NULL)", name=op.f("tidegate_execution_configs_claimed_by_check")
        ),
        sa.CheckConstraint(
            "(status = 'RUNNING') = (claimed_at IS NOT NULL)", name=op.f("tidegate_execution_configs_claimed_at_check")
        ),
    )
    op.create_index(
        "tidegate_execution_configs_running",
        "tidegate_execution_configs",
        ["claimed_at"],
        postgresql_where=RUNNING,
        sqlite_where=RUNNING,
    )


def _results() -> None:
    op.create_table(
        "tidegate_runs",
        sa.Column("experiment_id", Number, nullable=False),
        sa.Column("ordinal", Number, nullable=False),
        sa.Column("repetition", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("output", sa.Text),
        *_ended(),
        sa.PrimaryKeyConstraint("experiment_id", "ordinal", "repetition", name="tidegate_runs_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_runs_experiment_id_reference",
        ),
        sa.CheckConstraint(RESULT, name=op.f("tidegate_runs_status_check")),
    )
    op.create_table(
        "tidegate_annotations",
        sa.Column("experiment_id", Number, nullable=False),
        sa.Column("ordinal", Number, nullable=False),
        sa.Column("repetition", sa.Integer, nullable=False),
        sa.Column("evaluator", Name, nullable=False),
        sa.Column("output", Name, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("label", sa.Text),
        sa.Column("value", sa.Text),
        *_ended(),
        sa.PrimaryKeyConstraint(
            "experiment_id", "ordinal", "repetition", "evaluator", "output", name="tidegate_annotations_key"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id", "ordinal", "repetition"],
            ["tidegate_runs.experiment_id", "tidegate_runs.ordinal", "tidegate_runs.repetition"],
            ondelete="CASCADE",
            name="tidegate_annotations_experiment_id_ordinal_repetition_reference",
        ),
        sa.CheckConstraint(RESULT, name=op.f("tidegate_annotations_status_check")),
        sa.CheckConstraint("status = 'ok' OR score IS NULL", name=op.f("tidegate_annotations_score_check")),
        sqlite_with_rowid=False,
    )
    for table, columns in (
        ("tidegate_runs", ["experiment_id", "ordinal", "repetition", "status"]),
        ("tidegate_annotations", ["experiment_id", "ordinal", "repetition", "evaluator", "status"]),
    ):
        op.create_index(f"{table}_not_ok", table, columns, postgresql_where=NOT_OK, sqlite_where=NOT_OK)


def _logs() -> None:
    op.create_table(
        "tidegate_logs",
        sa.Column("id", Number, nullable=False),
        sa.Column("experiment_id", Number, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="tidegate_logs_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_logs_experiment_id_reference",
        ),
        sa.CheckConstraint("category IN ('TASK', 'EVAL', 'EXPERIMENT')", name=op.f("tidegate_logs_category_check")),
    )
    op.create_index("tidegate_logs_experiment", "tidegate_logs", ["experiment_id", "id"])


def _ended() -> list[sa.Column[object]]:
    return [
        sa.Column("error_kind", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("epoch", Number, nullable=False),
        sa.Column("finished_at", Instant, nullable=False),
    ]
