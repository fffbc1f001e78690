"""The tokens and costs of items, and their sums by stage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

COUNTS = (
    "metered",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "priced",
    "nanodollars",
)


def upgrade() -> None:
    op.create_table(
        "tidegate_usages",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("ordinal", Number, autoincrement=False, nullable=False),
        sa.Column("repetition", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("stage", Name, nullable=False),
        sa.Column("run_epoch", Number, autoincrement=False, nullable=False),
        *(sa.Column(name, Number, nullable=False) for name in COUNTS),
        sa.Column("model", sa.Text),
        sa.Column("finish_reason", sa.Text),
        sa.Column("request_id", sa.Text),
        sa.Column("waited", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint(
            "experiment_id", "ordinal", "repetition", "stage", "run_epoch", name="tidegate_usages_key"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_usages_experiment_id_reference",
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tidegate_spend",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("stage", Name, nullable=False),
        *(sa.Column(name, Number, nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("experiment_id", "stage", name="tidegate_spend_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_spend_experiment_id_reference",
        ),
        sqlite_with_rowid=False,
    )
