"""Workers of other engines at 120 requests a minute, 10 of them at once: pytest-xdist, `multiprocessing` (spawn), Ray.

    python -m bench.workers [--only NAME[;NAME…]] [--seeds 3]

The programs are those of `examples/engines`. They share the limit by default, by the setting that is named, or each
decides alone (`off`). The rows of Ray need the environment of `make engines`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bench.common import Check, conclude, table
from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "engines"
PER_SECOND, BURST = 2.0, 10
MOST_REFUSED, MOST_LONGER = 0.01, 1.05
"""Refusals for each call, and the ideal's time, where the workers share."""

PATIENCE = 400.0
"""Seconds after which a program is given up."""

RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


class Program(NamedTuple):
    """A program with the calls that it makes, and the values of the setting `share` to try.

    `longest` is the most times the ideal, where the program has all of its calls waiting from the first one on.
    """

    words: tuple[str, ...]
    rows: int
    shares: tuple[str, ...] = ("off", "auto")
    longest: float | None = None


PROGRAMS = {
    "pytest -n 4": Program(
        ("-m", "pytest", "-q", "-n", "4", "-p", "no:cacheprovider", "-c", os.devnull,
         "--rootdir", str(EXAMPLES), str(EXAMPLES / "xdist_calls.py")), 120),
    "spawn, 4": Program((str(EXAMPLES / "spawned_processes.py"),), 120),
    "Ray, 4 actors": Program((str(EXAMPLES / "ray_actors.py"),), 120, ("off", "auto", "ray"), MOST_LONGER),
    "Ray Data, HTTP": Program((str(EXAMPLES / "ray_data_http.py"),), 40, ("auto", "ray")),
}  # fmt: skip


class Outcome(NamedTuple):
    """Refusals for each row of one run, the rows without an answer, and the time of admission over the ideal's."""

    refused: float
    lost: int
    ratio: float


def run(program: Program, share: str, seed: int) -> Outcome:
    """Return the outcome of one run of a program."""
    limits = (Limit(limit=60 * PER_SECOND, window=60.0, burst=BURST),)
    scenario = Scenario(dialect="openai", limiters=limits, latency=Distribution.constant(0.1), seed=seed)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, SimulatorProcess(scenario) as simulator:
        environment = {
            **os.environ,
            **RAY,
            "OPENAI_BASE_URL": simulator.openai_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(EXAMPLES))),
            "TIDEGATE_SHARE": share,
            "TIDEGATE_STATUS": "off",
        }
        ended = subprocess.run(
            [sys.executable, *program.words], env=environment, cwd=folder, stdout=subprocess.PIPE, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        truth = simulator.truth()
    admitted = truth.admitted_at
    if not admitted or (ended.returncode and truth.total.answered == program.rows):
        raise RuntimeError(f"{program.words[-1]} ended with code {ended.returncode}: {ended.stdout.decode()[-2000:]}")
    lost = program.rows - truth.total.answered
    ideal = max(1, len(admitted) - BURST) / PER_SECOND
    return Outcome(truth.total.refusals / program.rows, lost, (admitted[-1] - admitted[0]) / ideal)


def main() -> int:
    """Print the table; return 1 where a bound is missed by workers that share."""
    parser = argparse.ArgumentParser(description="Workers of other engines at one key")
    parser.add_argument("--only", default="", help="programs by name, with semicolons between (default all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default %(default)s)")
    given = parser.parse_args()
    names = [name.strip() for name in given.only.split(";") if name.strip()] or list(PROGRAMS)
    if find_spec("ray") is None:
        names = [name for name in names if not name.startswith("Ray")]
        print("ray not found: its rows are left out; `make engines` installs it")
    rows, asked, figures = [], list[Check](), dict[str, object]()
    for name in names:
        program = PROGRAMS[name]
        for share in program.shares:
            found = [run(program, share, seed) for seed in range(given.seeds)]
            refused = statistics.median(one.refused for one in found)
            ratio = statistics.median(one.ratio for one in found)
            lost = max(one.lost for one in found)
            figures[f"{name}, {share}"] = found
            rows.append([name, share, f"{refused:.4f}", f"{ratio:.3f}", str(lost)])
            if share == "off":
                continue
            asked += [
                Check(f"{name}, {share}: 429s for each call", refused, MOST_REFUSED),
                Check(f"{name}, {share}: rows lost", lost, 0),
            ]
            if program.longest is not None:
                asked.append(Check(f"{name}, {share}: times the ideal", ratio, program.longest))
    header = ("", "share", "429s", "ratio", "lost")
    table(f"Workers at 120 requests a minute, burst 10 (medians of {given.seeds})", header, rows)
    return conclude("workers", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
