"""Audit: one row of each attempt at an item, and the statistics of each claim."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0002"
down_revision = "0001"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Instant = sa.String().with_variant(TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tidegate_attempts",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("ordinal", Number, autoincrement=False, nullable=False),
        sa.Column("repetition", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("stage", Name, nullable=False),
        sa.Column("run_epoch", Number, autoincrement=False, nullable=False),
        sa.Column("call_index", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("latency", sa.Float, nullable=False),
        sa.Column("waited", sa.Float, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("http_status", sa.Integer),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("retry_after", sa.Float),
        sa.Column("input_tokens", Number),
        sa.Column("output_tokens", Number),
        sa.PrimaryKeyConstraint(
            "experiment_id",
            "ordinal",
            "repetition",
            "stage",
            "run_epoch",
            "call_index",
            name="tidegate_attempts_key",
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_attempts_experiment_id_reference",
        ),
        sa.CheckConstraint(
            "status IN ('success', 'failure', 'capacity_retry')", name=op.f("tidegate_attempts_status_check")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tidegate_run_stats",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("epoch", Number, autoincrement=False, nullable=False),
        sa.Column("ended_at", Instant, nullable=False),
        sa.Column("stats", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "epoch", name="tidegate_run_stats_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_run_stats_experiment_id_reference",
        ),
    )
