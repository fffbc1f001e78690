"""`tidegate experiment export` and `show`: what is in the database, whole, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.cli.experiment.commands import Place
from tests.cli.running import environ
from tidegate.errors import StoreError
from tidegate.experiments.commands import export
from tidegate.experiments.engine.replica import replica_name
from tidegate.experiments.storage import StoredRun

MIXED = """
from tidegate.experiments import Evaluator, Experiment


def answer(row):
    if row["id"] == "c":
        raise ValueError("no")
    return row["text"] if row["id"] != "b" else {"nested": [1, None]}


def scored(row, output):
    return 0.5


def named(row, output):
    if row["id"] == "b":
        raise ValueError("cannot judge")
    return {"tone": "warm", "why": ["a", "list"]}


experiment = Experiment("mixed", "rows.jsonl", answer, [scored, Evaluator(named, outputs=["tone", "why"])])
"""
ROWS = [
    {"id": "a", "text": 'umlaut ü, "quotes", a\nline'},
    {"id": "b", "text": "=1+1"},
    {"id": "c", "text": ""},
]


@pytest.fixture
def mixed(place: Place) -> Place:
    """A database with answers and failures of every form."""
    place.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    place.write("my_eval.py", MIXED)
    assert place.run("run", "my_eval.py").code == 3
    return place


def test_jsonl_has_every_run_with_its_row_and_its_judgements(mixed: Place) -> None:
    done = mixed.run("export", "mixed")
    assert done.code == 0
    first, second, third = (json.loads(line) for line in done.out.splitlines())
    assert (first["id"], first["row"], first["output"]) == ("a", ROWS[0], ROWS[0]["text"])
    assert first["evaluations"] == {
        "named": {"tone": {"status": "ok", "label": "warm"}, "why": {"status": "ok", "value": ["a", "list"]}},
        "scored": {"scored": {"status": "ok", "score": 0.5}},
    }
    assert second["output"] == {"nested": [1, None]}
    failed = second["evaluations"]["named"]["tone"]
    assert (failed["status"], failed["error_kind"], "score" in failed) == ("error", "ValueError", False)
    assert (third["status"], third["output"], third["evaluations"]) == ("error", None, {})
    assert third["error"] == "ValueError: no (my_eval.py:7)"
    assert datetime.fromisoformat(first["finished_at"]).tzinfo is not None


def test_csv_has_a_column_for_each_field_of_a_row_and_each_part_of_an_output(mixed: Place) -> None:
    done = mixed.run("export", "mixed", "--format", "csv", "--output", "out.csv")
    assert (done.code, done.out) == (0, "")
    with (mixed.path / "out.csv").open(encoding="utf-8", newline="") as file:
        first, second, third = csv.DictReader(file)
    assert (first["id"], first["row.id"], first["row.text"], first["row"]) == ("a", "a", ROWS[0]["text"], "")
    assert first["output"] == ROWS[0]["text"]
    assert (first["scored.score"], first["named.tone.label"]) == ("0.5", "warm")
    assert json.loads(first["named.why.value"]) == ["a", "list"]
    assert (second["row.text"], second["row"]) == ("'=1+1", "")
    assert (second["output"], second["named.tone.error"]) == (
        '{"nested": [1, null]}',
        "ValueError: cannot judge (my_eval.py:17)",
    )
    assert (third["status"], third["scored.score"]) == ("error", "")
    assert [name for name in first if name.startswith(("scored", "named"))] == [
        *("named.tone.label", "named.tone.error", "named.why.value", "named.why.error"),
        *("scored.score", "scored.error"),
    ]


UNLIKE = """
from tidegate.experiments import Experiment

