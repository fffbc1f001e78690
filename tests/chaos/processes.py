"""Replicas and commands as real processes, what their functions have noted, and what the database has been told."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.running import TIDEGATE, environ
from tests.storage.places import Place
from tests.warm import WarmProcess
from tidegate.testing import SimulatorProcess

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("experiments.py")
PATIENCE = 240.0
"""Seconds for which something is waited for: on a machine that does nothing else, none takes ten."""

STAGES = ("task", "correct", "short")
REPETITIONS = 2


def until(holds: Callable[[], Any], what: str, *alive: subprocess.Popen[Any]) -> Any:
    """Waits until `holds()` is true, and returns it; fails where one of the processes has ended before."""
    deadline = time.monotonic() + PATIENCE
    while not (held := holds()):
        assert time.monotonic() < deadline, f"waited for in vain: {what}"
        for process in alive:
            assert process.poll() is None, f"a process has ended ({process.returncode}) before {what}"
        time.sleep(0.01)
    return held


class Note(NamedTuple):
    """One line of a ledger: a function of that process began, or has ended."""

    pid: int
    what: str
    experiment: str
    stage: str
    row: int


class Scene:
    """A folder with a dataset, and all that processes are told by their environment; each has a ledger of its own."""

    def __init__(self, path: Path, place: Place, pupil: SimulatorProcess, teacher: SimulatorProcess) -> None:
        self.path = path
        self.place = place
        self.providers = (pupil, teacher)
        self.ledger = path / "ledger"
        self.ledger.touch()
        self._env = {
            "PUPIL": pupil.openai_url,
            "TEACHER": teacher.openai_url,
            "ROWS": str(path / "rows.jsonl"),
            "LEDGER": str(self.ledger),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "TIDEGATE_LOG": "off",
        }

    def rows(self, count: int) -> None:
        (self.path / "rows.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(count)))

    def admitted(self) -> int:
        """Calls that the providers have let in: answered, or abandoned by a client that is no more."""
        return sum(provider.truth().total.admitted for provider in self.providers)

    def noted(self) -> list[Note]:
        lines = self.ledger.read_text().splitlines()
        return [Note(int(pid), what, name, stage, int(row)) for pid, what, name, stage, row in map(str.split, lines)]

    def lines(self) -> int:
        return self.ledger.read_bytes().count(b"\n")

    @contextlib.contextmanager
    def command(self, *words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """`tidegate experiment WORDS`, gone at the end whatever happens; what it says is in the file `said`."""
        command = [*TIDEGATE[1:], "experiment", *words, "--db", self.place.url]
        with (self.path / "said").open("ab") as said:
            process = WarmProcess(
                command, env=environ(**self._env, **env), cwd=self.path, stdout=said, stderr=said,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            yield process
        finally:
            end(process)

    @contextlib.contextmanager
    def replica(self, hours: float = 0.0, **env: str) -> Iterator[Replica]:
        """A replica whose clock is wrong by so many hours, gone at the end."""
        command = [sys.executable, "-m", "tests.chaos.replica", self.place.url, str(hours)]
        with (self.path / f"said-{hours}").open("ab") as said:
            process = subprocess.Popen(
                command, env=environ(**self._env, **env), cwd=self.path, text=True, stderr=said,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        replica = Replica(process)
        try:
            yield replica
        finally:
            end(process)
            replica.close()

    def said(self) -> str:
        return "".join(path.read_text(errors="replace")[-4000:] for path in self.path.glob("said*"))


class Replica:
    """A process that runs `tests.chaos.replica`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.name = self.hears("replica ").removeprefix("replica ")

    def order(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def hears(self, beginning: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line, f"it has ended before it said {beginning!r}"
            self.told.append(line)
            if line.startswith(beginning):
                return line

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def sleep(self, place: Place) -> None:
        """Stops it where it is; on SQLite not in a transaction, which nobody could end but itself."""
        until(lambda: self._sleeps(place), "an instant between two transactions", self.process)

    def _sleeps(self, place: Place) -> bool:
        self.send(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        try:
            with place.begun():
                return True
        except sqlite3.OperationalError:
            self.send(signal.SIGCONT)
        with contextlib.suppress(sqlite3.OperationalError), place.begun():
            # It has had the time to end its transaction.
            pass
        return False

    def close(self) -> None:
        """Lets go of its pipes; the process has ended."""
        self._thread.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(PATIENCE)


def everything(rows: int) -> set[tuple[str, int, int]]:
    """Every identity of one experiment: stage, row and repetition."""
    return {(stage, row, again) for stage in STAGES for row in range(rows) for again in range(1, REPETITIONS + 1)}


def durable(place: Place, experiment: str) -> Counter[tuple[str, int, int]]:
    """How many good rows the database has of each identity of an experiment."""
    of = f"(SELECT id FROM tidegate_experiments WHERE name = '{experiment}')"
    runs = place.sql(
        f"SELECT 'task', ordinal, repetition FROM tidegate_runs WHERE experiment_id = {of} AND status = 'ok'"
    )
    judged = place.sql(
        f"SELECT evaluator, ordinal, repetition FROM tidegate_annotations WHERE experiment_id = {of} AND status = 'ok'"
    )
    return Counter((str(stage), int(row), int(again)) for stage, row, again in runs + judged)


def kept(place: Place) -> int:
    query = "SELECT (SELECT count(*) FROM tidegate_runs) + (SELECT count(*) FROM tidegate_annotations)"
    return int(place.sql(query)[0][0])


def known(place: Place, experiment: str) -> bool:
    """Whether the database has an experiment of that name; False where it has no tables yet."""
    try:
        return bool(place.sql(f"SELECT 1 FROM tidegate_experiments WHERE name = '{experiment}'"))
    except Exception:
        return False


def status(place: Place, experiment: str) -> str:
    query = (
        "SELECT status FROM tidegate_execution_configs WHERE experiment_id = "
        f"(SELECT id FROM tidegate_experiments WHERE name = '{experiment}')"
    )
    return str(place.sql(query)[0][0])
