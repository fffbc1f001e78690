"""Each example of examples/engines, with the engine's own processes, at a provider whose burst is 10 calls."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.ports import free_port
from tests.shared_log.redis_server import RedisServer
from tidegate.testing import Limit, Scenario, SimulatorProcess
from tidegate.testing.accounts import Counts

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "engines"
ROWS, HTTP_ROWS = 120, 40
MOST_REFUSED = 6
"""Four processes that do not share take the burst each, and are refused about 30 times. On a busy machine a process
that joins may be refused before it has the state of the others."""

BOUND = 300.0
"""Seconds after which a program is killed and the test fails."""

RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}

SCENARIO = Scenario(dialect="openai", limiters=(Limit(limit=120, window=6.0, burst=10),), latency=0.1)


def needs(module: str) -> None:
    assert find_spec(module) is not None, f"{module} is not installed; `make engines` installs it"


def environment(simulator: SimulatorProcess, folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that shares only with what this test starts."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTEST_"))}
    return {
        **own,
        "OPENAI_BASE_URL": simulator.openai_url,
        "OPENAI_API_KEY": "any",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{EXAMPLES}",
        "TIDEGATE_SHARE": str(folder),
        "TIDEGATE_STATUS": "off",
        **changes,
    }


@contextmanager
def started(words: Sequence[str], made: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program in a process group of its own, all of which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, *words],
        env=dict(made),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(words: Sequence[str], made: Mapping[str, str], folder: Path, code: int = 0) -> str:
    """What a program prints until it ends, by default well."""
    with started(words, made, folder) as process:
        text, _ = process.communicate(timeout=BOUND)
        assert process.returncode == code, text
    return text


def check(counts: Counts) -> None:
    """No row is lost, and the processes take one burst together."""
    assert counts.answered == ROWS
    assert counts.refusals <= MOST_REFUSED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(SCENARIO) as found:
        yield found


@pytest.mark.parametrize(
    ("example", "module", "changes"),
    [
        ("ray_actors", "ray", RAY),
        ("ray_actors", "ray", {**RAY, "TIDEGATE_SHARE": "ray"}),
        ("dask_map", "distributed", {}),
        ("spawned_processes", "openai", {}),
    ],
    ids=["ray", "ray-log", "dask", "spawn"],
)
def test_an_example_takes_one_burst(
    example: str, module: str, changes: dict[str, str], simulator: SimulatorProcess, folder: Path
) -> None:
    needs(module)
    text = said([str(EXAMPLES / f"{example}.py")], environment(simulator, folder, changes), folder)
    assert f"{ROWS} of {ROWS} rows answered" in text
    check(simulator.truth().total)


@pytest.fixture
def slow_simulator() -> Iterator[SimulatorProcess]:
    """120 requests a minute, 10 of them at once."""
    limits = (Limit(limit=120, window=60.0, burst=10),)
    with SimulatorProcess(Scenario(dialect="openai", limiters=limits, latency=0.1)) as found:
        yield found


def test_the_http_stage_of_ray_data_ends_at_its_first_refusal(slow_simulator: SimulatorProcess, folder: Path) -> None:
    """Its `max_retries` is 0 by default: one 429 ends the job."""
    needs("pyarrow")
    made = environment(slow_simulator, folder, {**RAY, "GOVERNED": "0"})
    text = said([str(EXAMPLES / "ray_data_http.py")], made, folder, code=1)
    assert "Reached maximum retries of 0" in text
    assert slow_simulator.truth().total.answered < HTTP_ROWS


def test_the_http_stage_of_ray_data_finishes_at_a_low_limit(slow_simulator: SimulatorProcess, folder: Path) -> None:
    needs("pyarrow")
    text = said([str(EXAMPLES / "ray_data_http.py")], environment(slow_simulator, folder, RAY), folder)
    assert f"{HTTP_ROWS} of {HTTP_ROWS} rows answered" in text
    assert slow_simulator.truth().total.answered == HTTP_ROWS


def test_processes_with_the_variables_of_torchrun_take_one_burst(simulator: SimulatorProcess, folder: Path) -> None:
    """torchrun starts the script once for each rank, with these variables; torch itself is too large to install."""
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "4"} for rank in range(4)]

    def start(changes: dict[str, str]) -> str:
        return said([str(EXAMPLES / "torchrun_calls.py")], environment(simulator, folder, changes), folder)

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(start, ranks))
    assert [text.strip() for text in texts] == [f"rank {rank}: {ROWS // 4} rows answered" for rank in range(4)]
    check(simulator.truth().total)


def test_workers_of_xdist_take_one_burst(simulator: SimulatorProcess, folder: Path) -> None:
    needs("xdist")
    words = ["-m", "pytest", "-q", "-n", "4", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(EXAMPLES)]
    text = said([*words, str(EXAMPLES / "xdist_calls.py")], environment(simulator, folder, {}), folder)
    assert f"{ROWS} passed" in text
    check(simulator.truth().total)


def test_workers_of_celery_take_one_burst(simulator: SimulatorProcess, folder: Path) -> None:
    needs("celery")
    broker = RedisServer()
    broker.start()
    try:
        made = environment(simulator, folder, {"BROKER_URL": broker.url})
        words = ["-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "4", "--loglevel", "ERROR"]
        with started(words, made, folder):
            text = said([str(EXAMPLES / "celery_tasks.py")], made, folder)
    finally:
        broker.stop()
    assert f"{ROWS} of {ROWS} rows answered" in text
    check(simulator.truth().total)


def test_workers_of_gunicorn_take_one_burst(simulator: SimulatorProcess, folder: Path) -> None:
    needs("gunicorn")
    port = free_port()
    words = ["-m", "gunicorn", "--workers", "4", "--threads", "4", "--timeout", "600", "--bind", f"127.0.0.1:{port}"]
    with started([*words, "gunicorn_app:application"], environment(simulator, folder, {}), folder) as server:
        until = time.monotonic() + BOUND
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until, "gunicorn does not start"
                time.sleep(0.02)

        def ask(row: int) -> int:
            with urlopen(f"http://127.0.0.1:{port}/{row}", timeout=BOUND) as answer:
                return int(answer.status)

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(ask, range(ROWS))) == {200}
    check(simulator.truth().total)
