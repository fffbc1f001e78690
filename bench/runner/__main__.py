"""What the experiment runner costs: durable results a second, a million rows, many experiments at once, and who waits
for whom.

    python -m bench.runner [--only speed,audit,million,…] [--databases SQLite,PostgreSQL] [--rows 1000000]

Databases are made in the folder for temporary files (TMPDIR), and commits are waited for until they are on its disk.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from bench.common import Check, conclude, spread, table
from bench.runner import advisor, audited, live, million, reach, replicas, speed
from bench.runner.places import PLACES, Fresh

LEAST_RATE = {"SQLite": 1500.0, "PostgreSQL": 1000.0}
LEAST_AUDITED = 0.95
"""Rate with attempts kept, divided by the rate without."""

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

MOST_AT_A_QUOTA = 1.05
"""Times the ideal that a run at its defaults may take at a quota of 6,000 a minute with answers of 5 s."""

MOST_WITHOUT_LIMITS = 1.10
"""Times the plain client, that it may take where nothing is limited and answers take 2 s."""

MOST_COMPUTING = 1.05
"""Times as long as with 20 at once that functions may take which only compute."""

ROW_MEMORY = 8.0
"""Bytes of memory that each character of the rows under way may take."""

LEAST_FASTER = 3.5
"""Times the rows a second of one replica that four must answer where no limit binds."""

MOST_SPREAD_OVER = 1.03
"""Times the ideal that four replicas may take at a limit that they share."""

T = TypeVar("T")

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


def measure_audit(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """The rate by the attempts that are kept, in turns; the check takes the median of each round's quotient."""
    found = [
        {mode: asyncio.run(audited.run(fresh, mode, given.items)) for mode in _turn(audited.MODES, number)}
        for number in range(given.rounds)
    ]
    rows = [
        [
            mode,
            str(spread([one[mode].per_second for one in found])),
            str(spread([one[mode].cpu_us for one in found])),
            f"{_quotient(found, mode):.3f}",
        ]
        for mode in audited.MODES
    ]
    table(f"{name}: attempts kept", ("", "a second: median [quartiles]", "CPU us each", "of the rate without"), rows)
    checks = [
        Check(f"{name}: rate with audit={mode}", _quotient(found, mode), LEAST_AUDITED, at_least=True)
        for mode in audited.MODES[1:]
    ]
    return {"rounds": [{mode: asdict(rate) for mode, rate in one.items()} for one in found]}, checks


def _turn(modes: Sequence[T], number: int) -> Sequence[T]:
    """Return the modes in another order each round, so that a machine that becomes slower slows all."""
    first = number % len(modes)
    return [*modes[first:], *modes[:first]]


def _quotient(found: Sequence[Mapping[Any, speed.Rate]], mode: str) -> float:
    return statistics.median(one[mode].per_second / one["off"].per_second for one in found)


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


