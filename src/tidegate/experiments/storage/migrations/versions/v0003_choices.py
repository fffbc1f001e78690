"""The choice of a fallback that gave each result, and the numbers of deleted experiments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0003"
down_revision = "0002"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Instant = sa.String().with_variant(TIMESTAMP(timezone=True), "postgresql")

BY_CHOICE = sa.text("answered_by IS NOT NULL")


def upgrade() -> None:
    for table, columns in (
        ("tidegate_runs", ["experiment_id", "answered_by"]),
        ("tidegate_annotations", ["experiment_id", "evaluator", "answered_by", "ordinal", "repetition"]),
    ):
        op.add_column(table, sa.Column("answered_by", sa.Text))
        op.create_index(f"{table}_answered_by", table, columns, postgresql_where=BY_CHOICE, sqlite_where=BY_CHOICE)
    op.create_table(
        "tidegate_deleted",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("dataset_id", Number, nullable=False),
        sa.Column("deleted_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", name="tidegate_deleted_key"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("tidegate_dataset_rows_digest", "tidegate_dataset_rows", ["digest"])
