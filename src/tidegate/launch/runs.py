"""Private folders of runs, in which their processes count, and the runs under way on this machine.

Each run has its own folder below the temporary one, and removes it at its end. The process of the run holds a lock on
the folder, which the kernel releases however the process ends. The next run removes the folder of a killed one.

A process that cannot install tidegate writes the reason to a file in the folder, and removes it after a later success.
A process with ungoverned calls to inference paths counts them in its counter file by host alone.

A program that uses tidegate without `tidegate run` creates such a folder for its first key. A forked child counts in
the folder of its parent, in a separate file. The last of these processes removes the folder when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.hooks import REFUSED, SOCKET
from tidegate.admission.redaction import clean
from tidegate.launch import IMPORTED, UNGOVERNED
from tidegate.launch.totals import Folder, KeyTotal, Totals, note_others
from tidegate.shared_file import FileKind, UnreadableFile, close_and_find_held, lock, packed, unpacked
from tidegate.transports.imports import AT_OWN_HOSTS, SHARED, UNGOVERNABLE

WITHOUT = "without-"
"""Prefix of the files that `site/sitecustomize.py` writes for a Python without tidegate."""


class Ungoverned(NamedTuple):
    """Ungoverned calls by host, calls to further hosts, and the reason of each ungoverned process.

    `sockets` counts websocket sessions with inference servers by host, `refused` the refused requests to their other
    endpoints. `imported` are the modules by which the processes could send calls, governed and others.
    """

    hosts: Counter[str]
    others: int = 0
    processes: tuple[str, ...] = ()
    sockets: Counter[str] = Counter()  # noqa: RUF012  # never changed
    imported: frozenset[str] = frozenset()
    refused: Counter[str] = Counter()  # noqa: RUF012  # never changed

    @property
    def ways(self) -> frozenset[str]:
        """Return the imported modules that cannot be governed; the ones with many uses only where no other is."""
        others = self.imported & UNGOVERNABLE.keys()
        return others - SHARED or (others if others == self.imported else frozenset())

    @property
    def at_own_hosts(self) -> frozenset[str]:
        """Return the imported SDKs that are governed at their own hosts alone."""
        return self.imported & AT_OWN_HOSTS.keys()

    @property
    def calls(self) -> int:
        return self.hosts.total() + self.others


def read_ungoverned(folder: Path, counts: Counter[str]) -> Ungoverned:
    """Return the reasons of a run's processes, with their counts of ungoverned calls by host."""
    found: dict[str, Counter[str]] = {SOCKET: Counter(), REFUSED: Counter(), "": Counter()}
    for name, number in counts.items():
        prefix = next(prefix for prefix in found if name.startswith(prefix))
        found[prefix][name.removeprefix(prefix)] += number
    hosts = found[""]
    others = hosts.pop("", 0)
    left = (*sorted(folder.glob(f"{UNGOVERNED}*")), *sorted(folder.glob(f"{WITHOUT}*")))
    reasons = tuple(path.read_text("utf-8", "replace") for path in left)
    imported = frozenset(path.name.removeprefix(IMPORTED) for path in folder.glob(f"{IMPORTED}*"))
    return Ungoverned(hosts, others, reasons, found[SOCKET], imported, found[REFUSED])


YOUNG_FOLDER_SECONDS = 60.0
"""Seconds in which a new folder may still be without a lock; younger folders are never removed. Chosen: far above the
time between creating and locking a folder."""


@contextlib.contextmanager
def run_folder() -> Iterator[str]:
    """Create a folder for one run, and remove it at the end; raise OSError where none can be created.

    This process shares the lock of the folder with its forked children. The kernel gives it back when the last of them
    has ended, however it ends.
    """
    _sweep(Path(tempfile.gettempdir()), time.time())
    path = tempfile.mkdtemp(prefix=PREFIX)
    descriptor = _opened(path)
    lock(descriptor)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.close(descriptor)
            _remove_free(path)


def _sweep(parent: Path, now: float) -> None:
    """Remove the folders of this user's killed runs."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < now - YOUNG_FOLDER_SECONDS:
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

SHOWN_COMMAND_CHARACTERS = 200
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
        "command": clean(command, SHOWN_COMMAND_CHARACTERS),
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
