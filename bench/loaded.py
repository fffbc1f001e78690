"""Rows over HTTP on a machine that does nothing else, and beside processes that burn its cores, in turns.

`python -m bench.lab --loaded` runs it. The quotient of the ratios says what a busy machine costs; both ratios have the
noise of the machine of that hour, which the turns share out evenly.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench import overhttp
from bench.common import RESULTS, Check, conclude, markdown, table
from bench.measures import Run, figures
from bench.scenarios import Row

BURNING = 2
"""Processes that compute beside a loaded run."""

HEADER = ("", "quiet ratio", "loaded ratio", "quotient", "quiet 429s/call", "loaded 429s/call", "lost")

Rows = Mapping[str, Callable[[int], Row]]
"""Rows by name; each is a function of the seed."""


@contextmanager
def burning(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep so many processes computing until the end of the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def line(name: str, quiet: Sequence[Run], loaded: Sequence[Run]) -> list[str]:
    """Return a line of the table: medians over the seeds, the quotient of each seed's ratios, and all lost calls."""
    quotients = [after.ratio / before.ratio for before, after in zip(quiet, loaded, strict=True)]
    return [
        name,
        f"{statistics.median(run.ratio for run in quiet):.3f}",
        f"{statistics.median(run.ratio for run in loaded):.3f}",
        f"{statistics.median(quotients):.3f}",
        f"{statistics.median(run.refused_share for run in quiet):.4f}",
        f"{statistics.median(run.refused_share for run in loaded):.4f}",
        str(sum(run.lost for run in (*quiet, *loaded))),
    ]


def play(rows: Rows, seeds: Sequence[int], run: Callable[[Row, int], Run] = overhttp.run) -> int:
    """Run the rows in turns, print and write down their table; return 1 where a call was lost.

    Every other seed begins with the loaded run, so that a machine that becomes slower slows both.
    """
    found, checks, runs = [], [], dict[str, list[Run]]()
    for name, row in rows.items():
        quiet: list[Run] = []
        loaded: list[Run] = []
        for number, seed in enumerate(seeds):
            for is_loaded in (number % 2 == 1, number % 2 == 0):
                with burning(BURNING if is_loaded else 0):
                    (loaded if is_loaded else quiet).append(run(row(seed), seed))
        runs |= {f"{name}, quiet": quiet, f"{name}, loaded": loaded}
        found.append(line(name, quiet, loaded))
        checks.append(Check(f"{name}: calls lost", sum(each.lost for each in (*quiet, *loaded)), 0))
        print(".", end="", flush=True, file=sys.stderr)
    title = f"Over HTTP, quiet and beside {BURNING} burning processes (medians of {len(seeds)} seeds)"
    table(title, HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loaded.md").write_text(f"# {title}\n\n{markdown(HEADER, found)}")
    return conclude("loaded", figures(runs), checks, brief=True)
