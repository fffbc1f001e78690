"""Counts of a program that installed tidegate itself, in a folder that `tidegate status` finds.

The folder is created for the first key and removed when the process ends. The next one removes that of a killed
process. A forked child counts in the folder of its parent, in a separate file.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from tidegate.admission import fork
from tidegate.launch.runs import hold, new_folder, write_command
from tidegate.launch.shared_counters import CounterFile
from tidegate.redaction import clean_arguments


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
            atexit.register(_remove, folder, os.getpid())
            multiprocessing = sys.modules.get("multiprocessing.util")
            if multiprocessing is not None:
                # A worker of multiprocessing ends without `atexit`.
                multiprocessing.Finalize(None, _remove, (folder, os.getpid()), exitpriority=0)
            # The lock is held until the process ends, however it ends.
            hold(folder)
            write_command(Path(folder), shlex.join(clean_arguments(sys.orig_argv)))
        except OSError:
            return
        self._counters = CounterFile(folder)

    def _forked(self) -> None:
        if self._counters is not None:
            self._counters.forked()


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
