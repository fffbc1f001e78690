"""The environment in which a command's Python processes put tidegate on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SITE = str(Path(__file__).with_name("site"))
"""The folder that goes first on PYTHONPATH (ddtrace-run, opentelemetry-instrument: the same)."""

RUN_DIR = "TIDEGATE_RUN_DIR"
"""Where the processes of one run keep their counts: a private folder that exists as long as the run."""

DIGEST_KEY = "TIDEGATE_DIGEST_KEY"
INITIAL_STATE = "TIDEGATE_INITIAL_STATE"

STATE_DIR = "TIDEGATE_STATE_DIR"
"""Where the processes of one run leave what they learned, under `--state`: a private folder."""


class Learned(NamedTuple):
    """Where processes read what an earlier run learned (empty: nowhere), and the folder for what they learn."""

    file: str
    folder: str


def environment(given: Mapping[str, str], run_dir: str | None, learned: Learned | None = None) -> dict[str, str]:
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
