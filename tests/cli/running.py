"""`tidegate run` as a process, and programs for it to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.constants import VARIABLE
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
SRC = str(ROOT / "src")
START = f"""
import os, sys
sys.path.insert(0, {SRC!r})
if "{VARIABLE}" in os.environ:
    sys.path.append({str(ROOT)!r})
    from tests.constants import replace_named
    replace_named()
from tidegate.cli.main import main
main()
"""
TIDEGATE = [sys.executable, "-c", START]
"""The command; what it starts finds tidegate by itself. It replaces the constants that its environment names."""

RUN = [*TIDEGATE, "run"]
PYTHON = sys.executable


def environ(**more: str) -> dict[str, str]:
    """This process's environment without what would change a run, where the children find tidegate, and `more`."""
    changing = ("TIDEGATE_", "PYTEST_", "COVERAGE_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    return {**kept, "PYTHONPATH": SRC, "TERM": "xterm", **more}


def run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None, given: str = "") -> Done:
    """What `tidegate run COMMAND` came to."""
    done = subprocess.run(
        [*warm_python(), *RUN[1:], *command],
        env=env or environ(),
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Done(done.returncode, done.stdout, done.stderr.splitlines())


class Done:
    """An ended run: its exit code, its output, and its lines on standard error."""

    def __init__(self, code: int, out: str, lines: list[str]) -> None:
        self.code = code
        self.out = out
        self.lines = lines

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else ""