rows = [{"score": 1, "a": "x"}, {"score": [2], "b": 3}, "text", None]
experiment = Experiment("unlike", rows, lambda row: "", [lambda row, output: None])
"""


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_table_keeps_what_the_first_row_does_not_foretell(place: Place, form: str) -> None:
    place.write("my_eval.py", UNLIKE)
    assert place.run("run", "my_eval.py").code == 3
    assert place.run("export", "unlike", "--output", f"out.{form}").code == 0
    path = place.path / f"out.{form}"
    if form == "csv":
        found = list(csv.DictReader(path.read_text().splitlines()))
    else:
        found = pyarrow.parquet.read_table(path).to_pylist()
    seen = [[row[name] or None for name in ("row.score", "row.a", "row")] for row in found]
    assert seen == [["1", "x", None], ["[2]", None, '{"b": 3}'], [None, None, "text"], [None, None, None]]
    # While no result is known, any part may come.
    assert [name.rpartition(".")[2] for name in found[0]][-4:] == ["score", "label", "value", "error"]


def test_parquet_has_the_same_table_with_types(mixed: Place) -> None:
    assert mixed.run("export", "mixed", "--output", "out.parquet").code == 0
    table = pyarrow.parquet.read_table(mixed.path / "out.parquet")
    assert table.column("scored.score").to_pylist() == [0.5, 0.5, None]
    assert table.column("named.tone.label").to_pylist() == ["warm", None, None]
    assert table.column("repetition").to_pylist() == [1, 1, 1]
    finished: Any = table.column("finished_at").to_pylist()[0]
    assert finished.tzinfo is not None
    assert abs((datetime.now(UTC) - finished).total_seconds()) < 86_400


ALIKE = """
from tidegate.experiments import Evaluator, Experiment


def judge(row, output):
    return {"tone": 1, "tone#2": 2}


def other(row, output):
    return 3


experiment = Experiment("alike", [{"n": 1}], lambda row: "", [Evaluator(other, name="judge.tone"), judge])
"""


def test_outputs_that_would_be_called_alike_have_columns_of_their_own(place: Place) -> None:
    place.write("my_eval.py", ALIKE)
    assert place.run("run", "my_eval.py").code == 0
    (only,) = csv.DictReader(place.run("export", "alike", "--format", "csv").out.splitlines())
    assert place.run("export", "alike", "--output", "out.parquet").code == 0
    (same,) = pyarrow.parquet.read_table(place.path / "out.parquet").to_pylist()
    for row in (only, same):
        scores = {name: float(value) for name, value in row.items() if name.endswith(".score")}
        assert scores == {"judge.tone.score": 1.0, "judge.tone#2.score": 2.0, "judge.tone#3.score": 3.0}
        assert len(row) == 10 + 1 + 3 * 2


def test_what_the_file_is_called_says_its_format(mixed: Place) -> None:
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        assert mixed.run("export", "mixed", "--output", name).code == 0
    assert (mixed.path / "out.jsonl").read_text().startswith('{"id": "a"')
    assert (mixed.path / "out.csv").read_text().startswith("id,repetition,row")
    assert (mixed.path / "out.parquet").read_bytes().startswith(b"PAR1")
    done = mixed.run("export", "mixed", "--output", "out.xlsx")
    assert (done.code, "its suffix is not .jsonl, .csv, .parquet" in done.complaint) == (2, True)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_pages_of_any_size_come_to_the_same_export(mixed: Place, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed.run("export", "mixed", "--format", form, "--output", "whole")
    monkeypatch.setattr("tidegate.experiments.storage.export_formats.PAGE_RUNS", 1)
    mixed.run("export", "mixed", "--format", form, "--output", "paged")
    assert (mixed.path / "paged").read_bytes() == (mixed.path / "whole").read_bytes()


def test_without_pyarrow_parquet_is_refused_and_says_what_to_do(mixed: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = mixed.run("export", "mixed", "--output", "out.parquet")
    assert done.code == 2
    assert "pyarrow is not installed; run: pip install pyarrow, or choose jsonl or csv" in done.complaint
    assert not (mixed.path / "out.parquet").exists()


def test_a_file_that_cannot_be_written_is_one_clear_line(mixed: Place) -> None:
    done = mixed.run("export", "mixed", "--output", "no/such/folder/out.csv")
    assert (done.code, "failed: " in done.complaint) == (1, True)


def test_an_export_that_breaks_off_leaves_the_file_before_as_it_was(
    mixed: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mixed.path / "out.csv").write_text("before")

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidegate.experiments.storage.export_formats._cells", broken)
    with pytest.raises(ZeroDivisionError):
        mixed.run("export", "mixed", "--output", "out.csv")
    assert (mixed.path / "out.csv").read_text() == "before"
    assert [path.name for path in mixed.path.glob(".out*")] == []


def test_what_breaks_off_on_a_pipe_is_no_parquet_file(mixed: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read = export.pages

    async def breaking(*words: object) -> AsyncIterator[list[StoredRun]]:
        async for page in read(*words):  # type: ignore[arg-type]
            yield page
        raise StoreError("the database went away")

    monkeypatch.setattr(export, "pages", breaking)
    done = mixed.run("export", "mixed", "--format", "parquet")
    assert (done.code, done.complaint) == (1, "tidegate: the database went away")
    assert done.out == "PAR1", "the head of a file without its end"


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_text_that_utf_8_has_no_bytes_for_is_written_as_an_escape(place: Place, form: str) -> None:
    place.write(
        "my_eval.py",
        "from tidegate.experiments import Experiment\n"
        "experiment = Experiment('odd', [{'n': 1}], lambda row: 'half \\ud800 a pair')\n",
    )
    assert place.run("run", "my_eval.py").code == 0
    assert place.run("export", "odd", "--output", f"out.{form}").code == 0
    if form == "parquet":
        assert pyarrow.parquet.read_table("out.parquet")["output"].to_pylist() == ["half \\ud800 a pair"]
    else:
        assert "half \\ud800 a pair" in (place.path / f"out.{form}").read_text()


RISKY = """
from tidegate.experiments import Experiment

