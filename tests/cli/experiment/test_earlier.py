"""What is there already when a run begins: it stays, and that is said, with what has changed since."""

from __future__ import annotations

import pytest

from tests.cli.experiment.commands import Place

DECLARED = """\
name: asked
dataset: rows.jsonl
task: {provider: compatible, base_url: "http://127.0.0.1:9/v1", model: m, prompt: "What is {n}?"}
evaluators:
  - {name: judge, provider: compatible, base_url: "http://127.0.0.1:9/v1", model: m, prompt: "Is it {output}?"}
"""


def test_a_first_run_and_a_resume_say_nothing_of_it(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").err == ""
    assert place.run("run", "doubles").err == ""


def test_a_run_says_what_is_there_already(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    done = place.run("run", "my_eval.py")
    assert done.err == "doubles: 6 answers are kept; --fresh, or a new name, asks all again\n"


def test_another_file_with_an_experiment_of_that_name_is_told(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    (place.path / "my_eval.py").rename(place.path / "other.py")
    said = (
        "doubles changed: the kept answers were made with another experiment file; "
        "--fresh, or a new name, asks all again\n"
    )
    assert said in place.run("run", "other.py").err
    assert "another" not in place.run("run", "other.py").err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("What is", "Which is", "the kept answers were made with another task"),
        ("Is it", "Is that", "the kept judgements were made with another evaluator judge"),
        ("rows.jsonl", "others.jsonl", "the kept answers were made with another dataset"),
    ],
)
def test_what_has_changed_since_is_named(
    place: Place, old: str, new: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(*_: object) -> str:
        return "1"

    monkeypatch.setattr("tidegate.experiments.declared.clients.LazyClient.__call__", answered)
    place.rows(2)
    place.write("experiment.yaml", DECLARED)
    assert place.run("run", "experiment.yaml").code == 0
    place.write("experiment.yaml", DECLARED.replace(old, new))
    done = place.run("run", "experiment.yaml")
    assert done.code == 0
    assert said in done.err
    place.write("experiment.yaml", DECLARED.replace("model: m,", "model: m, timeout: 9,", 1))
    part = said[said.index("another ") :]
    assert "another" not in place.run("run", "experiment.yaml").err.replace(part, "")


def test_what_is_to_be_typed_next_names_the_database_that_was_meant(place: Place) -> None:
    place.doubles(2)
    text = (place.path / "my_eval.py").read_text()
    place.write("my_eval.py", text.replace("doubles", "two words"))
    assert "`tidegate experiment export 'two words'` writes every answer" in place.run("run", "my_eval.py").out
    there = place.run("run", "my_eval.py", "--db", "other.db").out
    assert "`tidegate experiment export 'two words' --db other.db` writes every answer" in there
    by_variable = place.run("run", "my_eval.py", TIDEGATE_DB="third.db").out
    assert "`tidegate experiment export 'two words'` writes every answer" in by_variable


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('return row["n"] * 2\n', 'return row["n"] + row["n"]\n', "the kept answers were made with another task; "),
        (
            "return output ==",
            "return 2 * output == 2 *",
            "the kept judgements were made with another evaluator judge; ",
        ),
    ],
)
def test_changed_code_is_told_and_what_to_do(place: Place, old: str, new: str, said: str) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    code = (place.path / "my_eval.py").read_text()
    assert code.count(old) == 1
    place.write("my_eval.py", code.replace(old, f"# Another comment.\n    {old}"))
    assert "changed" not in place.run("run", "doubles").err
    place.write("my_eval.py", code.replace(old, new))
    done = place.run("run", "doubles")
    assert done.code == 0
    assert f"doubles changed: {said}" in done.err
    assert [each["detail"]["parts"] for each in place.shown()["log"] if each["detail"]["type"] == "changed"]
    assert "changed" not in place.run("run", "my_eval.py").err


def test_fresh_start_asks_all_again_under_a_new_name(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py", "--fresh").code == 0
    for name in ("doubles-2", "doubles-3"):
        done = place.run("run", "my_eval.py", "--fresh")
        assert (done.code, done.err) == (0, "")
        assert f"{name}: COMPLETED: 3 rows × 2, 6 answered" in done.out
        assert place.shown(name)["stats"]["calls"] == 12
        assert place.run("run", name).code == 0
    assert place.shown("doubles")["runs"]["ok"] == 6
    assert place.run("run", "my_eval.py").err.startswith("doubles: 6 answers are kept; ")


def test_limit_tries_the_first_rows_and_the_next_run_the_others(place: Place) -> None:
    place.doubles(20)
    done = place.run("run", "my_eval.py", "--limit", "3")
    assert done.code == 0
    assert "doubles: STOPPED (limit of 3 rows reached): 3 rows × 2, 6 answered\n" in done.out
    assert "`tidegate experiment run doubles` continues it" in done.out
    done = place.run("run", "my_eval.py", "--limit", "5")
    assert "5 rows × 2, 10 answered\n" in done.out
    done = place.run("run", "doubles")
    assert done.code == 0
    assert "doubles: COMPLETED: 20 rows × 2, 40 answered\n" in done.out
    assert place.run("run", "my_eval.py", "--limit", "0").code == 2
