"""Private folders of runs, in which their processes count, and the runs under way on this machine.

Each run has its own folder below the temporary one, and removes it at its end. The process of the run holds a lock on
the folder, which the kernel releases however the process ends. The next run removes the folder of a killed one.
"""

from __future__ import annotations

import contextlib
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
from tidegate.launch.totals import Folder, KeyTotal, Totals, note_others
from tidegate.shared_file import FileKind, UnreadableFile, close_and_find_held, lock, packed, unpacked

YOUNG = 60.0
"""Seconds in which a new folder may still be without a lock; younger folders are never removed. Chosen: far above the
time between creating and locking a folder."""


class RunFolder:
    """Folder of one run, and the lock on it, which this process shares with its forked children.

    The kernel gives the lock back when the last of them has ended, however it ends.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()), time.time())
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._descriptor = _opened(self.path)
        lock(self._descriptor)

    def release(self) -> None:
        """Give the lock up, and remove the folder where no other process has it; a second call has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
                _remove_free(self.path)


@contextlib.contextmanager
def run_folder() -> Iterator[str]:
    """Create a folder for one run, and remove it at the end; raise OSError where none can be created."""
    folder = RunFolder()
    try:
        yield folder.path
    finally:
        folder.release()


def _sweep(parent: Path, now: float) -> None:
    """Remove the folders of this user's killed runs."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < now - YOUNG:
                _remove_free(str(folder))


def _opened(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_free(folder: str) -> None:
    """Remove a folder that no process holds."""
    descriptor = _opened(folder)
    try:
        if lock(descriptor):
            # A process that outlives the run may still write there.
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


PREFIX = "tidegate-run-"
COMMAND = "command"
"""File in a run's folder with the identifier of its process, its command line and its beginning."""

SHOWN_COMMAND = 200
"""Characters of a command line that are kept. Chosen: it tells runs apart."""


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


def write_command(folder: Path, command: str, *, forks: bool = False) -> None:
    """Name this process and its command line in the run's folder, without the credentials that it may contain.

    The run of a process that `forks` lasts until its children have ended, too.
    """
    known = {
        "pid": os.getpid(),
        "forks": forks,
        "command": clean(command, SHOWN_COMMAND),
        "began_at": time.monotonic(),
    }
    (folder / COMMAND).write_bytes(packed(FileKind.COMMAND, json.dumps(known).encode()))


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


def keys_of(tag: str) -> list[KeyTotal]:
    """Return the present counts of this user's live run whose command ends with `tag`, by key."""
    run = next((run for run in live_runs() if run.command.endswith(tag)), None)
    return [] if run is None else sorted(run.totals.keys.values(), key=lambda each: each.key)


def _live_run(folder: Path) -> ProgramRun | None:
    """Return the run of a folder;

    It lasts as long as a process holds its lock.
    """
    data = (folder / COMMAND).read_bytes()
    if not data or not close_and_find_held(_opened(str(folder))):
        return None
    try:
        known = json.loads(bytes(unpacked(FileKind.COMMAND, data)))
        pid, command, elapsed = int(known["pid"]), str(known["command"]), time.monotonic() - float(known["began_at"])
    except (ValueError, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, UnreadableFile) else "its file has no command"
        return ProgramRun(0, f"run in {folder}", Totals(), 0.0, why)
    totals = Folder(folder, onlooker=True).totals()
    if known.get("forks") and pid not in totals.pids:
        # Forked children outlive the program that began the run: one of them stands for it.
        if not totals.pids:
            return None
        pid = min(totals.pids)
    return ProgramRun(pid, command, totals, max(0.0, elapsed))
