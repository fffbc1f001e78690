"""Who stops a run, and what stays: signals at its own terminal, and `stop` from another process."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests import constants
from tests.cli.experiment.commands import Place, read_until
from tests.effort import some
from tidegate.experiments.commands.common import Code

ROWS = 400
MANY = 5_000
"""Rows of a run that is to be stopped: they take minutes, so that no slow machine comes to their end before."""


PATIENCE = 300.0
"""Seconds after which a test that waits for a process fails; no test is near it."""


HANGING = """
import time
from collections.abc import Callable
from tidegate.experiments import Experiment


def answer(row):
    print("asleep", flush=True)
    time.sleep(3600)


experiment = Experiment("hanging", "rows.jsonl", answer)
"""


def underway(place: Place, process: subprocess.Popen[str]) -> None:
    """Returns once answers are durable; fails where the process ends before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if (place.path / "tidegate.db").exists() and place.run("show").code == 0:
            listed = place.run("show", "--json").out
            found = re.search(r'"ok": (\d+)', listed)
            if found is not None and int(found[1]) > 0:
                return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("nothing was answered")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_an_interrupt_lets_finish_what_is_under_way_and_stops(place: Place) -> None:
    place.doubles(MANY, seconds=0.5)
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
    assert code == 5
    assert "stopping: work in flight has 30 s to finish; Ctrl-C again cancels it" in err
    assert out.splitlines()[0].startswith("doubles: STOPPED: ")
    assert "`tidegate experiment run doubles` continues it" in out
    told = place.shown()
    assert (told["status"], told["runs"]["error"]) == ("STOPPED", 0)
    assert told["runs"]["ok"] >= 20, "what was under way was not kept"
    assert told["untried"] > 0
    assert f"process {process.program} on " in str(told["stopped_by"])


def test_a_second_interrupt_cancels_what_is_under_way(place: Place) -> None:
    place.doubles(ROWS, seconds=0.2)
    # From the second row on it hangs: only a cancellation ends it.
    text = (place.path / "my_eval.py").read_text()
    place.write("my_eval.py", text.replace("asyncio.sleep(0.2)", "asyncio.sleep(0 if row['n'] < 1 else 3600)"))
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, "Ctrl-C again")
        process.send_signal(signal.SIGINT)
        code, out, _ = ended(process)
    assert code == 5
    assert out.splitlines()[0].startswith(f"doubles: STOPPED: {ROWS} rows × 2, 2 answered, {ROWS * 2 - 2} not tried")


def test_a_thread_that_hangs_does_not_keep_the_process(place: Place) -> None:
    place.rows(40)
    place.write("my_eval.py", HANGING)
    with place.started("run", "my_eval.py", **constants.environ(CANCEL_GRACE_SECONDS=0.1)) as process:
        read_until(process.stdout, "asleep")
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, "Ctrl-C again")
        process.send_signal(signal.SIGINT)
        code, out, _ = ended(process)
    assert code == 5
    assert "hanging: STOPPED: 40 rows, 0 answered, 40 not tried" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_keeps_the_claim_and_what_was_under_way(place: Place, number: signal.Signals) -> None:
    place.doubles(MANY, seconds=0.5)
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        process.send_signal(number)
        code, _, err = ended(process)
    assert code == 143
    assert "the claim is kept" in err
    told = place.shown()
    assert (told["status"], told["runs"]["error"]) == ("RUNNING", 0)
    assert told["runs"]["ok"] >= 20
    assert "whose process has ended" in place.run("show", "doubles").out


@pytest.mark.parametrize("number", some([signal.SIGKILL], [signal.SIGTERM]))
def test_whatever_ended_the_process_a_resume_goes_on_at_once(place: Place, number: signal.Signals) -> None:
    place.doubles(ROWS)
    # From the second row on it takes until a file is there: no run comes to its end before it is ended.
    text = (place.path / "my_eval.py").read_text()
    until = "while row['n'] and not os.path.exists('go'):\n        await asyncio.sleep(0.02)"
    place.write("my_eval.py", "import os\n" + text.replace("await asyncio.sleep(0.0)", until))
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        process.send_signal(number)
        place.write("go", "")
        process.wait(timeout=PATIENCE)
    done = place.process("run", "doubles")
    assert (done.code, done.out.splitlines()[0]) == (0, f"doubles: COMPLETED: {ROWS} rows × 2, {ROWS * 2} answered")
    # A claim that had to go stale first would have been waited for.
    assert "is run by" not in done.err


def test_a_stop_reaches_the_process_that_runs_it_through_the_database(place: Place) -> None:
    place.doubles(MANY, seconds=0.2)
    with place.started("run", "my_eval.py", **constants.environ(HEARTBEAT_SECONDS=0.2)) as process:
        underway(place, process)
        said = place.run("stop", "doubles")
        assert said.code == 0
        assert "doubles stopped: replica" in said.out
        again = place.run("stop", "doubles")
        assert (again.code, again.out) == (0, "doubles does not run: its state is STOPPED\n")
        code, out, err = ended(process)
    assert code == 5
    assert out.splitlines()[0].startswith("doubles: STOPPED: ")
    assert "claim lost" not in err
    assert re.search(rf"^stopped by .*\(?process {os.getpid()} on ", place.run("show", "doubles").out, re.MULTILINE)


