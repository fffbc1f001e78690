"""What the experiment runner costs: durable results a second, a million rows, many experiments at once, and who waits
for whom.

    python -m bench.runner [--only speed,million,live,advisor] [--databases SQLite,PostgreSQL] [--rows 1000000]

Databases are made in the folder for temporary files (TMPDIR), and commits are waited for until they are on its disk.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.common import Check, conclude, spread, table
from bench.runner import advisor, live, million, speed
from bench.runner.places import PLACES, Fresh

LEAST_RATE = {"SQLite": 1500.0, "PostgreSQL": 1000.0}
MOST_RESIDENT = 200.0
"""MB."""

MOST_GROWTH = 1.1
"""What the last quarter of a run's memory may be of the second quarter's: flat, but for what a heap does by itself."""

MOST_FIRST = 3.0
"""Seconds from before the process is started to its first dispatch; as many for a resume."""

MOST_LIVE = 2.0
"""What a dispatch may cost with 1,000 live experiments, times what it does with 10."""

LEAST_SPEED = 0.98
"""What an experiment keeps of its speed alone beside a throttled one, or with a throttled judge."""

MOST_APART = 5.0
"""Calls of any hundred by which two experiments on one key may differ."""

Found = tuple[dict[str, Any], list[Check]]


def measure_speed(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """The rate of each way to work; the task alone is held to the bound."""
    rates = {way: [asyncio.run(speed.run(fresh, way, given.items)) for _ in range(given.rounds)] for way in speed.WAYS}
    rows = [
        [way, str(spread([one.per_second for one in each])), str(spread([one.cpu_us for one in each]))]
        for way, each in rates.items()
    ]
    table(f"{name}: durable results", ("", "a second: median [quartiles]", "CPU us each"), rows)
    rate = statistics.median(one.per_second for one in rates["task"])
    check = Check(f"{name}: durable results a second", rate, LEAST_RATE[name], at_least=True)
    return {way: [asdict(one) for one in each] for way, each in rates.items()}, [check]


def measure_million(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """A long run that is killed half way and resumed."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        dataset = Path(folder) / "rows.jsonl"
        million.write_dataset(dataset, given.rows)
        database = fresh()
        begun = million.run(database, dataset, until=given.rows // 2)
        resumed = million.run(database, dataset)
    if resumed.ended != f"COMPLETED {given.rows}":
        raise RuntimeError(f"the resumed run did not come to its end: {resumed.ended or 'nothing said'}")
    title = f"{name}: {given.rows:,} rows"
    parts = {"begun": begun, "resumed": resumed}
    rows = [
        [part, f"{one.first:.2f}", f"{one.seconds:.0f}", f"{one.done:,}", f"{max(one.resident):.0f}",
         f"{one.growth:.2f}"]
        for part, one in parts.items()
    ]  # fmt: skip
    table(title, ("", "first dispatch s", "ran s", "done", "most MB", "growth"), rows)
    checks = [
        Check(f"{title}: first dispatch, s", begun.first, MOST_FIRST),
        Check(f"{title}: resume, s", resumed.first, MOST_FIRST),
        Check(f"{title}: resident memory, MB", max(begun.resident + resumed.resident), MOST_RESIDENT),
        Check(f"{title}: memory, last quarter over second", max(begun.growth, resumed.growth), MOST_GROWTH),
    ]
    return {part: asdict(one) for part, one in parts.items()}, checks


def measure_live(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """A dispatch with few and with many experiments, in turns."""
    costs: dict[int, list[live.Cost]] = {10: [], 1000: []}
    for _ in range(given.rounds):
        for count, each in costs.items():
            each.append(asyncio.run(live.cost(fresh, count, given.live_items)))
    rows = [
        [f"{count:,} live", str(spread([one.dispatch for one in each])), str(spread([one.result for one in each]))]
        for count, each in costs.items()
    ]
    table(f"{name}: CPU us with experiments live", ("", "a dispatch", "a result, all told"), rows)
    few, many = (statistics.median(one.dispatch for one in each) for each in costs.values())
    check = Check(f"{name}: a dispatch, 1,000 live: times that with 10", many / few, MOST_LIVE)
    return {str(count): [asdict(one) for one in each] for count, each in costs.items()}, [check]


def measure_advisor(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """An experiment at 100 calls a second beside one at 1 a second, judged by it, and two on one key."""
    found = [asyncio.run(advisor.sharing(fresh, given.calls)) for _ in range(given.rounds)]
    rows = [
        [f"{one.alone:.2f}", f"{one.beside:.2f}", f"{one.judged:.2f}", f"{one.slow_rate:.3f}", str(one.apart)]
        for one in found
    ]
    header = ("alone s", "beside s", "tasks judged s", "slow one a second", "apart in 100")
    table(f"{name}: {given.calls:,} calls at {advisor.FAST:g} a second", header, rows)
    checks = [
        Check("speed beside a throttled one", statistics.median(one.alone / one.beside for one in found), LEAST_SPEED,
              at_least=True),
        Check("speed of tasks with a throttled judge", statistics.median(one.alone / one.judged for one in found),
              LEAST_SPEED, at_least=True),
        Check("the throttled one's calls, of its limit", min(one.slow_rate for one in found) / advisor.SLOW,
              LEAST_SPEED, at_least=True),
        Check("two on one key: apart in any hundred", max(one.apart for one in found), MOST_APART),
    ]  # fmt: skip
    return {"rounds": [asdict(one) for one in found]}, checks


MEASURES: dict[str, tuple[Callable[[str, Fresh, argparse.Namespace], Found], Sequence[str]]] = {
    "speed": (measure_speed, tuple(PLACES)),
    "live": (measure_live, ("SQLite",)),
    "advisor": (measure_advisor, ("SQLite",)),
    "million": (measure_million, tuple(PLACES)),
}
"""What is measured, and on which databases: what the dispatcher does is no database's affair."""


def chosen(parser: argparse.ArgumentParser, words: str, known: Sequence[str]) -> list[str]:
    """The names that the command line gives, with commas between."""
    names = words.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return names


def main() -> int:
    """Prints the tables; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="What the experiment runner costs")
    parser.add_argument("--only", default=",".join(MEASURES), help="some of: %(default)s")
    parser.add_argument("--databases", default=",".join(PLACES), help="some of: %(default)s")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the long run (default 1,000,000)")
    parser.add_argument("--items", type=int, default=20_000, help="rows of a run whose rate is taken (default 20,000)")
    parser.add_argument("--calls", type=int, default=1000, help="calls of the advised experiment (default 1,000)")
    parser.add_argument("--live-items", type=int, default=50_000, help="rows of all the live ones (default 50,000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, but for the long one (default 3)")
    given = parser.parse_args()
    given.rounds = max(2, given.rounds)
    measures = chosen(parser, given.only, tuple(MEASURES))
    databases = chosen(parser, given.databases, tuple(PLACES))
    figures: dict[str, Any] = {}
    checks: list[Check] = []
    for database in databases:
        with PLACES[database]() as fresh:
            for name in measures:
                measure, on = MEASURES[name]
                if database in on:
                    figures[f"{name}, {database}"], found = measure(database, fresh, given)
                    checks += found
    return conclude("runner", figures, checks)


if __name__ == "__main__":
    raise SystemExit(main())
