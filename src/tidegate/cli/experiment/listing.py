"""`tidegate experiment list`: every experiment of a database."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from tidegate.cli.experiment.database import existing
from tidegate.cli.experiment.tables import printer, table
from tidegate.core.display import json_line
from tidegate.runner.replica import gone
from tidegate.storage import ExperimentRow, ExperimentSummary, ResultStatus, Status


async def listed(url: str, as_json: bool) -> None:
    """Prints the experiments, the newest first."""
    async with existing(url, to_read=True) as store:
        summaries = await store.list()
    if as_json:
        for each in summaries:
            typer.echo(json_line(facts(each)))
    elif summaries:
        printer().print(_table(summaries))
    else:
        typer.echo("no experiments yet")


def facts(each: ExperimentSummary) -> dict[str, Any]:
    """One experiment as plain values."""
    row = each.experiment
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "runs": {status.value: count for status, count in each.runs.items()},
        "claimed_by": row.claimed_by,
        "last_error": row.last_error,
        "created_at": row.created_on.isoformat(),
    }


def _table(summaries: list[ExperimentSummary]) -> Table:
    numbers = ("answered", "failed", "parked")
    made = table("experiment", "state", *numbers, "made", "why", right=numbers, cut=("state", "made", "why"))
    for each in summaries:
        row = each.experiment
        failed = each.runs.get(ResultStatus.ERROR, 0) + each.runs.get(ResultStatus.INVALID, 0)
        made.add_row(
            Text(row.name),
            row.status.value,
            f"{each.runs.get(ResultStatus.OK, 0)}/{row.rows * row.repetitions}",
            str(failed),
            str(each.runs.get(ResultStatus.PARKED, 0)),
            f"{row.created_on.astimezone():%Y-%m-%d %H:%M}",
            Text(_why(row)),
        )
    return made


def _why(row: ExperimentRow) -> str:
    if row.status is Status.RUNNING and gone(row.claimed_by):
        return "its process is gone: resume goes on"
    return row.last_error or ""
