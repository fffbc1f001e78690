"""500 workers of users' own queues, in eight processes, at a provider that admits 200 requests a window.

The processes share their queue and their suspensions. Governed ones also share the limit, so only the first window has
more than a few refusals. Without that, each worker may be refused once a window. No job pays for a refusal.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from examples import queue_worker
from tests.chaos.processes import PATIENCE, ROOT
from tidegate.testing import Distribution, Limit, Scenario, Simulator
from tidegate.testing.server import LoggedRequest

PROCESSES, WORKERS = 8, 500
ADMITTED = 200
WINDOW = 12.0
"""Seconds that stand for a minute."""

JOBS = 800

MOST_REFUSED_LATER = 8
"""Refusals of governed workers in a window after the first one, in which the limit is found: one for each process."""

RUNS = 3
"""Runs of which one must stay below that. Where the machine has no time for the holder of the log's lock, the others
decide alone for a moment, and are refused more often."""


@contextmanager
def queue_of(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path / "queue.sqlite", isolation_level=None)) as queue:
        queue.execute("PRAGMA journal_mode = WAL")
        queue.execute(queue_worker.JOBS)
        queue.execute("BEGIN")
        queue.executemany("INSERT INTO jobs (question) VALUES (?)", [(str(number),) for number in range(JOBS)])
        queue.execute("COMMIT")
        yield queue


@contextmanager
def workers(path: Path, url: str, governed: bool) -> Iterator[list[subprocess.Popen[str]]]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "EXAMPLE": queue_worker.__file__,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "any",
        "QUEUE": str(path / "queue.sqlite"),
        "GOVERNED": "yes" if governed else "no",
        "TIDEGATE_STATUS": "off",
        "TIDEGATE_SHARE": str(path / "share"),
        "SUSPENSIONS": str(path / "suspensions.sqlite"),
        "WINDOW": str(WINDOW),
    }
    counts = [WORKERS // PROCESSES + (number < WORKERS % PROCESSES) for number in range(PROCESSES)]
    command = [sys.executable, str(Path(__file__).with_name("queue_workers.py"))]
    with ExitStack() as stack:
        started = []
        for count in counts:
            process = subprocess.Popen(
                command, env={**env, "WORKERS": str(count)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


def refused_by_window(path: Path, kind: str, governed: bool) -> list[int]:
    """Refusals in each window of a run in which every job is done at its first attempt."""
    path.mkdir()
    limit = Limit(kind=kind, limit=ADMITTED, window=WINDOW)  # type: ignore[arg-type]
    scenario = Scenario(limiters=(limit,), dialect="openai", latency=Distribution.constant(WINDOW / 12))
    log: list[LoggedRequest] = []
    with (
        queue_of(path) as queue,
        Simulator(scenario, log=log.append) as provider,
        workers(path, provider.openai_url, governed) as processes,
    ):
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(PATIENCE) == 0
        assert queue.execute("SELECT DISTINCT status, attempts FROM jobs").fetchall() == [("done", 0)]
    statuses = Counter(each.status for each in log)
    refused = Counter(int((each.at - log[0].at) // WINDOW) for each in log if each.status == 429)
    windows = [refused[number] for number in range(int((log[-1].at - log[0].at) // WINDOW) + 1)]
    assert statuses == Counter({200: JOBS, 429: sum(windows)})
    return windows


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["fixed", "bucket"])
def test_governed_workers_find_the_limit_once(tmp_path: Path, kind: str) -> None:
    seen = []
    for number in range(RUNS):
        windows = refused_by_window(tmp_path / str(number), kind, True)
        assert windows[0] <= WORKERS, windows
        seen.append(max(windows[1:]))
        if seen[-1] <= MOST_REFUSED_LATER:
            return
    pytest.fail(f"more than {MOST_REFUSED_LATER} refusals in a later window of each run: {seen}")


@pytest.mark.chaos
def test_no_job_is_poisoned_where_workers_only_share_suspensions(tmp_path: Path) -> None:
    # A worker that was admitted may take one more job before it reads of the suspension.
    assert max(refused_by_window(tmp_path / "run", "fixed", False)) <= WORKERS + ADMITTED
