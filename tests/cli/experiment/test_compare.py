"""`tidegate experiment compare`: rows matched by id, means over what both scored, intervals, rows that differ."""

from __future__ import annotations

import json
import random
import sqlite3
from typing import Any

import pytest

from tests.cli.experiment.commands import Place

PAIR = """
import json
from tidegate.experiments import Evaluator, Experiment


def answer(row):
    if row.get("fails"):
        raise ValueError("no answer")
    return row["score"]


def right(row, output):
    if output is None:
        raise ValueError("cannot judge")
    return output[min(row.get("at", 0), len(output) - 1)] if isinstance(output, list) else output


def tone(row, output):
    return row["tone"]


def of(name, **more):
    return Experiment(name, f"{name}.jsonl", answer, [right, tone], **more)


before, after, other = of("before"), of("after", repetitions=2), of("other")
"""


def rows(place: Place, name: str, given: list[dict[str, Any]]) -> None:
    """Write the rows of one experiment and run it."""
    place.write("my_eval.py", PAIR)
    place.write(f"{name}.jsonl", "".join(json.dumps(each) + "\n" for each in given))
    assert place.run("run", f"my_eval.py:{name}").code in (0, 3)


def compared(place: Place, *words: str) -> dict[str, Any]:
    """Return the JSON of a comparison."""
    done = place.run("compare", "before", "after", "--json", *words)
    assert done.code == 0, done.err
    told: dict[str, Any] = json.loads(done.out)
    return told


