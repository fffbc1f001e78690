"""A long run: memory all the way, the first dispatch, and a resume after the process was killed half way."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.runner import speed

MEGA = 1e6


@dataclass
class Part:
    """One process's part of a run: seconds until its first dispatch, from before the process was there.

    `resident` has the resident memory in MB, sampled once a second.
    """

    first: float = 0.0
    resident: list[float] = field(default_factory=list)
    done: int = 0
    seconds: float = 0.0
    ended: str = ""

    @property
    def growth(self) -> float:
        """The median of the last quarter of the samples over that of the second quarter."""
        count = len(self.resident)
        later = statistics.median(self.resident[3 * count // 4 :])
        return later / statistics.median(self.resident[count // 4 : max(count // 2, count // 4 + 1)])


def write_dataset(path: Path, rows: int) -> None:
    """A JSONL file."""
    with path.open("w") as file:
        file.writelines(json.dumps(speed.row(number)) + "\n" for number in range(rows))


def run(database: str, dataset: Path, until: int | None = None) -> Part:
    """A process that begins or goes on; it is killed when so many results are durable, if a number is given."""
    part = Part()
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.runner.part", database, str(dataset)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "first":
                part.first = float(rest) - began
            elif word == "ended":
                part.ended = rest
            else:
                part.done = int(rest)
                part.resident += resident(process.pid)
                if until is not None and part.done >= until:
                    process.kill()
                    break
    part.seconds = time.monotonic() - began
    return part


def resident(pid: int) -> list[float]:
    """The resident memory of a process in MB; empty where it has just ended."""
    listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return [int(each) * 1024 / MEGA for each in listed.stdout.split()]
