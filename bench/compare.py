"""Comparison of two experiments: how often its intervals hold the truth, and what 100,000 rows take.

    python -m bench.compare [--trials 1000] [--rows 100000]

Exit code 1 where an interval of 95 % holds the true difference in less than 93 or more than 97 of 100 trials, or where
the rows of one pair of experiments take more than 10 s. The database is an SQLite file in the folder for temporary
files (TMPDIR).
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import numpy.typing

from bench.common import Check, conclude, table
from tidegate.experiments.comparison import compare, intervals_of_means
from tidegate.experiments.storage import Store

LEAST, MOST = 0.93, 0.97
MOST_SECONDS = 10.0

Floats = numpy.typing.NDArray[numpy.float64]
Draw = Callable[[numpy.random.Generator, int], tuple[Floats, Floats]]
"""Scores of both experiments for some rows."""


def right(draw: numpy.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Scores of 0 and 1: B repeats the answer of A in 7 of 10 rows. B is better by .09."""
    before = draw.random(rows) < 0.5
    after = numpy.where(draw.random(rows) < 0.3, draw.random(rows) < 0.8, before)
    return before.astype(float), after.astype(float)


def graded(draw: numpy.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Grades of 1 to 5 of unequal rows. B is better by .1."""
    hard = draw.normal(3.0, 1.0, rows)
    return hard + draw.normal(0.0, 0.5, rows), hard + draw.normal(0.1, 0.8, rows)


def skewed(draw: numpy.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Scores with a heavy tail, such as lengths. B is greater by 1."""
    return draw.lognormal(0.0, 0.7, rows), draw.lognormal(0.0, 0.7, rows) + 1.0


TRIALS: dict[str, tuple[Draw, float, int]] = {
    "0 or 1, 100 rows": (right, 0.09, 100),
    "0 or 1, 10,000 rows": (right, 0.09, 10_000),
    "grades, 100 rows": (graded, 0.1, 100),
    "heavy tail, 200 rows": (skewed, 1.0, 200),
}


def held(draw: Draw, truth: float, rows: int, trials: int) -> float:
    """Return the share of trials whose interval of the difference holds the true one."""
    generator = numpy.random.default_rng(20)
    hits = 0
    for _ in range(trials):
        a, b = draw(generator, rows)
        low, high = intervals_of_means((b - a)[None, :], 0.95)[0]
        hits += low <= truth <= high
    return hits / trials


async def timed(rows: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of a comparison of two experiments with this number of rows, and its wins."""
    path = str(folder / "compared.db")
    store = await Store.open(path)
    try:
        a = await store.experiments.create("a", {}, 1, "rows")
        b = await store.experiments.create("b", {}, 1, "rows")
        await asyncio.to_thread(_fill, path, rows, ((a.id, a.dataset_id), (b.id, b.dataset_id)))
        began = time.perf_counter()
        found = await compare(store, a, store, b)
        return time.perf_counter() - began, float(found.outputs[0].wins)
    finally:
        await store.close()


def _fill(path: str, rows: int, experiments: tuple[tuple[int, int], ...]) -> None:
    draw = numpy.random.default_rng(5)
    at = "2026-11-24 12:00:00.000000"
    with sqlite3.connect(path) as database:
        for experiment, dataset in experiments:
            database.executemany(
                "INSERT INTO tidegate_dataset_rows (dataset_id, ordinal, name, digest, invalid)"
                " VALUES (?, ?, ?, NULL, '')",
                ((dataset, n, f"row-{n}") for n in range(rows)),
            )
            database.executemany(
                "INSERT INTO tidegate_runs (experiment_id, ordinal, repetition, status, output, attempts, seconds,"
                " epoch, finished_at) VALUES (?, ?, 0, 'ok', '1', 1, 0.5, 1, ?)",
                ((experiment, n, at) for n in range(rows)),
            )
            for evaluator, scores in (("right", draw.random(rows) < 0.5), ("grade", draw.random(rows))):
                database.executemany(
                    "INSERT INTO tidegate_annotations (experiment_id, ordinal, repetition, evaluator, output, status,"
                    " score, attempts, seconds, epoch, finished_at) VALUES (?, ?, 0, ?, ?, 'ok', ?, 1, 0.1, 1, ?)",
                    ((experiment, n, evaluator, evaluator, float(score), at) for n, score in enumerate(scores)),
                )


def main() -> int:
    """Run the trials, print both tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    checks: list[Check] = []
    lines: list[list[str]] = []
    for name, (draw, truth, rows) in TRIALS.items():
        share = held(draw, truth, rows, given.trials)
        lines.append([name, f"{share:.3f}"])
        checks.append(Check(f"{name}: share of 95 % intervals that hold the truth", share, LEAST, at_least=True))
        checks.append(Check(f"{name}: the same", share, MOST))
    table("Intervals that hold the truth", ("scores", "held"), lines)
    with tempfile.TemporaryDirectory() as folder:
        seconds, wins = asyncio.run(timed(given.rows, Path(folder)))
    print(f"\n{given.rows} rows with two evaluators: {seconds:.2f} s ({wins:.0f} wins)")
    checks.append(Check(f"seconds for {given.rows} rows", seconds, MOST_SECONDS))
    return conclude("compare", {"held": dict(lines), "seconds": seconds}, checks)


if __name__ == "__main__":
    raise SystemExit(main())
