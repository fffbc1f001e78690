"""`export --attempts`, and what `run` and `show` tell of calls."""

from __future__ import annotations

import csv
import io
import json
import sqlite3

from tests.cli.experiment.commands import Place

SOME_FAIL = """
from tidegate.experiments import Experiment


def answer(row):
    if row["n"] == 1:
        raise ValueError("no")
    return row["n"]


experiment = Experiment("e", "rows.jsonl", answer)
"""


def ran(place: Place, audit: str) -> str:
    """The output of a run of three rows, one of which fails."""
    place.rows(3)
    place.write("my_eval.py", SOME_FAIL)
    done = place.run("run", "my_eval.py", TIDEGATE_EXPERIMENTS_AUDIT=audit)
    assert done.code == 3
    return done.out


def test_attempts_are_exported_as_json_lines(place: Place) -> None:
    out = ran(place, "all")
    assert "all runs: 3 function calls in " in out
    assert "attempts kept: 1 failure, 2 success" in out
    lines = [json.loads(line) for line in place.run("export", "e", "--attempts").out.splitlines()]
    assert [(line["ordinal"], line["stage"], line["status"]) for line in lines] == [
        (0, "task", "success"),
        (1, "task", "failure"),
        (2, "task", "success"),
    ]
    assert lines[1]["cause"] == "ValueError"


def test_attempts_are_exported_as_a_table_to_a_file(place: Place) -> None:
    ran(place, "refusals")
    assert place.run("export", "e", "--attempts", "--output", "attempts.csv").code == 0
    (row,) = csv.DictReader(io.StringIO((place.path / "attempts.csv").read_text()))
    assert (row["ordinal"], row["status"], row["http_status"]) == ("1", "failure", "")


def test_attempts_are_not_exported_as_parquet(place: Place) -> None:
    ran(place, "off")
    refused = place.run("export", "e", "--attempts", "--format", "parquet")
    assert refused.code == 2
    assert "jsonl or csv" in refused.err
    assert place.run("export", "e", "--attempts").out == ""


def test_show_has_the_statistics_and_the_kept_attempts(place: Place) -> None:
    ran(place, "refusals")
    told = json.loads(place.run("show", "e", "--json").out)
    assert (told["stats"]["calls"], told["stats"]["failed"], told["attempts"]) == (3, 1, {"failure": 1})
    (end,) = [line["detail"] for line in told["log"] if line["detail"]["type"] == "ended"]
    assert (end["answered"], end["failed"], end["stats"]["calls"]) == (2, 1, 3)
    shown = place.run("show", "e").out
    assert "all runs: 3 function calls in " in shown
    assert "ended (status COMPLETED, answered 2, failed 1, parked 0, invalid 0, judged 0)" in shown


def test_lists_that_a_version_before_stored_with_the_end_are_not_shown(place: Place) -> None:
    ran(place, "all")
    older = (
        """update tidegate_logs set detail = json_set(detail, '$.answered_by', json('[]'), '$.warnings', json('[]'))"""
    )
    with sqlite3.connect(place.path / "tidegate.db") as database:
        assert database.execute(f"{older} where json_extract(detail, '$.type') = 'ended'").rowcount == 1
    (end,) = (line for line in place.run("show", "e").out.splitlines() if " ended" in line)
    assert "answered_by" not in end
    assert "warnings" not in end
