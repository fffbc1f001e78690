"""`tidegate experiment run`: what is done stays, its code is found again, and where it is not nothing is lost."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from tests.cli.experiment.commands import Place
from tests.storage.values import count_again
from tidegate.experiments import Experiment
from tidegate.experiments.storage import Store


@pytest.mark.parametrize("words", [("run", "my_eval"), ("run", "my_eval.py"), ("run", "doubles"), ("run", "1")])
def test_what_is_done_is_not_done_again(place: Place, words: tuple[str, ...]) -> None:
    place.doubles(5)
    place.write(
        "my_eval.py",
        (place.path / "my_eval.py").read_text() + "\nwith open('imports', 'a') as file:\n    file.write('x')\n",
    )
    assert place.run("run", "my_eval.py").code == 0
    before = place.run("export", "doubles").out
    done = place.process(*(f"{word}:experiment" if word == "my_eval" else word for word in words))
    assert (done.code, done.out.splitlines()[0]) == (0, "doubles: COMPLETED: 5 rows × 2, 10 answered")
    assert place.run("export", "doubles").out == before
    assert (place.path / "imports").read_text() == "xx"


def test_code_that_is_gone_at_a_resume_is_one_clear_line_and_nothing_is_lost(place: Place) -> None:
    place.doubles(4)
    assert place.run("run", "my_eval.py").code == 0
    (place.path / "my_eval.py").rename(place.path / "moved.py")
    done = place.run("run", "doubles")
    assert done.code == 6
    assert "my_eval.py:experiment not loaded: there is no such file" in done.complaint
    assert place.shown()["runs"]["ok"] == 8
    (place.path / "moved.py").rename(place.path / "my_eval.py")
    assert place.run("run", "doubles").code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"doubles"', '"triples"', "my_eval.py:experiment not loaded: the experiment there is called 'triples' now"),
        (
            "experiment = ",
            "renamed = ",
            "my_eval.py:experiment not loaded: it has no 'experiment'; its experiments are renamed",
        ),
    ],
)
def test_a_resume_takes_no_other_experiment_for_the_one_that_was_meant(
    place: Place, old: str, new: str, said: str
) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    place.write("my_eval.py", (place.path / "my_eval.py").read_text().replace(old, new))
    done = place.run("run", "doubles")
    assert done.code == 6
    assert said in done.complaint
    assert [json.loads(line)["name"] for line in place.run("show", "--json").out.splitlines()] == ["doubles"]


def test_a_name_is_looked_up_in_the_database_and_a_file_is_not(place: Place) -> None:
    """An experiment may have the name of a module beside it, and a module may not run because of a typing error."""
    place.doubles(2)
    place.write("doubles.py", "raise SystemExit('imported')")
    assert place.run("run", "my_eval.py:experiment").code == 0
    assert place.run("run", "doubles").code == 0
    assert "imported" not in place.run("run", "double").complaint


def test_an_experiment_whose_name_looks_like_an_object_is_continued_by_it(place: Place) -> None:
    place.doubles(2)
    place.write("my_eval.py", (place.path / "my_eval.py").read_text().replace('"doubles"', '"doubles:two"'))
    assert place.run("run", "my_eval.py").code == 0
    assert place.run("run", "doubles:two").code == 0


def test_an_experiment_whose_credential_is_missing_is_blocked_and_runs_once_it_is_there(place: Place) -> None:
    place.doubles(2)
    text = (place.path / "my_eval.py").read_text()
    place.write("my_eval.py", text.replace("repetitions=2", "credentials=['NO_SUCH_KEY']"))
    done = place.run("run", "my_eval.py")
    assert done.code == 6
    assert "credentials are missing: NO_SUCH_KEY is not set here" in done.complaint
    told = place.shown()
    assert (told["status"], told["last_error"]) == ("BLOCKED", "credentials are missing: NO_SUCH_KEY is not set here")
    assert place.run("run", "my_eval.py", NO_SUCH_KEY="here").code == 0


CLIENT = """
import os

if "NO_SUCH_KEY" not in os.environ:
    raise RuntimeError("Missing credentials. Please pass an `api_key`")
"""


def test_a_missing_credential_ends_code_declaration_and_name_alike(place: Place) -> None:
    place.doubles(2)
    text = (place.path / "my_eval.py").read_text()
    place.write("my_eval.py", text.replace("repetitions=2", "credentials=['NO_SUCH_KEY']"))
    place.write("client.py", CLIENT + text)
    place.write(
        "declared.yaml",
        "name: declared\ndataset: rows.jsonl\n"
        "task: {provider: openai, api_key_env: NO_SUCH_KEY, model: m, prompt: '{n}'}\n",
    )
    assert place.run("run", "my_eval.py", "--limit", "1", NO_SUCH_KEY="here").code == 0
    for source in ("my_eval.py", "doubles", "client.py", "declared.yaml"):
        done = place.run("run", source)
        assert done.code == 6, source
        assert "redentials" in done.complaint
    assert place.shown()["status"] == "STOPPED"
    said = "not to be continued here: credentials are missing: NO_SUCH_KEY is not set here"
    assert said in place.run("show", "doubles").out.splitlines()
    assert said not in place.run("show", "doubles", NO_SUCH_KEY="here").out


async def counted_again(url: str) -> None:
    store = await Store.open(url)
    await count_again(store, 1)
    await store.close()


def test_an_orphan_whose_code_is_gone_is_blocked_and_goes_on_once_it_is_back(place: Place) -> None:
    place.doubles(4)
    assert place.run("run", "my_eval.py").code == 0
    with sqlite3.connect(place.path / "tidegate.db") as database:
        orphaned = "SET status = 'RUNNING', claimed_by = 'dead', claimed_at = '2020-01-01 00:00:00.000'"
        database.execute(f"UPDATE tidegate_execution_configs {orphaned}")
        database.execute("DELETE FROM tidegate_runs WHERE ordinal = 3")
    database.close()
    asyncio.run(counted_again(str(place.path / "tidegate.db")))
    (place.path / "my_eval.py").rename(place.path / "moved.py")
    assert place.run("run", "doubles").code == 6
    told = place.shown()
    assert (told["status"], "there is no such file" in told["last_error"]) == ("BLOCKED", True)
    (place.path / "moved.py").rename(place.path / "my_eval.py")
    done = place.run("run", "doubles")
    assert (done.code, done.out.splitlines()[0]) == (0, "doubles: COMPLETED: 4 rows × 2, 8 answered")


def test_an_experiment_of_a_script_says_that_it_has_no_name_to_be_found_by(place: Place) -> None:
    Experiment("script", [{"n": 1}], lambda row: 1).run()
    done = place.run("run", "script")
    assert done.code == 6
    assert "it was started from code that has no name to find it by; run that code again" in done.complaint


def test_code_with_a_loop_of_its_own_can_be_run_and_resumed(place: Place) -> None:
    place.doubles(2)
    text = (place.path / "my_eval.py").read_text()
    place.write("my_eval.py", text + "\nasyncio.run(asyncio.sleep(0))\n")
    assert place.run("run", "my_eval.py").code == 0
    assert place.run("run", "doubles").code == 0
