"""Folder of this process for `tidegate status`, where it uses tidegate without `tidegate run`."""

from __future__ import annotations

import atexit
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.admission import process
from tidegate.admission.redaction import clean_arguments
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.runs import RunFolder, write_command


def typed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command as a user types it: an installed script, such as pytest, without interpreter and folder."""
    interpreter, script = (Path(each) for each in (*arguments, "", "")[:2])
    if script.is_absolute() and script.parent == interpreter.parent:
        return [script.name, *arguments[2:]]
    return arguments


class ProcessStatus:
    """Folder of this process, from the first key on; without one, where none can be created, nothing is counted."""

    def __init__(self) -> None:
        self._counters: ProcessCounters | None = None
        self._tried = False
        # At a fork the counters leave the rows of the parent before a registry clears its queues.
        process.call_first(self._forked)

    def on_new_queue(self, queue: Any) -> None:
        if not self._tried:
            self._tried = True
            self._begin()
        if self._counters is not None:
            self._counters.track(queue)

    def _begin(self) -> None:
        try:
            folder = RunFolder()
            atexit.register(folder.release)
            multiprocessing = sys.modules.get("multiprocessing.util")
            if multiprocessing is not None:
                # A worker of multiprocessing ends without `atexit`.
                multiprocessing.Finalize(None, folder.release, exitpriority=0)
            write_command(Path(folder.path), shlex.join(clean_arguments(typed(sys.orig_argv))), forks=True)
        except OSError:
            return
        self._counters = ProcessCounters(folder.path)

    def _forked(self) -> None:
        if self._counters is not None:
            self._counters.forked()
