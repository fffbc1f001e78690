"""Alembic's entry point: migrate over the given connection, in its open transaction."""

from __future__ import annotations

from alembic import context

from tidegate.experiments.storage.migrate import VERSION_TABLE
from tidegate.experiments.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
