"""Programs without `tidegate run` are seen by `tidegate status`, from their first key to their end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tests.cli.running import environ
from tests.core.values import KEY
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.cli.commands import app
from tidegate.launch import process_status
from tidegate.launch.runs import PREFIX


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    hooks.on_new_queue = None
    return tmp_path


def seen() -> list[dict[str, object]]:
    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def installed(**settings: bool) -> RateLimitRegistry:
    registry = RateLimitRegistry(tidegate.Settings(**settings))  # type: ignore[arg-type]
    tidegate.install(registry)
    return registry


def test_program_is_seen_from_its_first_key_on(temporary: Path) -> None:
    registry = installed()
    assert list(temporary.iterdir()) == []
    assert registry.try_admit(KEY)
    (told,) = seen()
    assert (told["pid"], told["key"], told["in_flight"]) == (os.getpid(), str(KEY), 1)
    assert Path(process_status.typed(sys.orig_argv)[0]).name in str(told["command"])


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["/env/bin/python", "/env/bin/pytest", "-n", "4"], ["pytest", "-n", "4"]),
        (["/env/bin/python3.12", "/home/me/evals.py"], ["/env/bin/python3.12", "/home/me/evals.py"]),
        (["python", "evals.py"], ["python", "evals.py"]),
        (["python", "-m", "pytest"], ["python", "-m", "pytest"]),
        (["python"], ["python"]),
        ([], []),
    ],
)
def test_an_installed_script_is_shown_as_a_user_types_it(arguments: list[str], typed: list[str]) -> None:
    assert process_status.typed(arguments) == typed


def test_registry_without_install_is_seen_while_it_makes_a_call() -> None:
    (told,) = RateLimitRegistry(tidegate.Settings()).execute("my-service", seen)
    assert (told["pid"], told["in_flight"]) == (os.getpid(), 1)
    assert "my-service" in str(told["key"])


def test_registry_with_a_clock_of_its_own_is_not_shown(temporary: Path) -> None:
    assert RateLimitRegistry(tidegate.Settings(), clock=lambda: 0.0).try_admit(KEY)
    assert list(temporary.iterdir()) == []


def test_failure_to_show_it_is_logged_with_the_key_table_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError

    monkeypatch.setattr(process_status, "own_counters", fails)
    registry = installed()
    said: list[tuple[str, int]] = []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            other = threading.Thread(target=registry.snapshot, daemon=True)
            other.start()
            other.join(60.0)
            assert not other.is_alive(), "the key table is locked"
            said.append((record.getMessage(), len(registry.snapshot().keys)))

    handler = Asking()
    logging.getLogger("tidegate").addHandler(handler)
    try:
        assert registry.try_admit(KEY)
        assert registry.execute("other", lambda: 1) == 1
    finally:
        logging.getLogger("tidegate").removeHandler(handler)
    assert said == [("process not shown in `tidegate status`: RuntimeError: ; it runs on", 1)]


@pytest.mark.parametrize("settings", [{"status": False}, {"disabled": True}], ids=str)
def test_program_that_does_not_want_it_leaves_no_file(temporary: Path, settings: dict[str, bool]) -> None:
    assert installed(**settings).try_admit(KEY)
    assert list(temporary.iterdir()) == []


def test_variable_switches_it_off() -> None:
    assert tidegate.Settings.from_environment({"TIDEGATE_STATUS": "off"}).status is False


def test_run_that_counts_already_goes_on_counting(temporary: Path) -> None:
    queues: list[object] = []
    hooks.on_new_queue = queues.append
    assert installed().try_admit(KEY)
    assert len(queues) == 1
    assert list(temporary.iterdir()) == []


def test_forked_child_changes_no_row_of_its_parent_and_removes_nothing(temporary: Path) -> None:
    registry = installed()
    assert registry.try_admit(KEY)
    registry._queues[KEY].waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))  # type: ignore[arg-type]
    child = os.fork()
    if not child:
        registry.try_admit(KEY)
        os._exit(0)
    os.waitpid(child, 0)
    (told,) = seen()
    assert (told["in_flight"], told["waiting"]) == (1, 1)


def test_folder_that_cannot_be_created_stops_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert installed().try_admit(KEY)


PROGRAM = """
import os, tidegate
tidegate.install()
tidegate.registry().try_admit(tidegate.Key("p", "https://p.test"))
child = os.fork()
if child:
    os.waitpid(child, 0)
    print(*os.listdir(os.environ["TMPDIR"]))
"""


def test_folder_goes_with_the_program_and_stays_when_a_child_ends(temporary: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ(TMPDIR=str(temporary)), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(PREFIX), done.stderr
    assert list(temporary.iterdir()) == []


OUTLIVED = """
import atexit, multiprocessing.util, os, sys, tidegate
registry = tidegate.registry()
registry.try_admit(tidegate.Key("p", "https://p.test"))
if os.fork():
    os._exit(0) if sys.argv[1:] == ["killed"] else sys.exit()
if sys.argv[1:] == ["cleared"]:
    # As multiprocessing does in each child, from CPython 3.13 on.
    atexit._clear()
    multiprocessing.util._finalizer_registry.clear()
permit = registry.try_admit(tidegate.Key("p", "https://p.test"))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["ended", "killed", "cleared"])
def test_forked_child_that_outlives_its_parent_is_seen_until_its_own_end(temporary: Path, end: str) -> None:
    command = [sys.executable, "-c", OUTLIVED, end]
    env = environ(TMPDIR=str(temporary), TIDEGATE_SHARE="off")
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.wait()
        (told,) = seen()
        assert (told["pid"], told["in_flight"]) == (child, 1)
        parent.stdin.close()
        assert parent.stdout.read() == ""
    assert seen() == []
    assert list(temporary.iterdir()) == []
