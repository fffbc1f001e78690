"""The environment in which a command's Python processes put tidegate on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

SITE = str(Path(__file__).with_name("site"))
"""The folder that goes first on PYTHONPATH (ddtrace-run, opentelemetry-instrument: the same)."""

RUN_DIR = "TIDEGATE_RUN_DIR"
"""Where the processes of one run keep their counts: a private folder that exists as long as the run."""

DIGEST_KEY = "TIDEGATE_DIGEST_KEY"


def environment(given: Mapping[str, str], run_dir: str | None) -> dict[str, str]:
    """`given` with our folder first on PYTHONPATH and, where there is one, the folder for the counts.

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
    return made


def running(given: Mapping[str, str]) -> bool:
    """Whether a run around this one counts already."""
    outer = given.get(RUN_DIR, "")
    return bool(outer) and Path(outer).is_dir()
