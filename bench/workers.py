"""Workers of pytest-xdist and of `multiprocessing` (spawn) at 120 requests a minute, 10 of them at once.

    python -m bench.workers [--seeds 3]

The programs are those of `examples/engines`. They share the limit by default, or each decides alone (`off`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.common import Check, conclude, table
from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "engines"
ROWS = 120
MOST_REFUSED = 0.01
"""Refusals for each call where the workers share."""

PATIENCE = 400.0
"""Seconds after which a program is given up."""

PROGRAMS = {
    "pytest -n 4": ("-m", "pytest", "-q", "-n", "4", "-p", "no:cacheprovider", "-c", os.devnull,
                    "--rootdir", str(EXAMPLES), str(EXAMPLES / "xdist_calls.py")),
    "spawn, 4": (str(EXAMPLES / "spawned_processes.py"),),
}  # fmt: skip


def run(words: Sequence[str], share: str, seed: int) -> tuple[float, int]:
    """Return the refusals for each row of one run of a program, and the rows without an answer."""
    limits = (Limit(limit=120, window=60.0, burst=10),)
    scenario = Scenario(dialect="openai", limiters=limits, latency=Distribution.constant(0.1), seed=seed)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, SimulatorProcess(scenario) as simulator:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": simulator.openai_url,
            "OPENAI_API_KEY": "any",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(EXAMPLES))),
            "TIDEGATE_SHARE": share,
            "TIDEGATE_STATUS": "off",
        }
        ended = subprocess.run(
            [sys.executable, *words], env=environment, cwd=folder, stdout=subprocess.PIPE, timeout=PATIENCE, check=False
        )
        total = simulator.truth().total
    if ended.returncode and total.answered == ROWS:
        raise RuntimeError(ended.stdout.decode()[-2000:])
    return total.refusals / ROWS, ROWS - total.answered


def main() -> int:
    """Print the table; return 1 where a bound is missed by workers that share."""
    parser = argparse.ArgumentParser(description="Workers of pytest-xdist and multiprocessing at one key")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default %(default)s)")
    given = parser.parse_args()
    rows, asked, figures = [], list[Check](), dict[str, object]()
    for name, words in PROGRAMS.items():
        for share in ("off", "auto"):
            found = [run(words, share, seed) for seed in range(given.seeds)]
            refused, lost = statistics.median(each for each, _ in found), max(each for _, each in found)
            figures[f"{name}, {share}"] = found
            rows.append([name, share, f"{refused:.4f}", str(lost)])
            if share == "auto":
                asked.append(Check(f"{name}: 429s for each call", refused, MOST_REFUSED))
                asked.append(Check(f"{name}: rows lost", lost, 0))
    table(f"Workers at 120 requests a minute, burst 10 (medians of {given.seeds})", ("", "share", "429s", "lost"), rows)
    return conclude("workers", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
