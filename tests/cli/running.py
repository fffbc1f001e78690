"""`tidegate run` as a process, and programs for it to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SRC = str(Path(__file__).parents[2] / "src")
TIDEGATE = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {SRC!r}); from tidegate.cli.main import main; main()",
]
"""The command; what it starts finds tidegate by itself."""

RUN = [*TIDEGATE, "run"]
PYTHON = sys.executable


def environ(**more: str) -> dict[str, str]:
    """This process's environment without what would change a run, where the children find tidegate, and `more`."""
    changing = ("TIDEGATE_", "COVERAGE_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    return {**kept, "PYTHONPATH": SRC, "TERM": "xterm", **more}


def run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None, given: str = "") -> Done:
    """What `tidegate run COMMAND` came to."""
    done = subprocess.run(
        [*RUN, *command], env=env or environ(), cwd=cwd, input=given, capture_output=True, text=True, timeout=120
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
