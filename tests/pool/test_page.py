"""The example of docs/pool.md runs, and its table names every argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import tidegate

PAGE = (Path(__file__).parents[2] / "docs" / "pool.md").read_text()


def names_of(table: str) -> list[str]:
    """The names in the first column of the table with this head."""
    [rows] = re.findall(rf"^\| {table} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_a_table_names_every_statistic() -> None:
    assert {*names_of("statistic")} == {*(each.name for each in fields(tidegate.PoolStats)), "unended"}


def test_the_table_names_every_argument_of_both_functions() -> None:
    named = names_of("argument")
    for function in (tidegate.map, tidegate.amap):
        assert named == [*inspect.signature(function).parameters][2:]