def output(told: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one output of a comparison."""
    return next(each for each in told["outputs"] if each["output"] == name)


def test_rows_are_matched_by_id_and_means_are_over_what_both_scored(place: Place) -> None:
    rows(place, "before", [
        {"id": "a", "score": 0.0, "tone": "warm"},
        {"id": "b", "score": 0.5, "tone": "warm"},
        {"id": "c", "score": 1.0, "tone": "cold"},
        {"id": "d", "score": 1.0, "tone": "cold", "fails": True},
        {"id": "alone", "score": 1.0, "tone": "cold"},
    ])  # fmt: skip
    rows(place, "after", [
        {"id": "d", "score": 1.0, "tone": "cold"},
        {"id": "c", "score": 0.75, "tone": "cold"},
        {"id": "b", "score": 0.5, "tone": "cold"},
        {"id": "a", "score": 1.0, "tone": "warm"},
        {"id": "other", "score": 0.0, "tone": "cold"},
        {"id": "more", "score": 0.0, "tone": "cold"},
    ])  # fmt: skip
    told = compared(place)
    assert (told["matched"], told["changed"]) == (4, 4)
    assert (told["a"]["rows"], told["b"]["rows"]) == (5, 6)
    # The row `d` failed in A: it is counted there, and is no score of 0.
    assert told["a"]["runs"] == {"ok": 3, "error": 1, "parked": 0, "invalid": 0}
    assert told["b"]["runs"] == {"ok": 8, "error": 0, "parked": 0, "invalid": 0}
    right = output(told, "right")
    assert right["rows"] == 3
    assert (right["a"]["mean"], right["b"]["mean"], right["difference"]) == (0.5, 0.75, 0.25)
    assert (right["wins"], right["losses"], right["ties"]) == (1, 1, 1)
    told_rows = [(each["id"], each["a"], each["b"]) for each in right["different"]]
    assert told_rows == [("a", 0.0, 1.0), ("c", 1.0, 0.75)]
    tone = output(told, "tone")
    assert (tone["same_labels"], tone["other_labels"]) == (2, 1)


def test_experiment_that_is_compared_with_itself_is_told_so(place: Place) -> None:
    for name in ("before", "after"):
        rows(place, name, [{"id": "a", "score": 0.5, "tone": "x"}])
    said = "A and B are the same experiment: it is compared with itself"
    assert said in place.run("compare", "before", "1").out.splitlines()
    assert said not in place.run("compare", "before", "after").out


def test_evaluations_that_fail_are_counted_and_are_no_score(place: Place) -> None:
    rows(place, "before", [{"id": str(n), "score": 1.0, "tone": "x"} for n in range(4)])
    rows(place, "after", [{"id": str(n), "score": 1.0 if n else None, "tone": "x"} for n in range(4)])
    right = output(compared(place), "right")
    assert (right["rows"], right["a"]["failed"], right["b"]["failed"]) == (3, 0, 2)
    assert right["b"]["mean"] == 1.0
    assert right["interval"] == [0.0, 0.0]


def test_rows_that_were_never_tried_are_counted(place: Place) -> None:
    rows(place, "before", [{"id": str(n), "score": 1.0, "tone": "x"} for n in range(6)])
    rows(place, "after", [{"id": str(n), "score": 0.5, "tone": "x"} for n in range(6)])
    with sqlite3.connect(place.path / "tidegate.db") as database:
        for table in ("annotations", "runs"):
            database.execute(f"DELETE FROM tidegate_{table} WHERE experiment_id = 2 AND ordinal >= 2")
    told = compared(place)
    assert (told["a"]["untried"], told["b"]["untried"]) == (0, 8)
    assert output(told, "right")["rows"] == 2


def test_a_dataset_that_is_not_read_to_its_end_is_named(place: Place) -> None:
    rows(place, "before", [{"id": str(n), "score": 1.0, "tone": "x"} for n in range(6)])
    place.write("after.jsonl", "".join(json.dumps({"id": str(n), "score": 0.5, "tone": "x"}) + "\n" for n in range(6)))
    place.run("run", "my_eval.py:after", "--limit", "2")
    assert compared(place)["matched"] == 2
    assert "the dataset of B is not yet read to its end" in place.run("compare", "before", "after").out.splitlines()


def test_experiments_of_two_databases(place: Place) -> None:
    rows(place, "before", [{"id": str(n), "score": 0.0, "tone": "x"} for n in range(3)])
    place.write("after.jsonl", "".join(json.dumps({"id": str(n), "score": 1.0, "tone": "x"}) + "\n" for n in range(3)))
    assert place.run("run", "my_eval.py:after", "--db", "second.db").code == 0
    assert output(compared(place, "--other-db", "second.db"), "right")["wins"] == 3


def test_people_see_the_counts_the_intervals_and_the_rows(place: Place) -> None:
    drawn = random.Random(1)
    before = [{"id": f"row-{n}", "score": float(drawn.random() < 0.5), "tone": "x"} for n in range(60)]
    rows(place, "before", before)
    rows(place, "after", [{**each, "score": 1.0} for each in before])
    done = place.run("compare", "before", "after", "--rows", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "A: before (experiment 1, COMPLETED), B: after (experiment 2, COMPLETED)"
    assert "60 rows are in both by their id; A has 60, B has 60" in lines
    row = next(line for line in lines if line.startswith("right "))
    losers = [each["id"] for each in before if each["score"] == 0.0]
    assert f" {len(losers)} " in row
    assert "[" in row
    assert sum(line.startswith("row-") for line in lines) == 2
    assert losers[0] in done.out
    assert "tone: 60 of 60 rows have the same label in both" in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("before", "nothing"), "nothing"),
        (("before", "other"), "no row id is in both"),
        (("before", "after", "--confidence", "1"), "confidence"),
    ],
)
def test_bad_requests_are_refused_with_one_line(place: Place, words: tuple[str, ...], said: str) -> None:
    rows(place, "before", [{"id": "a", "score": 0.0, "tone": "x"}])
    rows(place, "after", [{"id": "a", "score": 0.0, "tone": "x"}])
    rows(place, "other", [{"id": "z", "score": 0.0, "tone": "x"}])
    done = place.run("compare", *words)
    assert done.code in (1, 2)
    assert said in done.complaint


def test_without_scipy_the_error_names_the_extra(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(place, "before", [{"id": "a", "score": 0.0, "tone": "x"}])
    monkeypatch.setattr("tidegate.experiments.comparison.find_spec", lambda name: None)
    done = place.run("compare", "before", "before")
    assert done.code == 1
    assert done.complaint == (
        "tidegate: comparison not made: scipy is not installed; run: pip install 'tidegate[compare]'"
    )
