"""The commands on PostgreSQL: run, killed, resumed by another process, shown, stopped and exported as on SQLite."""

from __future__ import annotations

import csv
import json
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cli.experiment.commands import Place
from tests.postgres import Server, served

ROWS = 400


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


def test_what_holds_on_a_file_holds_on_a_server(place: Place, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_DB", server.url("postgres"))
    place.doubles(ROWS, seconds=0.2)
    with place.started("run", "my_eval.py", TIDEGATE_DB=server.url("postgres")) as process:
        while not answered(place):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert "run by replica" in place.run("show", "doubles").out
        process.send_signal(signal.SIGKILL)
        process.wait(300)
    done = place.process("run", "doubles", TIDEGATE_DB=server.url("postgres"))
    assert (done.code, done.out.splitlines()[0]) == (0, f"doubles: COMPLETED: {ROWS} rows × 2, {ROWS * 2} answered")
    assert place.run("stop", "doubles").out == "doubles does not run: its state is COMPLETED\n"
    exported = [json.loads(line) for line in place.run("export", "doubles").out.splitlines()]
    assert sorted((run["row"]["n"], run["repetition"], run["output"]) for run in exported) == [
        (n, repetition, n * 2) for n in range(ROWS) for repetition in (1, 2)
    ]
    assert place.run("export", "doubles", "--output", "out.csv").code == 0
    with (place.path / "out.csv").open(newline="") as file:
        assert {row["judge.score"] for row in csv.DictReader(file)} == {"1.0"}
    assert re.search(rf"^doubles +COMPLETED +{ROWS * 2}/{ROWS * 2} +0 +0 ", place.run("show").out, re.MULTILINE)


def answered(place: Place) -> bool:
    """Whether any result is durable."""
    found = re.search(r'"ok": (\d+)', place.run("show", "--json").out)
    return found is not None and int(found[1]) > 0


def test_a_server_without_that_database_is_one_clear_line(place: Place, server: Server) -> None:
    place.doubles(2)
    done = place.run("run", "my_eval.py", "--db", server.url("no_such_database"))
    assert done.code == 1
    assert 'database "no_such_database" does not exist' in done.complaint
