"""Counts of a program that uses tidegate without `tidegate run`, in a folder that `tidegate status` finds.

The folder is created for the first key. A forked child counts in the folder of its parent, in a separate file. The last
of these processes removes the folder when it ends. The next program removes the folder of killed ones.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.admission import fork
from tidegate.admission.redaction import clean_arguments
from tidegate.launch.runs import hold, new_folder, remove, write_command
from tidegate.launch.shared_counters import CounterFile


def typed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command as a user types it: an installed script, such as pytest, without interpreter and folder."""
    interpreter, script = (Path(each) for each in (*arguments, "", "")[:2])
    if script.is_absolute() and script.parent == interpreter.parent:
        return [script.name, *arguments[2:]]
    return arguments


class ProcessStatus:
    """Folder of this process, from the first key on; without one, where none can be created, nothing is counted."""

    def __init__(self) -> None:
        self._counters: CounterFile | None = None
        self._tried = False
        # At a fork the counters leave the rows of the parent before a registry clears its queues.
        fork.call_first(self._forked)

    def on_new_queue(self, queue: Any) -> None:
        """Share the counts of the key queue `queue`."""
        if not self._tried:
            self._tried = True
            self._begin()
        if self._counters is not None:
            self._counters.track(queue)

    def _begin(self) -> None:
        try:
            folder = new_folder()
            # The lock is held until the process and its forked children have ended, however they end.
            self._lock = _FolderLock(folder)
            atexit.register(self._lock.release)
            multiprocessing = sys.modules.get("multiprocessing.util")
            if multiprocessing is not None:
                # A worker of multiprocessing ends without `atexit`.
                multiprocessing.Finalize(None, self._lock.release, exitpriority=0)
            write_command(Path(folder), shlex.join(clean_arguments(typed(sys.orig_argv))))
        except OSError:
            return
        self._counters = CounterFile(folder)

    def _forked(self) -> None:
        if self._counters is not None:
            self._counters.forked()


class _FolderLock:
    """Lock on a folder, which this process shares with its forked children."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._descriptor = hold(folder)

    def release(self) -> None:
        """Give the lock up, and remove the folder where no other process has it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
                remove(self._folder)
