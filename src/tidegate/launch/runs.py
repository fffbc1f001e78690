"""The runs under way on this machine: each keeps its counts in a folder of its own, below the temporary one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegate.launch.totals import Folder, Totals

PREFIX = "tidegate-run-"
COMMAND = "command"
"""The file in a run's folder that says which process it is of, and what that runs."""


class Run(NamedTuple):
    """A run under way: the process of `tidegate run`, the name of its command, and what its processes do now."""

    pid: int
    command: str
    totals: Totals


def under_way(below: str | None = None) -> Iterator[Run]:
    """This user's runs in the folder `below` (by default the temporary one), as far as each is still there."""
    for folder in sorted(Path(below or tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):
            if folder.stat().st_uid != os.getuid():
                continue
            pid, command = (folder / COMMAND).read_text("utf-8", "replace").split(maxsplit=1)
            os.kill(int(pid), 0)
            yield Run(int(pid), command.strip(), Folder(folder, onlooker=True).totals())
