"""Environment of the processes of a run, and the limits that they learn for `tidegate run --state FILE`.

Each process saves the learned limits of its registries to a folder of the run when it ends by itself. The run merges
these files over the earlier content of the state file. A process that is killed saves nothing.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.process import registered
from tidegate.admission.saved_state import VERSION, LearnedState
from tidegate.errors import ConfigurationError
from tidegate.shared_log import AUTO, has_secret

SITE = str(Path(__file__).with_name("site"))
"""The folder that is put first on PYTHONPATH (ddtrace-run and opentelemetry-instrument do the same)."""

RUN_DIR = "TIDEGATE_RUN_DIR"
"""Variable with the private folder in which the processes of one run keep their counts; it is removed with the run."""

DIGEST_KEY = "TIDEGATE_DIGEST_KEY"
SHARE = "TIDEGATE_SHARE"
INITIAL_STATE = "TIDEGATE_INITIAL_STATE"

STATE_DIR = "TIDEGATE_STATE_DIR"
"""Variable with the private folder in which the processes of one run save their learned limits, under `--state`."""


class StateLocations(NamedTuple):
    """State file of an earlier run (empty: none), and the folder in which processes save their learned limits."""

    file: str
    folder: str


def environment(given: Mapping[str, str], run_dir: str | None, learned: StateLocations | None = None) -> dict[str, str]:
    """Return `given` with the site folder first on PYTHONPATH, and with the folder for the counts, if any.

    With `learned`, processes start from the limits in its file and save their own in its folder. All processes of a run
    have one digest key, so that a credential has the same key in each.
    """
    path = given.get("PYTHONPATH", "")
    # An empty part of a path that is not empty is the working directory.
    others = [each for each in path.split(os.pathsep) if each != SITE] if path else []
    made = {**given, "PYTHONPATH": os.pathsep.join([SITE, *others])}
    if not made.get(DIGEST_KEY, "").strip() and not has_secret(made.get(SHARE, "").strip() or AUTO):
        made[DIGEST_KEY] = secrets.token_hex(16)
    if run_dir is not None:
        made[RUN_DIR] = run_dir
    if learned is not None:
        made[STATE_DIR] = learned.folder
        made.pop(INITIAL_STATE, None)
        if learned.file:
            made[INITIAL_STATE] = learned.file
    return made


def runs_inside(given: Mapping[str, str]) -> bool:
    outer = given.get(RUN_DIR, "")
    return bool(outer) and Path(outer).is_dir()


SUFFIX = ".learned"


def save_learned_limits(folder: str) -> None:
    """Save the learned limits of this process's registries to `folder`; ignore a failure to write."""
    # `tidegate run`, which imports this module too, starts sooner without the code of calls.
    from tidegate.admission.registry import RateLimitRegistry

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
