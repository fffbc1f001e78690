"""Private folders of runs, in which their processes count, and the runs under way on this machine.

Each run has its own folder below the temporary one, and removes it at its end. The process of the run holds a lock on
the folder, which the kernel releases however the process ends. The next run removes the folder of a killed one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.redaction import clean
from tidegate.launch.shared_counters import runs, started
from tidegate.launch.shared_file import UnreadableFile, packed, unpacked
from tidegate.launch.totals import Folder, Totals, note_others

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


def new_folder() -> str:
    """Create a folder for this process, which the caller holds and removes; raise OSError where none can be created."""
    _sweep(Path(tempfile.gettempdir()), time.time())
    return tempfile.mkdtemp(prefix=PREFIX)


def hold(folder: str, kind: int = fcntl.LOCK_EX) -> int:
    """Take the lock of a folder and return its descriptor, which holds it; raise BlockingIOError where it is held.

    A forked child holds it too, until it ends or closes the descriptor.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(parent: Path, now: float) -> None:
    """Remove the folders of this user's killed runs."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < now - YOUNG:
                remove(str(folder))


def remove(folder: str) -> None:
    """Remove a folder that no process holds; raise BlockingIOError for another."""
    with _held(folder):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: str, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of a folder during this block; raise BlockingIOError where another process has it."""
    descriptor = hold(folder, kind)
    try:
        yield
    finally:
        os.close(descriptor)


PREFIX = "tidegate-run-"
COMMAND = "command"
"""File in a run's folder with the identifier of its process, its command line and its beginning."""

SHOWN_COMMAND = 200
"""Characters of a command line that are kept. Raising it lengthens the output of `tidegate status`. Chosen: it tells
runs apart."""


class ProgramRun(NamedTuple):
    """Run under way: its process, its command line, its current counts, and its duration in seconds.

    The process is that of `tidegate run`, or a program that uses tidegate itself.

    An `unreadable` run has only a command, which names its folder; `unreadable` is the reason.
    """

    pid: int
    command: str
    totals: Totals
    elapsed: float = 0.0
    unreadable: str = ""


def write_command(folder: Path, command: str) -> None:
    """Name this process and its command line in the run's folder, without the credentials that it may contain."""
    pid = os.getpid()
    known = {
        "pid": pid,
        "start": started(pid),
        "command": clean(command, SHOWN_COMMAND),
        "began_at": time.monotonic(),
    }
    (folder / COMMAND).write_bytes(packed(json.dumps(known).encode()))


def live_runs(below: str | None = None) -> Iterator[ProgramRun]:
    """Return this user's live runs in the folder `below` (by default the temporary one)."""
    found = []
    for folder in sorted(Path(below or tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            run = _live_run(folder)
            if run is not None:
                found.append(run)
    note_others(run.totals for run in found)
    return iter(found)


def _live_run(folder: Path) -> ProgramRun | None:
    """Return the run of a folder; None where it has ended or is just beginning.

    It lasts as long as a process holds its lock. The lock tells it from another process that got the same number.
    """
    try:
        content = bytes(unpacked((folder / COMMAND).read_bytes()))
        if not content:
            return None
        known = json.loads(content)
        pid, command, elapsed = int(known["pid"]), str(known["command"]), time.monotonic() - float(known["began_at"])
        start = int(known.get("start", 0))
    except (ValueError, KeyError, TypeError) as error:
        if not _is_held(folder):
            return None
        why = str(error) if isinstance(error, UnreadableFile) else "its file has no command"
        return ProgramRun(0, f"run in {folder}", Totals({}, False), 0.0, why)
    if not _is_held(folder):
        return None
    totals = Folder(folder, onlooker=True).totals()
    if not runs(pid, start):
        # Forked children outlive the program that began the run: one of them stands for it.
        if not totals.pids:
            return None
        pid = min(totals.pids)
    return ProgramRun(pid, command, totals, max(0.0, elapsed))


def _is_held(folder: Path) -> bool:
    try:
        # Shared: two processes that look at once do not take each other for the run's own.
        with _held(str(folder), fcntl.LOCK_SH):
            return False
    except BlockingIOError:
        return True
