"""The reference pages that come from the code as a whole: the command line, and the schema of the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from typer.core import TyperGroup
from typer.main import get_command

from tidegate.cli.main import app
from tidegate.experiments.storage import schema

TABLES = {
    "contents": "Contents of rows, each distinct one once, by its SHA-256.",
    "datasets": "Datasets, with the number of rows that were read so far.",
    "dataset_rows": "Rows of a dataset in their order, with their names.",
    "experiments": "Experiments: name, dataset, code and number of repetitions.",
    "execution_configs": "State of each experiment: its owner, the epoch of its claim, its watermarks.",
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


def cli_reference() -> str:
    """Return a section for each command: usage, description, arguments and options."""
    group = get_command(app)
    return "\n\n".join(_sections(group, typer.Context(group, info_name="tidegate")))


def _sections(command: Any, context: typer.Context) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            yield from _sections(inner, typer.Context(inner, info_name=name, parent=context))
        return
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [
        f"| `{_cell(name)}` | {_cell(' '.join(text.split()))} |"
        for name, text in filter(None, records)
        if name != "--help"
    ]
    parts = [
        f"## {context.command_path}",
        f"    {command.get_usage(context).partition(' ')[2].strip()}",
        (command.help or "").strip(),
        "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) if rows else "",
    ]
    yield "\n\n".join(filter(None, parts))


def schema_reference() -> str:
    """Return a section for each table: its columns with their types in both databases, and its indexes."""
    assert {*TABLES} == {name.removeprefix(schema.PREFIX) for name in schema.metadata.tables}
    return "\n\n".join(_table(table) for table in schema.metadata.sorted_tables)


def _table(table: Table) -> str:
    rows = ["| column | SQLite | PostgreSQL | null | key |", "|---|---|---|---|---|"]
    for column in table.columns:
        types = [column.type.compile(dialect=each) for each in (sqlite.dialect(), postgresql.dialect())]
        keys = ["primary"] if column.primary_key else []
        keys += [f"`{key.target_fullname}`" for key in sorted(column.foreign_keys, key=lambda key: key.target_fullname)]
        null = "yes" if column.nullable else "no"
        rows.append(f"| `{column.name}` | {types[0]} | {types[1]} | {null} | {', '.join(keys)} |")
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    listed = [
        f"- Index `{each.name}` on {', '.join(f'`{column.name}`' for column in each.columns)}" for each in indexes
    ]
    name = table.name.removeprefix(schema.PREFIX)
    return "\n\n".join([f"## `{table.name}`", TABLES[name], "\n".join(rows), *filter(None, ["\n".join(listed)])])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
