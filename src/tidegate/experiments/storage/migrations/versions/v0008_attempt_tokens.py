"""The cached and reasoning tokens of kept attempts; those of older attempts are unknown."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("cached_tokens", "reasoning_tokens"):
        op.add_column("tidegate_attempts", sa.Column(name, Number))