def measure_reach(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """A run at its defaults: at a quota, without limits, in threads, computing, and with rows of a megabyte."""
    quota, free = given.quota_calls, given.free_calls
    at_quota, without = quota / reach.RATE + reach.QUOTA_LATENCY, free / reach.POOL * reach.FREE_LATENCY
    found = {
        "6,000 a minute, virtual time": reach.in_virtual_time(fresh, reach.quota(), quota, at_quota),
        "no limit, virtual time": reach.in_virtual_time(fresh, reach.free(), free, without, pool=reach.POOL),
        "6,000 a minute, HTTP": asyncio.run(reach.over_http(fresh, reach.quota(), quota, at_quota)),
        "6,000 a minute, HTTP, threads": asyncio.run(reach.over_http(fresh, reach.quota(), quota, at_quota, sync=True)),
        "no limit, HTTP": asyncio.run(reach.over_http(fresh, reach.free(), free // 5, None)),
        "no limit, HTTP, threads": asyncio.run(reach.over_http(fresh, reach.free(), free // 5, None, sync=True)),
        "computing only": asyncio.run(reach.computing(fresh, 1000)),
    }
    rows = [[way, f"{one.seconds:.2f}", f"{one.ideal:.2f}", f"{one.ratio:.3f}", str(one.most)]
            for way, one in found.items()]  # fmt: skip
    table(f"{name}: at the defaults", ("", "s", "ideal s", "ratio", "most at once"), rows)
    held = asyncio.run(reach.large_rows(fresh, 1_000_000, 300))
    large = [[f"{held.size:,} characters", str(held.most), f"{held.grown:.0f}", f"{held.cost:.1f}"]]
    table(f"{name}: large rows", ("", "most at once", "grown MB", "bytes a character"), large)
    bounds = {"6,000": MOST_AT_A_QUOTA, "no li": MOST_WITHOUT_LIMITS, "compu": MOST_COMPUTING}
    checks = [Check(f"{way}: times the ideal", one.ratio, bounds[way[:5]]) for way, one in found.items()]
    checks.append(Check("rows of 1 MB: bytes for each character under way", held.cost, ROW_MEMORY))
    return {**{way: asdict(one) for way, one in found.items()}, "large rows": asdict(held)}, checks


def measure_replicas(name: str, fresh: Fresh, given: argparse.Namespace) -> Found:
    """One experiment on one replica and on four, without a limit and at one."""
    pairs = [replicas.unlimited(fresh, given.replica_rows) for _ in range(given.rounds)]
    faster = statistics.median(four.rate / one.rate for one, four in pairs)
    rows = [
        [f"no limit, {len(part.shares)}", f"{part.rate:.1f}", "", str(part.refused), str(part.repeated), _parts(part)]
        for pair in pairs
        for part in pair
    ]
    figures: dict[str, Any] = {"no limit": [[asdict(part) for part in pair] for pair in pairs]}
    checks = [Check(f"{name}: rows a second of four replicas, times one", faster, LEAST_FASTER, at_least=True)]
    ideal = replicas.ideal(given.quota_calls)
    for place in ("this machine", "the database"):
        found = [
            replicas.limited(fresh, given.quota_calls, at_server=place == "the database") for _ in range(given.rounds)
        ]
        rows += [
            [f"6,000 a minute, 4, shared by {place}", f"{part.rate:.1f}", f"{part.seconds / ideal:.3f}",
             str(part.refused), str(part.repeated), _parts(part)]
            for part in found
        ]  # fmt: skip
        figures[place] = [asdict(part) for part in found]
        ratio = statistics.median(part.seconds for part in found) / ideal
        checks.append(Check(f"{name}: four replicas, shared by {place}: times the ideal", ratio, MOST_SPREAD_OVER))
    header = ("", "rows a second", "ratio", "refusals", "asked twice", "rows of each")
    table(f"{name}: one experiment on several replicas", header, rows)
    return figures, checks


def _parts(part: replicas.Part) -> str:
    return " ".join(map(str, part.shares))


MEASURES: dict[str, tuple[Callable[[str, Fresh, argparse.Namespace], Found], Sequence[str]]] = {
    "speed": (measure_speed, tuple(PLACES)),
    "audit": (measure_audit, tuple(PLACES)),
    "live": (measure_live, ("SQLite",)),
    "advisor": (measure_advisor, ("SQLite",)),
    "reach": (measure_reach, ("SQLite",)),
    "replicas": (measure_replicas, ("PostgreSQL",)),
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
    parser.add_argument("--quota-calls", type=int, default=3000, help="rows at a quota (default 3,000)")
    parser.add_argument(
        "--free-calls",
        type=int,
        default=20_000,
        help="rows without a limit, over HTTP a fifth (default 20,000)",
    )
    parser.add_argument("--live-items", type=int, default=50_000, help="rows of all the live ones (default 50,000)")
    parser.add_argument(
        "--replica-rows", type=int, default=1000, help="rows of a replica without a limit (default 1,000)"
    )
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
