"""Option of the commands that read a database of experiments, and the default database."""

from __future__ import annotations

from typing import Annotated

import typer

DATABASE = "tidegate.db"
"""Default database, in the working directory. The first run creates it."""

VARIABLE = "TIDEGATE_DB"

Db = Annotated[
    str,
    typer.Option("--db", envvar=VARIABLE, metavar="URL", help="Use this SQLite file, or postgresql://user@host/name."),
]