ANSWERS = [
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\\ttab", "\\rreturn", "'=quoted", "'plain", "-1.5", "+2e3", "-", "a\\0b", "",
    -7, [1], None, "\\n=1+1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x",
]
experiment = Experiment("risky", [{"id": f"={n}", "n": n} for n in range(len(ANSWERS))], lambda row: ANSWERS[row["n"]])
"""


def test_csv_cell_that_a_spreadsheet_would_run_is_quoted_and_reversible(place: Place) -> None:
    """Numbers stay numbers; the quotation mark is taken off again by one rule."""
    place.write("my_eval.py", RISKY)
    assert place.run("run", "my_eval.py").code == 0
    assert place.run("export", "risky", "--output", "out.csv").code == 0
    with (place.path / "out.csv").open(encoding="utf-8", newline="") as file:
        cells = [row["output"] for row in csv.DictReader(file)]
    assert cells == [
        "'=1+1", "'+1+1", "'-1+1", "'@SUM(A1)", "'\ttab", "'\rreturn", "''=quoted", "'plain", "-1.5", "+2e3", "'-",
        "a\\x00b", "", "-7", "[1]", "", "'\n=1+1", "'\uff1d1", "'\uff0b1", "'\uff0d1", "'\uff20x",
    ]  # fmt: skip
    back = [re.sub(r"^'(?='*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])", "", cell) for cell in cells]
    assert back[:11] == [
        "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\ttab", "\rreturn", "'=quoted", "'plain", "-1.5", "+2e3", "-",
    ]  # fmt: skip
    assert place.run("export", "risky", "--output", "out.jsonl").code == 0
    with (place.path / "out.jsonl").open(encoding="utf-8") as file:
        assert json.loads(file.readline())["output"] == "=1+1"


QUALITY = """
from tidegate.experiments import Experiment


def quality(row, output):
    if row["n"] == 1:
        raise ValueError("cannot judge")
    return {"score": 0.5, "label": "fair"}


