"""The reference pages that come from the code as a whole: the command line, and the schema of the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from sqlalchemy import Table
from sqlalchemy.dialects import postgresql
from typer.core import TyperGroup
from typer.main import get_command

from tidegate.cli.commands import app
from tidegate.experiments.storage import schema

TABLES = {
    "contents": "Contents of rows, each distinct one once, by its SHA-256.",
    "datasets": "Datasets, with the number of rows that were read so far.",
    "dataset_rows": "Rows of a dataset in their order, with their names.",
    "experiments": "Experiments: name, dataset, code and number of repetitions.",
    "execution_configs": "State of each experiment: its owner, and the epoch of its claim.",
    "runs": "Answers of the task: one row for each row of the dataset and repetition.",
    "annotations": "Judgements: one row for each answer, evaluator and output.",
    "logs": "Log lines of an experiment.",
    "attempts": "Attempts that an audit keeps.",
    "run_stats": "Sums of each claim: calls, refusals, tokens, latency.",
    "usages": "Tokens and costs of items, one row for each claim.",
    "spend": "Sums of tokens and costs by stage.",
    "tallies": "Counts, sums and histograms of each stage, which the page reads.",
    "batches": "Batches at a provider's Batch API, and their state.",
    "chunks": "Ranges of rows that the replicas of a spread experiment claim.",
    "deleted": "Numbers of deleted experiments, which are not used again.",
}
"""A sentence for each table of the schema, without the prefix."""


TYPES = {
    "BIGINT": "integer",
    "INTEGER": "integer",
    "BOOLEAN": "boolean",
    "FLOAT": "float",
    "TEXT": "text",
    "BYTEA": "bytes",
    "TIMESTAMP WITH TIME ZONE": "time",
}
"""Word for each type of PostgreSQL; SQLite has the same, but times as text."""

TYPE = re.compile(r" <(?:str|path|int|int range|float)>")
"""Types that the text of an option shows too."""

COMMON = ("--help", "--db URL")
"""Options that the page explains once."""


def cli_reference() -> str:
    """Return a section for each command: description, arguments and options."""
    group = get_command(app)
    return "\n\n".join(_sections(group, typer.Context(group, info_name="tidegate")))


def _sections(command: Any, context: typer.Context) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            yield from _sections(inner, typer.Context(inner, info_name=name, parent=context))
        return
    records = [each.get_help_record(context) for each in command.get_params(context)]
    listed = [
        f"- `{TYPE.sub('', name)}`: {' '.join(text.split())}"
        for name, text in filter(None, records)
        if name not in COMMON
    ]
    parts = [
        f"## {context.command_path}",
        (command.help or "").strip(),
        "\n".join(listed),
    ]
    yield "\n\n".join(filter(None, parts))


def schema_reference() -> str:
    """Return a section for each table: its keys, its columns with their types in PostgreSQL, and its indexes."""
    assert {*TABLES} == {name.removeprefix(schema.PREFIX) for name in schema.metadata.tables}
    return "\n\n".join(_table(table) for table in schema.metadata.sorted_tables)


def _table(table: Table) -> str:
    lines = []
    for column in table.columns:
        words = [TYPES[column.type.compile(dialect=postgresql.dialect()).partition(" COLLATE")[0]]]
        words += ["or null"] * bool(column.nullable)
        words += [
            f"of `{key.target_fullname}`" for key in sorted(column.foreign_keys, key=lambda key: key.target_fullname)
        ]
        lines.append((column.primary_key, f"`{column.name}` {' '.join(words)}"))
    listed = [
        f"- {name}: {', '.join(text for primary, text in lines if primary is kind)}"
        for name, kind in (("Primary key", True), ("Columns", False))
        if any(primary is kind for primary, _ in lines)
    ]
    name = table.name.removeprefix(schema.PREFIX)
    return "\n\n".join([f"## `{table.name}`", TABLES[name], "\n".join(listed)])
