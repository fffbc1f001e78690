"""`tidegate experiment recount`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any

from tests import constants
from tests.cli.experiment.commands import Place
from tests.cli.experiment.test_stopping import MANY, ended, underway


def sql(place: Place, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(place.path / "tidegate.db", isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def test_results_that_were_changed_by_other_means_are_counted_anew(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    sql(place, "DELETE FROM tidegate_runs WHERE ordinal = 1 AND repetition = 1")
    done = place.run("recount", "doubles")
    assert (done.code, done.out) == (0, "doubles recounted: 5 results of tasks, 6 of evaluations\n")
    ((tally,),) = sql(place, "SELECT tally FROM tidegate_tallies WHERE stage = 'task'")
    assert json.loads(tally)["items"] == 5


def test_an_experiment_that_runs_is_left_alone(place: Place) -> None:
    place.doubles(MANY, seconds=0.1)
    with place.started("run", "my_eval.py", **constants.environ(HEARTBEAT_SECONDS=0.2)) as process:
        underway(place, process)
        done = place.run("recount", "doubles")
        assert (done.code, "`tidegate experiment stop doubles` stops it" in done.err) == (1, True)
        assert place.run("stop", "doubles").code == 0
        ended(process)
