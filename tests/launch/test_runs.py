"""The folder of a run goes with it; what a killed one left goes with the next, and nobody else's does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate.launch.runs import run_folder

KILLED = """
import os, signal
from tidegate.launch.runs import run_folder
with run_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    then = folder.stat().st_mtime - 86_400.0
    os.utime(folder, (then, then))
    return folder


def test_a_folder_is_there_for_the_run_and_only_then() -> None:
    with run_folder() as folder:
        assert Path(folder).is_dir()
    assert not Path(folder).exists()


def test_what_a_killed_run_left_is_gone_with_the_next(temporary: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    )
    left = Path(killed.stdout.strip())
    assert left.parent == temporary
    assert left.is_dir()
    (left / "1-1-0.counts").touch()
    aged(left)
    with run_folder():
        assert not left.exists()


def test_the_folder_of_a_run_that_still_runs_stays_however_old() -> None:
    with run_folder() as first:
        aged(Path(first))
        with run_folder():
            assert Path(first).is_dir()


def unused() -> Path:
    with run_folder() as folder:
        return Path(folder)


def test_a_folder_that_its_run_may_be_about_to_lock_stays() -> None:
    young = unused()
    young.mkdir()
    with run_folder():
        assert young.is_dir()


def test_what_is_no_folder_of_a_run_stays(temporary: Path) -> None:
    elsewhere = aged_folder(temporary / "elsewhere")
    link = unused()
    link.symlink_to(elsewhere)
    os.utime(link, (0, 0), follow_symlinks=False)
    with run_folder():
        assert elsewhere.is_dir()


def aged_folder(path: Path) -> Path:
    path.mkdir()
    return aged(path)
