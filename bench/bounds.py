"""Table of what bounds the drawn families that miss a bound: where their refusals and their lost time come from.

python -m bench.bounds [NAME,…] [--seeds 8]: odd seeds in virtual time.

A refused attempt belongs to one of three parts. The *first round* was sent before any refusal was known. A *test* was
sent when all refusals before it were known: the client looked for a limit, or held one that had changed. The others
were *under way* when a test was refused. The time that a run loses to the ideal is taken at the instants of two calls:
the one after a quarter of all, and the last one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.bayes import filtering
from bench.common import table
from bench.drawn import Drawn
from bench.drawntable import BARS, NAMES, YARDSTICKS, asked, named
from bench.lab import seeds_of
from bench.measures import Run, measured
from bench.players import Played, probing, reckoning, unrated
from bench.scenarios import Row
from bench.virtual import Laboratory, bare
from tidegate.core.events import Event, SlotReleased
from tidegate.core.values import CAPACITY
from tidegate.testing import Limit

PLAYERS: dict[str, Callable[[Row, int], Played]] = {
    **YARDSTICKS,
    "charges-returned": reckoning,
    "announced-rolling": reckoning,
    "foreign-headers": filtering,
}
"""Players that know the kind of a limit and more; those of announced limits do not move a bound."""

PLAIN: dict[str, Callable[[Row, int], Played]] = {"flips": probing, "flips-mixed": probing, "tiny-bucket": unrated}
"""Players that know the kind alone, and nothing of the distribution of its numbers."""

HEADER = (
    "",
    "missed",
    "ours",
    "bounds",
    "player",
    "kind only",
    "first round",
    "tests",
    "under way",
    "after the first round",
    "changes or windows",
    "lost at a quarter",
    "lost at the end",
)


@dataclass(frozen=True, slots=True)
class Parts:
    """One run: its refusals by their part, the changes or windows that it met, and its lost time.

    Lost times are shares of the ideal, after a quarter of the calls and at the end.
    """

    run: Run
    row: Row
    first: int
    tests: int
    under_way: int
    turns: float
    quarter: float
    end: float


def played(row: Row, seed: int) -> Parts:
    """Play a row and take its refusals and its lost time apart."""
    laboratory = Laboratory(row, seed)
    refused: list[tuple[float, float]] = []

    def listen(event: Event) -> None:
        if isinstance(event, SlotReleased) and event.kind in CAPACITY:
            refused.append((event.at, event.at - event.held))

    laboratory.registry.subscribe(listen)
    laboratory.run()
    truth = laboratory.accounts.truth()
    run = measured(
        row,
        seed,
        truth,
        [each.row for each in laboratory.sends],
        makespan=laboratory.makespan,
        cpu=0.0,
        losses={},
        bare=bare(row, seed) if row.against_plain else None,
    )
    first, tests, under_way = parts(refused)
    oracle = row.ideal(seed, truth.admitted_at[0])
    lags = [at - ideal for at, ideal in zip(sorted(truth.admitted_at), sorted(oracle.admitted_at), strict=True)]
    return Parts(
        run,
        row,
        first,
        tests,
        under_way,
        sum(turns(limit, run.makespan) for limit in row.scenario.limiters),
        lags[len(lags) // 4] / run.ideal,
        run.ratio - 1.0,
    )


def parts(refused: Sequence[tuple[float, float]]) -> tuple[int, int, int]:
    """Return the numbers of refusals in the first round, of tests, and under way; each was (heard, sent) at an instant.

    An attempt sent at the instant at which a refusal was heard knows it.
    """
    first = tests = under_way = 0
    known = min((heard for heard, _ in refused), default=0.0)
    newest = -1.0
    for heard, sent in sorted(refused):
        if sent < known:
            first += 1
        elif sent < newest:
            under_way += 1
        else:
            tests += 1
            newest = heard
    return first, tests, under_way


def turns(limit: Limit, seconds: float) -> float:
    """Return how often a limit changed within so many seconds, or how many windows it began."""
    if limit.shares:
        # The whole limit holds until the first share.
        instants = {0.0, *(at for at, _ in limit.shares)}
        return sum(
            0.0 < cycle * limit.period + at <= seconds
            for cycle in range(int(seconds / limit.period) + 1)
            for at in instants
        )
    return seconds / limit.window if limit.kind in ("fixed", "rolling") else 0.0


def line(family: Drawn, made: Sequence[Parts]) -> list[str] | None:
    """Return the line of a family; None where it keeps all of its bounds."""
    runs, rows = [each.run for each in made], [each.row for each in made]
    missed = [each.name.partition(": ")[2] for each in asked(family, runs, rows) if not each.holds]
    if not missed:
        return None
    bar = BARS[family.name]

    def middle(share: Callable[[Parts], float]) -> float:
        return statistics.median(map(share, made))

    def of_calls(count: Callable[[Parts], float]) -> str:
        return f"{middle(lambda each: count(each) / each.run.calls):.4f}"

    turned = middle(lambda each: each.turns / each.run.calls)
    return [
        family.name,
        ", ".join(missed),
        f"{middle(lambda each: each.run.ratio):.3f}/{middle(lambda each: each.run.refused_share):.4f}",
        f"{bar.ratio:g}/{bar.refused:g}",
        reached(PLAYERS.get(family.name), made),
        reached(PLAIN.get(family.name), made),
        of_calls(lambda each: each.first),
        of_calls(lambda each: each.tests),
        of_calls(lambda each: each.under_way),
        of_calls(lambda each: each.tests + each.under_way),
        f"{turned:.4f}" if turned else "",
        f"{middle(lambda each: each.quarter):.1%}",
        f"{middle(lambda each: each.end):.1%}",
    ]


def reached(player: Callable[[Row, int], Played] | None, made: Sequence[Parts]) -> str:
    """Return the median ratio and refusals per call of a player on the same runs; '' without one."""
    if player is None:
        return ""
    pairs = [(player(each.row, each.run.seed), each.run) for each in made]
    ratio = statistics.median(each.seconds / run.ideal for each, run in pairs)
    return f"{ratio:.3f}/{statistics.median(each.refused / run.calls for each, run in pairs):.3f}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What bounds the drawn families that miss a bound")
    parser.add_argument("names", nargs="?", default=",".join(NAMES), help="families, with commas between")
    parser.add_argument("--seeds", default="8", help="odd seeds (default 8), or seeds with commas")
    given = parser.parse_args()
    chosen = named(given.names.split(","))
    seeds = seeds_of(given.seeds, odd=True)
    lines = [line(each, [played(each.row(seed), seed) for seed in seeds]) for each in chosen]
    found = [each for each in lines if each is not None]
    table(f"Missed bounds (seeds {', '.join(map(str, seeds))})", HEADER, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
