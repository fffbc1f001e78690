"""One program of a user in a process of its own: what it finds of this machine's variables, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

AMBIENT = ("OPENAI_", "ANTHROPIC_", "AZURE_", "GOOGLE_", "GEMINI_", "AWS_", "TIDEGATE_", "PYTEST_")
"""Prefixes of variables that would change what a program does, or name an account."""


class Finished(NamedTuple):
    """The end of a program: its exit code (None: it was ended here), what it printed, and its `seconds`."""

    exit_code: int | None
    output: str
    complaints: str
    seconds: float


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return this machine's variables without the ambient ones, and the given ones."""
    return {name: value for name, value in os.environ.items() if not name.startswith(AMBIENT)} | dict(given)


def finish(command: Sequence[str], env: Mapping[str, str], seconds: float, cwd: Path | None = None) -> Finished:
    """Run a command to its end, and end it after `seconds`, with all that it started."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        took = time.monotonic() - began
        output.seek(0)
        complaints.seek(0)
        return Finished(code, output.read(), complaints.read(), took)
