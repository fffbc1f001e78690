"""The tallies of the stages; those of older experiments are built when they are first needed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tidegate_tallies",
        sa.Column("experiment_id", Number, autoincrement=False, nullable=False),
        sa.Column("stage", Name, nullable=False),
        sa.Column("tally", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "stage", name="tidegate_tallies_key"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["tidegate_experiments.id"],
            ondelete="CASCADE",
            name="tidegate_tallies_experiment_id_reference",
        ),
        sqlite_with_rowid=False,
    )
