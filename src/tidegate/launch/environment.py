"""Environment of the processes of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
        made[DIGEST_KEY] = os.urandom(16).hex()
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
