"""Functions that interrupt their run, or fork: the run stops in order, and the child ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.effort import some
from tests.runner.scene import in_loop, rows, runner_at, statuses
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.storage import ResultStatus, Status

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.parametrize("synchronous", [False, True])
@in_loop
async def test_keyboard_interrupt_of_a_function_stops_its_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, synchronous: bool
) -> None:
    interrupting = [True]

    async def answer(row: Any) -> int:
        return 1

    def blocking(row: Any, output: Any) -> int:
        if row["n"] == 50 and interrupting[0]:
            raise KeyboardInterrupt
        return 1

    async def awaiting(row: Any, output: Any) -> int:
        return blocking(row, output)

    experiment = Experiment("e", rows(300), answer, [Evaluator(blocking if synchronous else awaiting, name="judge")])
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(experiment)
        assert summary.status is Status.STOPPED
        assert "KeyboardInterrupt at row 50" in str(summary.last_error)
        assert (await statuses(runner.store, summary.experiment.id))[ResultStatus.OK] >= 1
        assert sum("KeyboardInterrupt" in record.getMessage() for record in caplog.records) == 1
        interrupting[0] = False
        assert (await runner.run(experiment)).complete


SCRIPT = """
import asyncio, os, sys, time
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings

def ended(pid):
    # The child has a minute to end; a child that goes on as a runner never does.
    for _ in range(600):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(pid, 9)
    return "it goes on"

def blocking(row):
    pid = os.fork()
    if pid == 0:
        {end}
    return ended(pid)

async def awaiting(row):
    pid = os.fork()
    if pid == 0:
        {end}
    return await asyncio.to_thread(ended, pid)

async def main():
    async with ExperimentRunner(sys.argv[1], recover=False) as runner:
        summary = await runner.run(Experiment("e", [{{"id": 1}}], {kind}))
        print("PARENT", [run.output for run in await runner.store.reports.results(1, after=None, limit=9)])

asyncio.run(main())
print("OUT", os.getpid())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    ("end", "code"),
    some(
        [("raise SystemExit(3)", 3), ("return 'from the child'", 0)],
        [("sys.exit()", 0), ("raise ValueError('in the child')", 1)],
    ),
)
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_fork_in_a_function_ends_with_its_child(tmp_path: Path, kind: str, end: str, code: int) -> None:
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(SCRIPT).format(end=end, kind=kind))
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "runs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert f"PARENT [{code}]" in done.stdout, done
    assert done.stdout.count("OUT") == done.stdout.count("PARENT") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_child_that_awaits_ends_at_its_parents_loop(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(SCRIPT).format(end="await asyncio.sleep(0)", kind="awaiting").replace(
        "def blocking(row):", "async def blocking(row):"))  # fmt: skip
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "runs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "PARENT [1]" in done.stdout, done
    assert "came back to the loop of its parent" in done.stderr
