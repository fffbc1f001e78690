"""The chunks of rows that replicas claim of an experiment which several of them run at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0004"
down_revision = "0003"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Instant = sa.String().with_variant(TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tidegate_chunks",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("first", Number, autoincrement=False, nullable=False),
        sa.Column("end", Number, nullable=False),
        sa.Column("epoch", Number, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_at", Instant),
        sa.Column("done", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "first", name="tidegate_chunks_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_chunks_experiment_id_reference",
        ),
        sa.CheckConstraint('"first" < "end"', name=op.f("tidegate_chunks_end_check")),
    )
