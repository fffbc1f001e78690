"""`tidegate experiment run --join`: a second process answers rows of an experiment that another one runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cli.experiment.commands import Place, read_until
from tests.postgres import Server, served

ROWS = 400

HELD = """
import asyncio, os, pathlib
from tidegate.experiments import Experiment


async def answer(row):
    pathlib.Path(f"begun-{os.getpid()}").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return row["n"] * 2


def judge(row, output):
    return output == row["n"] * 2


experiment = Experiment("doubles", "rows.jsonl", answer, [judge], repetitions=2)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "_", request.node.name)
    server.sql(f"create database {name}")
    monkeypatch.setenv("TIDEGATE_DB", server.url(name))
    return server.url(name)


def until(place: Place, count: int, *running: subprocess.Popen[str]) -> None:
    """Wait until that number of processes has begun a row."""
    while len(list(place.path.glob("begun-*"))) < count:
        for process in running:
            assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def listed(place: Place) -> dict[str, object]:
    found: dict[str, object] = json.loads(place.run("show", "--json").out)
    return found


def test_two_processes_answer_the_rows_of_one_experiment(place: Place, url: str) -> None:
    place.rows(ROWS)
    place.write("my_eval.py", HELD)
    with place.started("run", "my_eval.py", "--spread", TIDEGATE_DB=url) as owner:
        until(place, 1, owner)
        assert listed(place)["replicas"] == 1
        with place.started("run", "doubles", "--join", TIDEGATE_DB=url) as other:
            until(place, 2, owner, other)
            assert listed(place)["replicas"] == 2
            assert "2 replicas answer its rows" in place.run("show").out
            assert "2 replicas answer its rows" in place.run("show", "doubles").out
            (place.path / "go").touch()
            told, complaint = other.communicate(timeout=300)
            assert other.returncode == 0, complaint
        out, complaint = owner.communicate(timeout=300)
        assert owner.returncode == 0, complaint
    assert out.splitlines()[0] == f"doubles: COMPLETED: {ROWS} rows × 2, {ROWS * 2} answered"
    found = re.search(r"doubles: part of this process ended: (\d+) answered", told)
    assert found is not None, told
    assert 0 < int(found[1]) < ROWS * 2
    exported = [json.loads(line) for line in place.run("export", "doubles").out.splitlines()]
    assert sorted((run["row"]["n"], run["repetition"], run["output"]) for run in exported) == [
        (n, repetition, n * 2) for n in range(ROWS) for repetition in (1, 2)
    ]


def test_an_interrupt_leaves_the_rest_to_the_owner(place: Place, url: str) -> None:
    place.rows(ROWS)
    place.write("my_eval.py", HELD)
    with place.started("run", "my_eval.py", "--spread", TIDEGATE_DB=url) as owner:
        until(place, 1, owner)
        with place.started("run", "doubles", "--join", TIDEGATE_DB=url) as other:
            until(place, 2, owner, other)
            other.send_signal(signal.SIGINT)
            # Two signals at once may become one.
            complaint = read_until(other.stderr, "Ctrl-C again")
            other.send_signal(signal.SIGINT)
            told, rest = other.communicate(timeout=300)
            complaint += rest
            assert other.returncode == 5, complaint
            assert "doubles: RUNNING: " in told
            assert "other replicas run its rows" in complaint
        (place.path / "go").touch()
        out, complaint = owner.communicate(timeout=300)
    assert (owner.returncode, out.splitlines()[0]) == (
        0,
        f"doubles: COMPLETED: {ROWS} rows × 2, {ROWS * 2} answered",
    ), complaint


def test_a_declared_experiment_may_be_spread(place: Place) -> None:
    place.rows(2)
    place.write(
        "eval.yaml",
        'name: few\ndataset: rows.jsonl\nspread: true\ntask: {provider: openai, model: gpt-5-mini, prompt: "{n}"}\n',
    )
    done = place.run("run", "eval.yaml", OPENAI_API_KEY="k")
    assert done.code == 2
    assert "spread: True is not usable" in done.complaint


def test_an_experiment_that_cannot_be_joined_is_one_line(place: Place, url: str) -> None:
    place.doubles(2)
    assert place.run("run", "doubles", "--join").code == 2
    assert place.run("run", "my_eval.py").code == 0
    done = place.run("run", "doubles", "--join")
    assert (done.code, done.complaint.count("\n")) == (1, 0)
    assert "doubles not joined: it runs in one process at a time" in done.complaint
    assert place.run("run", "my_eval.py", "--spread").code == 0
    done = place.run("run", "doubles", "--join")
    assert (done.code, done.complaint.count("\n")) == (1, 0)
    assert "doubles not joined: its state is COMPLETED" in done.complaint


def test_a_file_is_not_spread(place: Place) -> None:
    place.doubles(2)
    done = place.run("run", "my_eval.py", "--spread")
    assert done.code == 2
    assert "PostgreSQL is needed" in done.complaint
