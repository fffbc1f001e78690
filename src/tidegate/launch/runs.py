"""Private folders of runs, in which their processes count, and the runs under way on this machine.

Each run has its own folder below the temporary one, and removes it at its end. The process of the run holds a lock on
the folder, which the kernel releases however the process ends. The next run removes the folder of a killed one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegate.launch.totals import Folder, Totals

YOUNG = 60.0
"""Seconds in which a new folder may still be without a lock; younger folders are never removed. Raising it leaves the
folder of a killed run for longer. Chosen: far above the time between creating and locking a folder."""


@contextlib.contextmanager
def run_folder() -> Iterator[str]:
    """Create a folder for one run, and remove it at the end; raise OSError where none can be created."""
    _sweep(Path(tempfile.gettempdir()), time.time())
    # A process that outlives the command may still write there.
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder, _held(folder):
        yield folder


def _sweep(parent: Path, now: float) -> None:
    """Remove the folders of this user's killed runs."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < now - YOUNG:
                with _held(str(folder)):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Hold the lock of a folder during this block; raise BlockingIOError where another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


PREFIX = "tidegate-run-"
COMMAND = "command"
"""File in a run's folder with the identifier of its process and the name of its command."""


class ProgramRun(NamedTuple):
    """Run under way: the process of `tidegate run`, the name of its command, and its current counts."""

    pid: int
    command: str
    totals: Totals


def live_runs(below: str | None = None) -> Iterator[ProgramRun]:
    """Return this user's live runs in the folder `below` (by default the temporary one)."""
    for folder in sorted(Path(below or tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):
            if folder.stat().st_uid != os.getuid():
                continue
            pid, command = (folder / COMMAND).read_text("utf-8", "replace").split(maxsplit=1)
            os.kill(int(pid), 0)
            yield ProgramRun(int(pid), command.strip(), Folder(folder, onlooker=True).totals())
