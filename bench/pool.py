"""What the ordered pool costs: CPU time a row beside `asyncio.gather`, and its makespan in virtual time.

python -m bench.pool [--rows 20000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass

import tidegate
from bench.common import PAIR_HEADER, Check, conclude, paired, table
from tests.chaos.virtual_time import in_virtual_time
from tests.pool.scene import VirtualProvider, per_minute

SLOTS = 32

MOST_ADDED = 60.0
"""CPU microseconds that the pool may add to a row of `asyncio.gather` with a semaphore."""

MOST_TIMES_IDEAL = 1.03
"""Times the ideal that a pool of any size may take."""

ROWS, RATE, LATENCY = 900, 10.0, 0.2


@dataclass(frozen=True, slots=True)
class Makespan:
    """A run in virtual time: the slots, the seconds beside the ideal ones, and the attempts for the rows."""

    slots: int
    seconds: float
    ideal: float
    attempts: int


async def ask(row: int) -> int:
    """A function that makes no governed call."""
    await asyncio.sleep(0)
    return row


async def gathered(count: int) -> None:
    """The rows in `asyncio.gather`, with a semaphore."""
    semaphore = asyncio.Semaphore(SLOTS)

    async def one(row: int) -> int:
        async with semaphore:
            return await ask(row)

    await asyncio.gather(*map(one, range(count)))


async def pooled(count: int) -> None:
    """The rows in a pool."""
    async for _ in tidegate.amap(ask, range(count), pool_size=SLOTS):
        pass


def makespan(slots: int) -> Makespan:
    """600 a minute from an empty bucket; raise `RuntimeError` if a row is lost or out of order."""
    found: list[Makespan] = []

    @in_virtual_time
    async def run() -> None:
        provider = VirtualProvider(per_minute(60 * RATE, LATENCY, initial=0))
        began = provider.clock()
        results = tidegate.amap(provider.ask, range(ROWS), pool_size=slots, registry=provider.registry)
        if [row async for row in results] != list(range(ROWS)):
            raise RuntimeError("rows lost, or not in their order")
        found.append(Makespan(slots, provider.clock() - began, ROWS / RATE + LATENCY, provider.asked))

    run()
    return found[0]


def main() -> int:
    """Measures, prints and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pairs = asyncio.run(paired(gathered, pooled, rounds=given.rounds, calls=given.rows, seed=1))
    table("CPU us a row", PAIR_HEADER, [pairs.row("gather and a semaphore, amap")])
    runs = [makespan(slots) for slots in (10, 32, 200)]
    rows = [[str(run.slots), f"{run.seconds:.2f}", f"{run.seconds / run.ideal:.4f}", str(run.attempts)] for run in runs]
    table(f"{ROWS} rows at 600 a minute, answers in {LATENCY:g} s", ("slots", "seconds", "x ideal", "attempts"), rows)
    added = sorted(pairs.added)[len(pairs.added) // 2]
    checks = [
        Check("CPU us added to a row", added, MOST_ADDED),
        *(Check(f"{run.slots} slots: times the ideal", run.seconds / run.ideal, MOST_TIMES_IDEAL) for run in runs),
    ]
    return conclude("pool", {"overhead": pairs.figures(), "makespan": [asdict(run) for run in runs]}, checks)


if __name__ == "__main__":
    sys.exit(main())
