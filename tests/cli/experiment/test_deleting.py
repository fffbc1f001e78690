"""`tidegate experiment delete`."""

from __future__ import annotations

import os

from tests import constants
from tests.cli.experiment.commands import Place
from tests.cli.experiment.test_stopping import MANY, ended, underway


def test_it_is_deleted_only_with_a_confirmation(place: Place) -> None:
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    refused = place.run("delete", "doubles")
    assert refused.code == 2
    assert refused.complaint == (
        "tidegate: doubles not deleted: it has 3 rows, 6 answered; "
        "`tidegate experiment delete doubles --yes` deletes it"
    )
    done = place.run("delete", "doubles", "--yes")
    assert (done.code, done.out) == (0, "doubles deleted: 3 rows, 6 answered\n")
    assert "no experiments" in place.run("show").out
    gone = place.run("delete", "doubles", "--yes")
    assert gone.code == 2
    assert "doubles" in gone.complaint


def test_run_of_another_process_is_stopped_first(place: Place) -> None:
    place.doubles(MANY, seconds=0.1)
    with place.started("run", "my_eval.py", **constants.environ(HEARTBEAT_SECONDS=0.2)) as process:
        underway(place, process)
        done = place.run("delete", "doubles", "--yes")
        assert done.code == 0, done.err
        assert "doubles not deleted yet: replica " in done.err
        code, _, err = ended(process)
    assert code != 0
    assert "Traceback" not in err
    assert "no experiments" in place.run("show").out


def test_run_whose_process_was_killed_is_not_waited_for(place: Place) -> None:
    place.doubles(MANY, seconds=0.1)
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.wait()
    done = place.run("delete", "doubles", "--yes")
    assert (done.code, done.err) == (0, "")
