"""`tidegate experiment run`: an experiment to its end, whatever is in its way, told by the exit code."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess

import pytest

from tests.cli.experiment.commands import Place
from tests.cli.running import TIDEGATE, environ
from tests.warm import warm_python


def test_a_run_answers_and_judges_every_row_and_says_so(place: Place) -> None:
    place.doubles(20)
    done = place.process("run", "my_eval.py:experiment")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "doubles: COMPLETED: 20 rows × 2, 40 answered"
    judge = next(line for line in done.out.splitlines() if line.startswith("judge"))
    assert judge.split() == ["judge", "1.000", "40", "0"]
    assert "0 refusals retried, wall time 0:" in done.out
    assert done.err == ""
    assert (place.path / "tidegate.db").is_file()


def test_the_database_is_where_the_option_or_the_variable_says(place: Place) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py", "--db", "one.db").code == 0
    assert place.run("run", "my_eval.py", TIDEGATE_DB="sqlite:///two.db").code == 0
    assert sorted(path.name for path in place.path.glob("*.db")) == ["one.db", "two.db"]


FAILING = """
from tidegate.experiments import Experiment


def answer(row):
    if row["n"] == 3:
        raise ValueError("three, with the key sk-0123456789abcdef0123456789")
    return row["n"]


def judge(row, output):
    if output == 4:
        raise KeyError("four")
    return {"right": 1 if output else 0, "tone": "warm" if output % 2 else "cold"}


