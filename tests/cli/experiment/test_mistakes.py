"""A slip in every place where one can be made: one clear line, the right exit code, and nothing left behind."""

from __future__ import annotations

import pytest

from tests.cli.experiment.commands import Place

ROWS = '"rows.jsonl"'


def code(arguments: str, before: str = "") -> str:
    """A file with one experiment."""
    return (
        "from tidegate.experiments import Evaluator, Experiment\n"
        "def answer(row):\n    return row['n']\n"
        "def judge(row, output):\n    return 1\n"
        f"{before}\nexperiment = Experiment('slips', {arguments})\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'rows.jsonl', answer, evalutors=[]", "unexpected keyword argument 'evalutors' (my_eval.py:7)"),
        ("'rows.jsonl', 'answer'", "task: 'answer' is not usable: a function of a row (my_eval.py:7)"),
        ("'rows.jsonl', judge", "task: 'judge' is not usable: it is called with (row): missing a required argument"),
        ("'rows.jsonl', answer, [answer]", "evaluator answer: 'answer' is not usable: it is called with (row, output)"),
        ("'rows.jsonl', answer, [judge, judge]", "names, each of them once"),
        (
            "'rows.jsonl', answer, [Evaluator(judge, outputs='right')]",
            "outputs: 'right' is not usable: a list",
        ),
        ("42, answer", "dataset: 42 is not usable: a file's path, an iterable, or a function that returns one"),
        ("'rows.jsonl', answer, max_concurrency='3'", "max_concurrency: '3' is not usable: 1 or more"),
        ("'rows.jsonl', answer, credentials='SOME_KEY'", "credentials: 'SOME_KEY' is not usable: a list"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused_where_it_is_made(place: Place, arguments: str, said: str) -> None:
    place.rows(3)
    place.write("my_eval.py", code(arguments))
    done = place.run("run", "my_eval.py")
    assert done.code == 6
    assert said in done.complaint
    assert not (place.path / "tidegate.db").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("my_eval.py:answer", "'answer' is a function of row, not an Experiment"),
        ("my_eval.py:made", "made() failed: ZeroDivisionError: division by zero (my_eval.py:7)"),
        ("my_eval.py:experimnt", "it has no 'experimnt'; its experiments are experiment"),
        ("my_eval.pyy", "no experiment of the database; use my_eval.py:experiment, package.module:experiment"),
        ("rows.jsonl", "it names no file, no object of a module, no experiment of the database"),
        ("", "it names no file, no object of a module, no experiment of the database"),
        ("rows.jsonl:experiment", "it names no Python file or module; write it as my_eval.py:experiment"),
        ("raising.py", "its import failed: KeyError: 'NO_SUCH_VARIABLE' (raising.py:3)"),
    ],
)
def test_what_is_no_experiment_is_said_with_what_would_be(place: Place, source: str, said: str) -> None:
    place.rows(3)
    place.write("my_eval.py", code(f"{ROWS}, answer", "def made():\n    return 1 / 0"))
    place.write("raising.py", "import os\n\nos.environ['NO_SUCH_VARIABLE']\n")
    done = place.run("run", source)
    assert done.code == 6
    assert said in done.complaint
    assert not (place.path / "tidegate.db").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "TIDEGATE_EXPERIMENTS_GRACE",
            "-1",
            "TIDEGATE_EXPERIMENTS_GRACE: '-1' is not usable: Input should be greater than",
        ),
        ("TIDEGATE_EXPERIMENTS_MAX_CONCURRENCY", "many", "TIDEGATE_EXPERIMENTS_MAX_CONCURRENCY: 'many' is not usable"),
        ("TIDEGATE_EXPERIMENTS_GRAEC", "1", "there is no such setting; the nearest is TIDEGATE_EXPERIMENTS_GRACE"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(place: Place, variable: str, value: str, said: str) -> None:
    place.doubles(2)
    done = place.run("run", "my_eval.py", **{variable: value})
    assert done.code == 2
    assert said in done.complaint
    assert not (place.path / "tidegate.db").exists()


@pytest.mark.parametrize("words", [("--max-concurrency", "0"), ("--max-concurrency", "x"), ("--dbb", "x")])
def test_an_option_that_cannot_be_used_is_named(place: Place, words: tuple[str, str]) -> None:
    place.doubles(2)
    done = place.run("run", "my_eval.py", *words)
    assert done.code == 2
    assert words[0] in done.err


def test_a_malformed_line_takes_no_other_rows_name(place: Place) -> None:
    place.doubles()
    # The rows' own ids are numbers: the place of the malformed one among them is the id of another.
    place.write("rows.jsonl", '{"id": 1, "n": 1}\n{"id": 2, "n"\n{"id": 3, "n": 3}\n{"n": 4}\n')
    done = place.run("run", "my_eval.py")
    assert done.code == 7, "two rows are called 3: one by its id, one by its place"
    place.write("rows.jsonl", '{"id": 1, "n": 1}\n{"id": 2, "n"\n{"id": 0, "n": 3}\n')
    done = place.run("run", "my_eval.py", "--db", "other.db")
    assert (done.code, done.out.splitlines()[0]) == (3, "doubles: COMPLETED: 3 rows × 2, 4 answered, 2 invalid")


def test_rows_of_a_list_that_share_an_id_are_named_without_lines_that_they_do_not_have(place: Place) -> None:
    place.write("my_eval.py", code("[{'id': 1, 'n': 1}, {'id': '1', 'n': 1}], answer"))
    done = place.run("run", "my_eval.py")
    reason = "dataset row not stored: two rows have the id '1'; each row needs its own id"
    assert (done.code, done.out.splitlines()[0]) == (7, f"slips: ERROR ({reason}): 0 rows, 0 answered")
    assert "once the cause is corrected, `tidegate experiment run slips` continues it" in done.out


def test_a_generator_that_breaks_off_says_where(place: Place) -> None:
    before = "def rows():\n    yield {'n': 1}\n    raise OSError('no more')"
    place.write("my_eval.py", code("rows, answer", before))
    done = place.run("run", "my_eval.py")
    assert done.code == 7
    assert "OSError: no more (my_eval.py:8)" in done.out.splitlines()[0]


@pytest.mark.parametrize("text", ["id;question\n1;a\n", "id|question\n1|a\n"])
def test_a_table_that_is_divided_by_something_else_is_refused(place: Place, text: str) -> None:
    place.write("rows.csv", text)
    place.write("my_eval.py", code("'rows.csv', answer"))
    done = place.run("run", "my_eval.py")
    assert done.code == 7
    assert "commas (.csv) or tabs (.tsv) separate columns" in done.out.splitlines()[0]


def test_a_table_may_hold_whole_documents(place: Place) -> None:
    place.write("rows.csv", f"n,text\n1,{'long ' * 100_000}\n")
    place.write("my_eval.py", code("'rows.csv', answer"))
    assert place.run("run", "my_eval.py").code == 0


def test_what_failed_is_told_with_the_line_of_the_code_that_failed(place: Place) -> None:
    place.rows(2)
    place.write("my_eval.py", code(f"{ROWS}, asked", "def asked(row):\n    return row['m']"))
    done = place.run("run", "my_eval.py")
    assert done.code == 3
    assert "KeyError: 'm' (my_eval.py:7)" in done.out
    assert "KeyError: 'm' (my_eval.py:7)" in place.run("show", "slips").out
