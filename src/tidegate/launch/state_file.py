"""Limits that the processes of a run learn, and the file that keeps them (`tidegate run --state FILE`).

Each process saves the learned limits of its registries to a folder of the run when it ends by itself. The run merges
these files over the earlier content of the state file. A process that is killed saves nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidegate.admission.process import registered
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.saved_state import VERSION, LearnedState
from tidegate.errors import ConfigurationError
from tidegate.launch.environment import StateLocations

SUFFIX = ".learned"


def save_learned_limits(folder: str) -> None:
    """Save the learned limits of this process's registries to `folder`; ignore a failure to write."""
    learned = LearnedState()
    for registry in registered():
        if isinstance(registry, RateLimitRegistry):
            learned = registry.export_state().over(learned)
    if learned.keys:
        try:
            learned.write(Path(folder) / f"{time.time_ns()}-{os.getpid()}{SUFFIX}")
        except OSError:
            return


class StateFile:
    """State file of `--state`; raises `ConfigurationError` for other content and for a missing folder."""

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
            raise ConfigurationError("--state", str(path), "its folder does not exist")

    @property
    def outdated(self) -> bool:
        return self._earlier.version != VERSION

    def begin(self, folder: str) -> StateLocations:
        """Return the locations for the processes of a run that has the private `folder`."""
        return StateLocations(str(self._path) if self._readable and not self.outdated else "", folder)

    def end(self, folder: str) -> None:
        """Merge the files that processes saved in `folder`, the latest over the earlier, and write the state file."""
        learned = LearnedState() if self.outdated else self._earlier
        found = sorted(Path(folder).glob(f"*{SUFFIX}"))
        for path in found:
            learned = LearnedState.read(path).over(learned)
        if found:
            learned.write(self._path)
