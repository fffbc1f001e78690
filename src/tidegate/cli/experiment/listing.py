"""`tidegate experiment list`: every experiment of a database."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tidegate.cli.experiment.database import existing
from tidegate.storage import ExperimentSummary, ResultStatus


async def listed(url: str, as_json: bool) -> None:
    """Prints the experiments, the newest first."""
    async with existing(url) as store:
        summaries = await store.list()
    if as_json:
        for each in summaries:
            typer.echo(json.dumps(facts(each), ensure_ascii=False))
    elif summaries:
        Console(highlight=False).print(_table(summaries))
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
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("experiment", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("answered", "failed", "parked"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("made", no_wrap=True)
    table.add_column("why", overflow="fold")
    for each in summaries:
        row = each.experiment
        failed = each.runs.get(ResultStatus.ERROR, 0) + each.runs.get(ResultStatus.INVALID, 0)
        table.add_row(
            row.name,
            row.status.value,
            f"{each.runs.get(ResultStatus.OK, 0)}/{row.rows * row.repetitions}",
            str(failed),
            str(each.runs.get(ResultStatus.PARKED, 0)),
            f"{row.created_on:%Y-%m-%d %H:%M}",
            row.last_error or "",
        )
    return table
