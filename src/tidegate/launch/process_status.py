"""Folder of this process for `tidegate status`, where it uses tidegate without `tidegate run`."""

from __future__ import annotations

import atexit
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tidegate.admission.redaction import clean_arguments
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.runs import run_folder, write_command


def typed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command as a user types it: an installed script, such as pytest, without interpreter and folder."""
    interpreter, script = (Path(each) for each in (*arguments, "", "")[:2])
    if script.is_absolute() and script.parent == interpreter.parent:
        return [script.name, *arguments[2:]]
    return arguments


_own_folders: list[ExitStack] = []
"""Open folder of this process. A child of CPython 3.13 drops its exit functions, and must not drop the lock with
them."""


def own_counters() -> ProcessCounters | None:
    """Return counters of this process in a new folder; None where no folder can be created."""
    folder = ExitStack()
    try:
        path = folder.enter_context(run_folder())
        _own_folders.append(folder)
        atexit.register(folder.close)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            # A worker of multiprocessing ends without `atexit`.
            multiprocessing.Finalize(None, folder.close, exitpriority=0)
        write_command(Path(path), shlex.join(clean_arguments(typed(sys.orig_argv))), forks=True)
    except OSError:
        return None
    return ProcessCounters(path)
