"""The limits that the processes of a run learn, from its beginning to its end: `tidegate run --state FILE`.

Each process leaves what its registries learned in a folder of the run when it ends by itself; the run puts them
together, over what the file had before. A process that is killed leaves nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidegate.admission.fork import followed
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import ConfigurationError
from tidegate.launch.environment import Learned
from tidegate.saved_state import VERSION, LearnedState

SUFFIX = ".learned"


def leave(folder: str) -> None:
    """Writes what the registries of this process have learned into `folder`; where that fails nobody minds."""
    learned = LearnedState()
    for registry in followed():
        if isinstance(registry, RateLimitRegistry):
            learned = registry.export_state().over(learned)
    if learned.keys:
        try:
            learned.write(Path(folder) / f"{time.time_ns()}-{os.getpid()}{SUFFIX}")
        except OSError:
            return


class StateFile:
    """The file of `--state`; raises `ConfigurationError` where it holds something else."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._earlier = LearnedState()
        self._readable = path.exists()
        if self._readable:
            try:
                self._earlier = LearnedState.read(path)
            except ValueError as error:
                raise ConfigurationError("--state", str(path), str(error)) from None
        elif not path.absolute().parent.is_dir():
            raise ConfigurationError("--state", str(path), "a file in a folder that is there")

    @property
    def outdated(self) -> bool:
        """Return whether it was written by another version of tidegate, whose states this one cannot read."""
        return self._earlier.version != VERSION

    def begin(self, folder: str) -> Learned:
        """Where the processes of a run begin and end, if `folder` is the run's own."""
        return Learned(str(self._path) if self._readable and not self.outdated else "", folder)

    def end(self, folder: str) -> None:
        """Writes what was learned by those who left it in `folder`, the latest over the earlier; raises `OSError`."""
        learned = LearnedState() if self.outdated else self._earlier
        found = sorted(Path(folder).glob(f"*{SUFFIX}"))
        for path in found:
            learned = LearnedState.read(path).over(learned)
        if found:
            learned.write(self._path)
