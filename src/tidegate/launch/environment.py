"""Environment of the processes of a run, and the limits that they learn.

The limits that the processes of a run learn, from its beginning to its end: `tidegate run --state FILE`.

Each process leaves what its registries learned in a folder of the run when it ends by itself; the run puts them
together, over what the file had before. A process that is killed leaves nothing.

The environment in which a command's Python processes put tidegate on.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.fork import followed
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import ConfigurationError
from tidegate.saved_state import VERSION, LearnedState

SITE = str(Path(__file__).with_name("site"))
"""The folder that goes first on PYTHONPATH (ddtrace-run, opentelemetry-instrument: the same)."""

RUN_DIR = "TIDEGATE_RUN_DIR"
"""Where the processes of one run keep their counts: a private folder that exists as long as the run."""

DIGEST_KEY = "TIDEGATE_DIGEST_KEY"
INITIAL_STATE = "TIDEGATE_INITIAL_STATE"

STATE_DIR = "TIDEGATE_STATE_DIR"
"""Where the processes of one run leave what they learned, under `--state`: a private folder."""


class StateLocations(NamedTuple):
    """Where processes read what an earlier run learned (empty: nowhere), and the folder for what they learn."""

    file: str
    folder: str


def environment(given: Mapping[str, str], run_dir: str | None, learned: StateLocations | None = None) -> dict[str, str]:
    """`given` with our folder first on PYTHONPATH and, where there is one, the folder for the counts.

    With `learned` processes begin with what is in its file, and leave what they learned in its folder.

    One digest key is shared by the processes of a run, so that a credential is the same key in all of them.
    """
    path = given.get("PYTHONPATH", "")
    # An empty part of a path that is not empty is the working directory.
    others = [each for each in path.split(os.pathsep) if each != SITE] if path else []
    made = {**given, "PYTHONPATH": os.pathsep.join([SITE, *others])}
    if not made.get(DIGEST_KEY, "").strip():
        made[DIGEST_KEY] = secrets.token_hex(16)
    if run_dir is not None:
        made[RUN_DIR] = run_dir
    if learned is not None:
        made[STATE_DIR] = learned.folder
        made.pop(INITIAL_STATE, None)
        if learned.file:
            made[INITIAL_STATE] = learned.file
    return made


def running(given: Mapping[str, str]) -> bool:
    """Return whether a run around this one counts already."""
    outer = given.get(RUN_DIR, "")
    return bool(outer) and Path(outer).is_dir()


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

    def begin(self, folder: str) -> StateLocations:
        """Where the processes of a run begin and end, if `folder` is the run's own."""
        return StateLocations(str(self._path) if self._readable and not self.outdated else "", folder)

    def end(self, folder: str) -> None:
        """Writes what was learned by those who left it in `folder`, the latest over the earlier; raises `OSError`."""
        learned = LearnedState() if self.outdated else self._earlier
        found = sorted(Path(folder).glob(f"*{SUFFIX}"))
        for path in found:
            learned = LearnedState.read(path).over(learned)
        if found:
            learned.write(self._path)
