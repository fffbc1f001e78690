"""The batches that a provider's Batch API answers, with the rows of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tidegate.experiments.storage.sql_clock import Instant

revision = "0007"
down_revision = "0006"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tidegate_batches",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("number", Number, autoincrement=False, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("items", sa.Text, nullable=False),
        sa.Column("count", Number, nullable=False),
        sa.Column("epoch", Number, nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("file_id", sa.Text),
        sa.Column("provider_id", sa.Text),
        sa.Column("detail", sa.Text),
        sa.PrimaryKeyConstraint("experiment_id", "number", name="tidegate_batches_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_batches_experiment_id_reference",
        ),
        sa.CheckConstraint("state IN ('intent', 'submitted', 'ended', 'fetched')", name="tidegate_batches_state_check"),
    )
