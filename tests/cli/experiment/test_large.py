"""Databases with much in them: what is written and shown of them is bounded by a page, not by what there is."""

from __future__ import annotations

import gc
import sqlite3
import tracemalloc
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from tests.cli.experiment.commands import Place
from tests.effort import some

ROWS, BODY = 1_000, 8_000
"""Eight megabytes of rows, and as many of answers."""

PAGE = 10
"""Runs an export reads at once: 160 kilobytes."""

HELD = 3.5e6
"""Bytes that an export may hold: some pages and their texts, less than a quarter of what there is."""

EXPERIMENTS = 1_000

UP_TO = "(WITH RECURSIVE c(x) AS (SELECT {first} UNION ALL SELECT x + 1 FROM c WHERE x < {last}) SELECT x FROM c)"


def multiplied(database: sqlite3.Connection, table: str, column: str, where: str, first: int, last: int) -> None:
    """Copies of a table's rows with every other number in a column."""
    names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    told = ", ".join({column: "x", "name": "'e' || x"}.get(name, name) for name in names)
    numbers = UP_TO.format(first=first, last=last)
    database.execute(f"INSERT INTO {table} SELECT {told} FROM {table} JOIN {numbers} WHERE {where}")


@pytest.fixture
def one(place: Place) -> Place:
    """A database with one answered row of some size."""
    place.write("my_eval.py", "from tidegate.experiments import Experiment\n"
        f"rows = [{{'text': 'x' * {BODY}}}]\n"
        "experiment = Experiment('one', rows, lambda row: row, [lambda row, output: 1])\n")  # fmt: skip
    assert place.run("run", "my_eval.py").code == 0
    return place


@pytest.fixture
def many(one: Place) -> Place:
    """A database with many such rows."""
    with sqlite3.connect(one.path / "tidegate.db") as database:
        for table in ("dataset_rows", "runs", "annotations"):
            multiplied(database, f"tidegate_{table}", "ordinal", "ordinal = 0", 1, ROWS - 1)
        database.execute(f"UPDATE tidegate_datasets SET rows = {ROWS}")
    database.close()
    return one


@pytest.mark.parametrize("form", some(["parquet"], ["jsonl", "csv"]))
def test_an_export_holds_some_pages_and_no_more(many: Place, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.experiments.storage.export_formats.GROUP_ROWS", PAGE)
    monkeypatch.setattr("tidegate.experiments.storage.export_formats.PAGE_RUNS", PAGE)
    # What is loaded once is not of the export.
    assert many.run("export", "one", "--format", form, "--output", "first").code == 0
    # Python's own threshold: the tests collect garbage less often, and it counts here.
    often = gc.get_threshold()
    gc.set_threshold(700, *often[1:])
    tracemalloc.start()
    try:
        assert many.run("export", "one", "--output", f"out.{form}").code == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*often)
    written = Path(f"out.{form}")
    if form != "parquet":
        assert written.stat().st_size > ROWS * BODY * 2
        assert written.read_bytes().count(b"\n") == ROWS + (form == "csv")
    assert peak < HELD < ROWS * BODY


def test_a_thousand_experiments_are_listed_by_a_few_statements(one: Place) -> None:
    with sqlite3.connect(one.path / "tidegate.db") as database:
        multiplied(database, "tidegate_experiments", "id", "id = 1", 2, EXPERIMENTS)
        for table in ("execution_configs", "runs", "tallies"):
            multiplied(database, f"tidegate_{table}", "experiment_id", "experiment_id = 1", 2, EXPERIMENTS)
    database.close()
    asked: list[str] = []

    def told(*words: object) -> None:
        asked.append(str(words[2]))

    event.listen(Engine, "before_cursor_execute", told)
    try:
        done = one.run("show")
    finally:
        event.remove(Engine, "before_cursor_execute", told)
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == EXPERIMENTS + 2
    assert lines[2].split()[:3] == [f"e{EXPERIMENTS}", "COMPLETED", "1/1"]
    assert sum("SELECT" in each and "tidegate" in each for each in asked) < 10
