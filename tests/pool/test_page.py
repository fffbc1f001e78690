"""The example of docs/pool.md runs, and its table names every argument."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import tidegate
from tidegate.testing import Limit, Scenario, SimulatorProcess

PAGE = (Path(__file__).parents[2] / "docs" / "pool.md").read_text()


def test_the_example_gets_every_answer_at_a_limit_that_binds() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    with SimulatorProcess(Scenario(limiters=(Limit(limit=40, window=1.0),))) as provider:
        env = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any", "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", example], env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "60 answers\n"
        assert provider.truth().total.answered == 120


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