experiment = Experiment("judged", [{"n": n} for n in range(3)], lambda row: 1, [quality])
"""


def test_failure_of_an_evaluator_is_no_output_of_its_own(place: Place) -> None:
    place.write("my_eval.py", QUALITY)
    for name in ("judged", "again"):
        place.write("my_eval.py", QUALITY.replace('"judged"', f'"{name}"'))
        assert place.run("run", "my_eval.py").code == 3
    scores = {each["output"]: (each["ok"], each["failed"]) for each in place.shown("judged")["scores"]}
    assert scores == {"score": (2, 1), "label": (2, 1)}
    rows = list(csv.DictReader(io.StringIO(place.run("export", "judged", "--format", "csv").out)))
    columns = [name for name in rows[0] if name.startswith("quality")]
    assert columns == ["quality.label.label", "quality.label.error", "quality.score.score", "quality.score.error"]
    assert [row["quality.score.score"] for row in rows] == ["0.5", "", "0.5"]
    assert ["cannot judge" in row["quality.score.error"] for row in rows] == [False, True, False]
    compared = json.loads(place.run("compare", "judged", "again", "--json").out)
    assert {each["output"]: (each["a"]["failed"], each["b"]["failed"]) for each in compared["outputs"]} == {
        "score": (1, 1), "label": (1, 1)
    }  # fmt: skip


def test_an_experiment_without_runs_exports_nothing_but_a_header(place: Place) -> None:
    place.rows(0)
    place.doubles(0)
    assert place.run("run", "my_eval.py").code == 0
    assert place.run("export", "doubles").out == ""
    assert len(place.run("export", "doubles", "--format", "csv").out.splitlines()) == 1
    assert place.run("export", "doubles", "--output", "out.parquet").code == 0
    assert pyarrow.parquet.read_table(place.path / "out.parquet").num_rows == 0


def test_list_shows_every_experiment_the_newest_first(mixed: Place) -> None:
    mixed.doubles(2)
    assert mixed.run("run", "my_eval.py").code == 0
    told = [json.loads(line) for line in mixed.run("show", "--json").out.splitlines()]
    assert [(each["name"], each["status"]) for each in told] == [("doubles", "COMPLETED"), ("mixed", "COMPLETED")]
    assert (told[1]["runs"], told[1]["unjudged"]) == ({"ok": 2, "error": 1}, {"error": 1})
    lines = [line.split() for line in mixed.run("show").out.splitlines()]
    assert ["doubles", "COMPLETED", "4/4", "0", "0"] in [line[:5] for line in lines]
    assert ["mixed", "COMPLETED", "2/3", "2", "0"] in [line[:5] for line in lines]


def test_list_says_whose_process_is_gone(mixed: Place) -> None:
    with sqlite3.connect(mixed.path / "tidegate.db") as database:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        replica = f"{replica_name().partition('-')[0]}-{ended.pid}-0"
        running = "SET status = 'RUNNING', claimed_at = '2020-01-01 00:00:00.000', claimed_by = ?"
        database.execute(f"UPDATE tidegate_execution_configs {running}", (replica,))
    database.close()
    (line,) = [line for line in mixed.run("show").out.splitlines() if line.startswith("mixed")]
    assert line.split()[:2] == ["mixed", "INTERRUPTED"]
    assert line.rstrip().endswith("its process has ended: run continues it")
    assert mixed.run("show", "mixed").out.startswith("mixed: INTERRUPTED")
    assert mixed.shown("mixed")["status"] == "RUNNING"


def in_error(place: Place, reason: str) -> None:
    with sqlite3.connect(place.path / "tidegate.db") as database:
        database.execute("UPDATE tidegate_execution_configs SET status = 'ERROR', last_error = ?", (reason,))
    database.close()


@pytest.mark.parametrize("columns", [60, 99, 100, 140])
def test_the_list_shows_names_states_and_reasons_at_any_width(mixed: Place, columns: int) -> None:
    mixed.doubles(2)
    mixed.write("second.py", (mixed.path / "my_eval.py").read_text().replace('"doubles"', '"answers-of-the-day"'))
    assert mixed.run("run", "second.py").code == 0
    in_error(mixed, "5 consecutive failures " + "of one kind " * 30)
    lines = mixed.run("show", COLUMNS=str(columns)).out.splitlines()
    assert max(map(len, lines)) <= columns
    for name, answered in ("answers-of-the-day", "4/4"), ("mixed", "2/3"):
        (at,) = [at for at, line in enumerate(lines) if line.split()[:3] == [name, "ERROR", answered]]
        told = lines[at] if columns >= 100 else next(line for line in lines if line.startswith(f"{name}: "))
        assert "5 consecutive failures" in told
        # Beside the table it is cut, below it in full over several lines.
        assert told.rstrip().endswith("…") is (columns >= 100)
    if columns < 100:
        assert " ".join(lines).replace("  ", " ").count("of one kind") == 60


def test_the_list_has_one_line_for_an_experiment_without_a_reason(mixed: Place) -> None:
    lines = mixed.run("show", COLUMNS="80").out.splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [["mixed", "COMPLETED", "2/3"]]


def test_a_name_that_is_wider_than_the_terminal_keeps_its_state_beside_it(mixed: Place) -> None:
    mixed.write("second.py", (mixed.path / "my_eval.py").read_text().replace('"mixed"', repr("sweep-" * 20)))
    assert mixed.run("run", "second.py").code == 3
    for columns in 60, 100:
        lines = mixed.run("show", COLUMNS=str(columns)).out.splitlines()
        assert "COMPLETED" in next(line for line in lines if line.startswith("sweep-"))
        assert "sweep-" * 20 in "".join(line.split()[0] for line in lines if line.strip())
        assert max(map(len, lines)) <= columns


def test_the_list_is_whole_where_nobody_looks(mixed: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    in_error(mixed, "because " * 40)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert ("because " * 40).strip() in mixed.run("show", COLUMNS="").out


@pytest.mark.parametrize("columns", [48, 80])
def test_failures_name_their_stage_and_kind_at_any_width(mixed: Place, columns: int) -> None:
    with sqlite3.connect(mixed.path / "tidegate.db") as database:
        database.execute("UPDATE tidegate_runs SET error = ? WHERE status = 'error'", ("it broke " * 30,))
    database.close()
    lines = mixed.run("show", "mixed", COLUMNS=str(columns)).out.splitlines()
    (line,) = [line for line in lines if line.startswith("task error")]
    assert line.split()[2] == "ValueError"
    assert len(line) <= columns


def test_show_tells_the_state_the_scores_and_the_last_log_lines(mixed: Place) -> None:
    said = mixed.run("show", "mixed", "--lines", "2").out.splitlines()
    assert said[0] == "mixed: COMPLETED: 3 rows, 2 answered, 1 failed"
    assert "dataset: rows.jsonl" in said[1]
    assert any(line.split()[:3] == ["scored", "0.500", "2"] for line in said)
    logged = [line for line in said if line.startswith("20")]
    assert len(logged) == 2
    assert "ValueError" in logged[0]
    assert "failure (stage task, row c, repetition 1, " in mixed.run("show", "mixed").out
    assert "ended (status COMPLETED" in logged[1]
    assert mixed.run("show", "1").out.splitlines()[0] == said[0]


def test_the_help_of_the_commands_needs_no_database_library(tmp_path: Path) -> None:
    code = """
