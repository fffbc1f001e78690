"""The options and arguments that the commands share, and where experiments are if nobody says where."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DATABASE = "tidegate.db"
"""In the working directory; the first run makes it."""

VARIABLE = "TIDEGATE_DB"

Db = Annotated[
    str,
    typer.Option("--db", envvar=VARIABLE, metavar="URL", help="an SQLite file, or postgresql://user@host/name"),
]
Slots = Annotated[int | None, typer.Option(min=1, max=100_000, help="functions under way at once (default: 20)")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="the experiment's name, or its number")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for programs")]


class Format(StrEnum):
    """The file formats of `export`."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
