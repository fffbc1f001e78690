"""Tallies with sums of scores as doubles: those before had integers, and are built from the results when needed."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("DELETE FROM tidegate_tallies")
