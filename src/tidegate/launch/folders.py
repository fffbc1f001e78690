"""The private folder of a run, in which its processes count: gone with the run, or with the next one after a kill -9.

Whoever runs holds a lock on its folder, which the kernel lets go of however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tidegate.launch.runs import PREFIX

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
