"""The private folder of a run, in which its processes count: gone with the run, or with the next one after a kill -9.

Whoever runs holds a lock on its folder, which the kernel lets go of however it ends.

The runs under way on this machine: each keeps its counts in a folder of its own, below the temporary one.
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
"""Seconds for which a folder may be one whose owner has not come to lock it."""


@contextlib.contextmanager
def run_folder() -> Iterator[str]:
    """A new folder for one run, removed at its end; raises OSError where there can be none."""
    _sweep(Path(tempfile.gettempdir()), time.time())
    # A process that outlives the command may still write there.
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder, _held(folder):
        yield folder


def _sweep(parent: Path, now: float) -> None:
    """Removes what runs of this user left that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < now - YOUNG:
                with _held(str(folder)):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """The lock of a folder, for this block; raises BlockingIOError where another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


PREFIX = "tidegate-run-"
COMMAND = "command"
"""The file in a run's folder that says which process it is of, and what that runs."""


class ProgramRun(NamedTuple):
    """A run under way: the process of `tidegate run`, the name of its command, and what its processes do now."""

    pid: int
    command: str
    totals: Totals


def under_way(below: str | None = None) -> Iterator[ProgramRun]:
    """This user's runs in the folder `below` (by default the temporary one), as far as each is still there."""
    for folder in sorted(Path(below or tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):
            if folder.stat().st_uid != os.getuid():
                continue
            pid, command = (folder / COMMAND).read_text("utf-8", "replace").split(maxsplit=1)
            os.kill(int(pid), 0)
            yield ProgramRun(int(pid), command.strip(), Folder(folder, onlooker=True).totals())