def test_a_run_that_waits_for_another_ends_when_a_user_stops_that(place: Place) -> None:
    """It says who stopped it, does not go on, and ends as a stopped run does."""
    place.doubles(MANY, seconds=0.2)
    with place.started("run", "my_eval.py", **constants.environ(HEARTBEAT_SECONDS=0.2)) as process:
        underway(place, process)
        with place.started("run", "my_eval.py") as second:
            read_until(second.stderr, "this command waits for its end")
            assert place.run("stop", "doubles").code == 0
            assert ended(process)[0] == 5
            code, out, err = ended(second)
    assert code == 5
    assert "doubles not started: it was stopped by " in err
    assert f"process {os.getpid()} on " in err
    assert out.splitlines()[0].startswith("doubles: STOPPED: ")


def changed(place: Place, **changes: str) -> None:
    """Change the experiment in the database."""
    with sqlite3.connect(place.path / "tidegate.db") as database:
        told = ", ".join(f"{name} = {value}" for name, value in changes.items())
        database.execute(f"UPDATE tidegate_execution_configs SET {told}")
    database.close()


@pytest.fixture
def cool(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leave the experiment as a toggle a moment ago does; the cool-down is over when a command has waited once."""

    async def waited(seconds: float) -> None:
        changed(place, cooldown_until="NULL")

    def cool(**more: str) -> None:
        monkeypatch.setattr("tidegate.experiments.commands.common.sleep", waited)
        changed(place, cooldown_until="strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hours')", **more)

    return cool


@pytest.mark.parametrize("words", [("run", "my_eval.py"), ("run", "doubles")])
def test_a_cool_down_is_waited_out(place: Place, cool: Callable[..., None], words: tuple[str, str]) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    cool(status="'STOPPED'")
    done = place.run(*words)
    assert (done.code, done.out.splitlines()[0]) == (0, "doubles: COMPLETED: 2 rows × 2, 4 answered")
    assert "doubles not started yet: it was stopped or resumed a moment ago; it starts within 5 s" in done.err


def test_a_stop_waits_a_cool_down_out(place: Place, cool: Callable[..., None]) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    cool(status="'RUNNING'", claimed_by="'somebody'", claimed_at="strftime('%Y-%m-%d %H:%M:%f', 'now')")
    done = place.run("stop", "doubles")
    assert (done.code, done.out) == (0, "doubles stopped: replica somebody ends its run at the next heartbeat\n")
    assert "it was started or resumed a moment ago; it is stopped within 5 s" in done.err
    assert place.shown()["status"] == "STOPPED"


def test_a_stop_says_once_that_it_waits_and_names_the_state_at_its_end(
    place: Place, cool: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    cool(status="'RUNNING'", claimed_by="'somebody'", claimed_at="strftime('%Y-%m-%d %H:%M:%f', 'now')")
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            changed(place, cooldown_until="NULL", status="'COMPLETED'", claimed_by="NULL", claimed_at="NULL")

    monkeypatch.setattr("tidegate.experiments.commands.common.sleep", waited)
    done = place.run("stop", "doubles")
    assert (done.code, done.out) == (0, "doubles does not run: its state is COMPLETED\n")
    assert (len(waits), done.err.count("a moment ago")) == (3, 1)


def test_what_another_process_runs_is_left_to_it(place: Place) -> None:
    place.doubles(MANY, seconds=0.5)
    with place.started("run", "my_eval.py") as process:
        underway(place, process)
        with place.started("run", "doubles") as second:
            said = read_until(second.stderr, "this command waits for")
        by = rf"process {process.program} on this machine \(.+\), since [\d :-]+, last heartbeat \d+ s ago; "
        whose = f"doubles not started yet: it is run by {by}"
        assert re.match(whose + "attach with `tidegate experiment show doubles`; this command waits for", said), said
        shown = place.run("show", "doubles").out
        assert "run by replica" in shown
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 5


MULE = """
import asyncio
from tidegate.experiments import Experiment

async def mule(row):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

experiment = Experiment("mule", [{"id": str(n)} for n in range(3)], mule, task_timeout=0.2)
"""


def test_a_function_that_ignores_its_cancellation_holds_no_process(place: Place) -> None:
    place.write("my_eval.py", MULE)
    settings = {
        "TIDEGATE_EXPERIMENTS_GRACE": "0.2",
        "TIDEGATE_EXPERIMENTS_ATTEMPTS": "1",
        **constants.environ(CANCEL_GRACE_SECONDS=0.1),
    }
    done = place.process("run", "my_eval.py", **settings)
    assert done.code == Code.ERRORS, done.err
    assert "COMPLETED" in done.out
    said = [line for line in done.err.splitlines() if "cancellation" in line]
    assert said == ["task of row 0 and 2 more not ended: its cancellation was ignored; the process ends without it"]
    assert "Traceback" not in done.err
    assert "destroyed" not in done.err
