"""Runs of `tests.shared_log.hammer`, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def hammered(folder: Path, mode: str, count: int, seed: int, members: str) -> dict[str, int]:
    """The findings of one trial: numbers by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.shared_log.hammer", str(folder / "log"), mode, str(count), str(seed), members],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout)
    assert {name: found[name] for name in ("broken", "errors", "failed")} == {
        "broken": 0,
        "errors": 0,
        "failed": 0,
    }, (found, done.stderr[-4000:])
    assert found["agreed"], done.stderr[-4000:]
    return found