import sys
from typer.testing import CliRunner
from tidegate.cli.commands import app
for command in ("run", "stop", "show", "export"):
    assert CliRunner().invoke(app, ["experiment", command, "--help"]).exit_code == 0
print([name for name in ("sqlalchemy", "aiosqlite", "yaml", "pyarrow") if name in sys.modules])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_without_a_database_library_each_command_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.experiments.commands.group.NEEDED", {"no_such_module": "no-such-package"})
    done = place.run("show")
    assert done.code == 1
    assert (
        done.complaint
        == "tidegate: command not started: no-such-package not installed; run pip install 'tidegate[experiments]'"
    )


FALLING_BACK = """
import tidegate
from tidegate.fallbacks import Choice
from tidegate.experiments import Evaluator, Experiment

left = [2]


class Bankrupt(Exception):
    status_code, body = 429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}


def first(row):
    if not left[0]:
        raise Bankrupt
    left[0] -= 1
    return "first"


answers = tidegate.fallback([Choice("one", first), Choice("two", lambda row: "second")])
grades = tidegate.fallback([Choice("three", lambda row: 1.0)])


def answer(row):
    return answers.execute(row).value


def judge(row, output):
    return grades.execute(row).value


experiment = Experiment("falling", [{"n": n} for n in range(5)], answer, [judge], max_concurrency=1)
"""


def test_choices_of_fallbacks_are_shown_and_exported(place: Place) -> None:
    place.write("my_eval.py", FALLING_BACK)
    done = place.run("run", "my_eval.py")
    assert done.code == 0
    told = ["task answered by two 3, one 2", "judge answered by three 5"]
    warning = "warning: scores of all evaluators not comparable: 2 models answered (task: two 3, one 2); "
    for out in (done.out, place.run("show", "falling").out):
        assert [line for line in out.splitlines() if " answered by " in line] == told
        assert warning in out
    assert place.shown("falling")["answered_by"] == {"task": {"two": 3, "one": 2}, "judge": {"three": 5}}
    assert len(place.shown("falling")["warnings"]) == 1
    lines = [json.loads(line) for line in place.run("export", "falling").out.splitlines()]
    assert [each["answered_by"][0]["choice"] for each in lines] == ["one"] * 2 + ["two"] * 3
    assert lines[0]["evaluations"]["judge"]["judge"]["answered_by"] == [
        {"choice": "three", "provider": "custom", "model": "three"}
    ]
    table = list(csv.DictReader(place.run("export", "falling", "--format", "csv").out.splitlines()))
    assert [each["answered_by"] for each in table] == ["one"] * 2 + ["two"] * 3
    assert {each["judge.answered_by"] for each in table} == {"three"}
    assert place.run("export", "falling", "--output", "out.parquet").code == 0
    assert [
        {name: each[name] for name in ("answered_by", "judge.answered_by")}
        for each in pyarrow.parquet.read_table(place.path / "out.parquet").to_pylist()
    ] == [{name: each[name] for name in ("answered_by", "judge.answered_by")} for each in table]