experiment = Experiment("failing", "rows.jsonl", answer, [judge])
"""


def test_a_failure_is_no_score_and_the_exit_code_says_that_there_were_some(place: Place) -> None:
    place.rows(6)
    place.write("my_eval.py", FAILING)
    done = place.run("run", "my_eval.py")
    assert done.code == 3
    assert done.out.splitlines()[0] == "failing: COMPLETED: 6 rows, 5 answered, 1 failed"
    lines = [line.split() for line in done.out.splitlines()]
    # Of rows 0, 1, 2 and 5, whose scores are 0, 1, 1 and 1: the two that failed are in no mean.
    assert ["judge.right", "0.750", "4", "1"] in lines
    assert ["judge.tone", "–", "4", "1", "cold", "2,", "warm", "2"] in lines
    failed = [line for line in done.out.splitlines() if " error " in line]
    assert [each.split()[:4] for each in failed] == [
        ["task", "error", "ValueError", "1"],
        ["judge", "error", "KeyError", "1"],
    ]
    assert failed[0].rstrip().endswith("ValueError: three, with the key sk-… (my_eval.py:7)")
    assert failed[1].rstrip().endswith("KeyError: 'four' (my_eval.py:13)")
    assert "sk-0123456789abcdef" not in place.run("show", "failing").out
    told = place.shown("failing")
    assert told["runs"] == {"ok": 5, "error": 1, "parked": 0, "invalid": 0}
    assert told["evaluations"] == {"judge": {"ok": 4, "error": 1, "parked": 0, "invalid": 0}}
    example = "ValueError: three, with the key sk-… (my_eval.py:7)"
    first = {"stage": "task", "status": "error", "kind": "ValueError", "count": 1, "example": example}
    assert told["failures"][0] == first


def test_what_failed_is_tried_again_by_a_resume_and_nothing_else_is(place: Place) -> None:
    place.rows(6)
    place.write("my_eval.py", FAILING)
    assert place.run("run", "my_eval.py").code == 3
    mended = FAILING.replace('row["n"] == 3', 'row["n"] == 99').replace("output == 4", "output == 99")
    count = "with open('calls', 'a') as file:\n        file.write('x')\n    return row[\"n\"]\n"
    place.write("my_eval.py", mended.replace('return row["n"]\n', count))
    done = place.run("run", "failing")
    assert (done.code, done.out.splitlines()[0]) == (0, "failing: COMPLETED: 6 rows, 6 answered")
    assert (place.path / "calls").read_text() == "x"


def test_a_malformed_row_is_recorded_with_its_line_and_the_run_goes_on(place: Place) -> None:
    place.doubles(3)
    lines = (place.path / "rows.jsonl").read_text().splitlines()
    place.write("rows.jsonl", "\n".join([lines[0], '{"n": 1', lines[2]]))
    done = place.run("run", "my_eval.py")
    assert done.code == 3
    assert done.out.splitlines()[0] == "doubles: COMPLETED: 3 rows × 2, 4 answered, 2 invalid"
    exported = [json.loads(line) for line in place.run("export", "doubles").out.splitlines()]
    invalid = [run for run in exported if run["status"] == "invalid"]
    assert [run["id"] for run in invalid] == ["line 2", "line 2"]
    assert "not JSON" in invalid[0]["error"]
    assert "line 2" in invalid[0]["error"]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nothing.py", "nothing.py not loaded: there is no such file"),
        ("nothing.py:experiment", "nothing.py:experiment not loaded: there is no such file"),
        (
            "no_such_module:experiment",
            "no_such_module:experiment not loaded: there is no such module; write it as my_eval.py",
        ),
        ("my_eval.py:other", "my_eval.py:other not loaded: it has no 'other'"),
        ("my_eval.py:asyncio", "'asyncio' is a module, not an Experiment"),
        ("broken.py", "broken.py not loaded: its import failed: SyntaxError"),
        ("leaving.py", "leaving.py not loaded: its import failed: SystemExit: 0"),
        ("nothing.yaml", "'nothing.yaml' is not usable: a readable file"),
        ("bad.yaml", "bad.yaml, line 1, nmae: 'x' is not usable: there is no such field"),
    ],
)
def test_code_that_is_not_there_is_one_clear_line_and_makes_no_database(
    place: Place, source: str, complaint: str
) -> None:
    place.doubles()
    place.write("broken.py", "experiment = (\n")
    place.write("leaving.py", "raise SystemExit(0)\n")
    place.write("bad.yaml", "nmae: x\n")
    done = place.run("run", source)
    assert done.code in (2, 6)
    assert complaint in done.complaint
    assert not (place.path / "tidegate.db").exists()


def test_a_dataset_that_is_not_there_is_one_clear_line(place: Place) -> None:
    place.doubles()
    (place.path / "rows.jsonl").unlink()
    done = place.run("run", "my_eval.py")
    assert (done.code, done.complaint) == (1, "tidegate: dataset rows.jsonl not readable: there is no such file")
    assert "no experiments in this database" in place.run("show").out


@pytest.mark.parametrize("command", [("run", "my_eval.py"), ("run", "doubles"), ("show",), ("export", "doubles")])
def test_a_database_that_does_not_answer_is_one_clear_line_without_its_password(
    place: Place, command: tuple[str, ...]
) -> None:
    place.doubles()
    done = place.run(*command, "--db", "postgresql://me:hidden@127.0.0.1:9/db")
    assert done.code == 1
    assert done.complaint.startswith("tidegate: database postgresql://me:***@127.0.0.1:9/db unavailable: ")
    assert "hidden" not in done.err


def test_a_database_of_a_newer_schema_is_one_clear_line_and_is_left_as_it_is(place: Place) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    with sqlite3.connect(place.path / "tidegate.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        version = next(name for name in tables if "version" in name)
        database.execute(f"UPDATE {version} SET version_num = '9999'")
    database.close()
    done = place.run("run", "doubles")
    assert done.code == 1
    assert "the database has schema 9999" in done.complaint
    assert "made by a newer tidegate" in done.complaint


def test_a_database_that_is_no_database_is_one_clear_line(place: Place) -> None:
    place.doubles(2)
    place.write("tidegate.db", "just some text, and long enough to be no header of any database at all\n" * 20)
    done = place.run("run", "my_eval.py")
    assert done.code == 1
    assert "not a database" in done.complaint


def test_a_name_that_nobody_has_is_refused(place: Place) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    for command in (("run", "--join"), ("stop",), ("show",), ("export",)):
        done = place.run(*command, "nobody")
        assert (done.code, done.complaint) == (
            2,
            "tidegate: experiment 'nobody' not found: this database has none of that name or number",
        )


@pytest.mark.parametrize("command", ["run --join x", "stop x", "show x", "export x", "show"])
def test_looking_for_a_database_makes_none(place: Place, command: str) -> None:
    done = place.run(*command.split())
    assert done.code == 1
    assert "database 'tidegate.db' not found" in done.complaint
    assert list(place.path.iterdir()) == []


def test_what_reads_the_output_may_be_gone(place: Place) -> None:
    place.doubles(3)
    command = f"{shlex.join([*warm_python(), *TIDEGATE[1:]])} experiment run my_eval.py {{gone}}"
    for gone in ("| true; exit ${PIPESTATUS[0]}", "2> >(true)", "2> >(true) > >(true)"):
        words = ["bash", "-c", command.replace("{gone}", gone)]
        done = subprocess.run(words, env=environ(), cwd=place.path, capture_output=True, text=True)
        assert done.returncode == 0, (gone, done.stderr)
        assert "Traceback" not in done.stderr


def test_a_failure_of_an_evaluator_that_is_asked_no_more_is_nobodys(place: Place) -> None:
    place.rows(6)
    place.write("my_eval.py", FAILING.replace('row["n"] == 3', 'row["n"] == 99'))
    assert place.run("run", "my_eval.py").code == 3
    place.write("my_eval.py", FAILING.replace('row["n"] == 3', 'row["n"] == 99').replace(", [judge]", ""))
    assert place.run("run", "my_eval.py").code == 0


def test_a_huge_mean_and_a_long_label_are_shown_shortened(place: Place) -> None:
    place.write("my_eval.py", "from tidegate.experiments import Experiment\n"
        "def judge(row, output):\n    return {'big': 1e308, 'long': 'y' * 200_000, 'short': 'yes'}\n"
        "experiment = Experiment('odd', [{'n': 1}], lambda row: 1, [judge])\n")  # fmt: skip
    ran = place.run("run", "my_eval.py")
    assert ran.code == 0
    for shown in (ran.out, place.run("show", "odd").out):
        assert "1.000e+308" in shown
        assert "yyy…" in shown
        assert "yes 1" in shown
        assert max(map(len, shown.splitlines())) < 300


def test_a_narrow_list_keeps_names_and_counts_failures_below(place: Place) -> None:
    place.rows(3)
    place.write("my_eval.py", "from tidegate.experiments import Experiment\n"
                "experiment = Experiment('capitals of Europe', 'rows.jsonl', lambda row: 1 / row['n'])\n")  # fmt: skip
    assert place.run("run", "my_eval.py").code == 3
    listed = place.run("show", COLUMNS="40").out
    assert "capitals of" in listed
    assert "1 failed" in listed
    assert all(len(line) <= 40 for line in listed.splitlines())
