"""Options and arguments that the experiment commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

MAX_DIFFERENT = 100
"""Most rows of one output that `compare` lists. Raising it lengthens the report."""

Slots = Annotated[
    int | None,
    typer.Option(
        min=1, max=100_000, help="Execute at most this many functions at once (default: what the keys admit)."
    ),
]
BudgetUsd = Annotated[
    float | None,
    typer.Option("--budget-usd", metavar="USD", help="Start no row that would exceed this cost in all."),
]
BudgetTokens = Annotated[
    int | None,
    typer.Option("--budget-tokens", min=1, metavar="N", help="Start no row that would exceed this many tokens in all."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or number of the experiment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Format(StrEnum):
    """File formats of `export`."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
