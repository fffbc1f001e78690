"""`tidegate experiment …`, in this process and as one of its own, and files for it to run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from typer.testing import CliRunner

from tests.cli.running import TIDEGATE, environ
from tests.warm import WarmProcess, warm_python
from tidegate.cli.commands import app

DOUBLES = """
import asyncio
from tidegate.experiments import Experiment


async def answer(row):
    await asyncio.sleep({seconds})
    return row["n"] * 2


def judge(row, output):
    return output == row["n"] * 2


experiment = Experiment("doubles", "rows.jsonl", answer, [judge], repetitions=2)
"""


class Place:
    """A working directory with an experiment in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        """A file there."""
        (self.path / name).write_text(text)

    def rows(self, count: int) -> None:
        """A dataset of `{"n": 0}` and so on."""
        self.write("rows.jsonl", "".join(json.dumps({"n": number}) + "\n" for number in range(count)))

    def doubles(self, count: int = 20, seconds: float = 0.0) -> None:
        """An experiment of so many rows, each of which takes so long."""
        self.rows(count)
        self.write("my_eval.py", DOUBLES.format(seconds=seconds))

    def run(self, *words: str, **env: str) -> Done:
        """What `tidegate experiment WORDS` came to, in this process."""
        result = CliRunner().invoke(app, ["experiment", *words], env={"COLUMNS": "200", **env})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def process(self, *words: str, **env: str) -> Done:
        """What it came to as a process."""
        done = subprocess.run(
            [*warm_python(), *TIDEGATE[1:], "experiment", *words],
            env=environ(COLUMNS="200", **env),
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def started(self, *words: str, **env: str) -> Iterator[WarmProcess]:
        """Start the process of `tidegate experiment WORDS`; it is gone at the end whatever happens.

        Twenty functions run at once, so that the rows and their sleeps decide the time of a run, not the machine.
        """
        with WarmProcess(
            [*TIDEGATE[1:], "experiment", *words],
            env=environ(COLUMNS="200", **{"TIDEGATE_EXPERIMENTS_MAX_CONCURRENCY": "20", **env}),
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def shown(self, name: str = "doubles") -> dict[str, Any]:
        """What `show --json` says."""
        done = self.run("show", name, "--json")
        assert done.code == 0, done.err
        told: dict[str, Any] = json.loads(done.out)
        return told


def read_until(stream: IO[str] | None, text: str) -> str:
    """Read a process's output up to the end of the line that has `text`, and nothing more.

    `communicate` returns only what is left in the pipe: `readline` may take more lines out of it than it returns.
    """
    assert stream is not None
    read = b""
    while not (read.endswith(b"\n") and text in read.splitlines()[-1].decode()):
        piece = os.read(stream.fileno(), 1)
        assert piece, read
        read += piece
    return read.decode()


class Done:
    """An ended command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def complaint(self) -> str:
        """What it could not do: its one line on standard error that begins with our name."""
        lines = [line for line in self.err.splitlines() if line.startswith("tidegate: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]
