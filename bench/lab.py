"""The laboratory: every scenario of the table in virtual time and over HTTP, against an oracle that knows every limit.

python -m bench.lab [--virtual | --http] [--only NAME[,NAME…]] [--seeds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from bench import overhttp, virtual
from bench.common import RESULTS, conclude, markdown, table
from bench.measures import COLUMNS, Run, checks, figures, medians
from bench.scenarios import NAMES, ROWS, Row

Runner = Callable[[Row, int], Run]

WAYS: dict[str, tuple[str, Runner]] = {
    "virtual": ("Virtual time", virtual.run),
    "http": ("Over HTTP", overhttp.run),
}

HEADER = ("", *(column.name for column in COLUMNS), "")


def lines(rows: Sequence[Row], runs: dict[str, list[Run]]) -> list[list[str]]:
    """A line of the table for each row: medians over its seeds, and the bounds that were missed."""
    made = []
    for row in rows:
        middle = medians(runs[row.name])
        missed = ", ".join(check.name.partition(": ")[2] for check in checks(row, runs[row.name]) if not check.holds)
        made.append([row.name, *(format(middle[column.name], column.form) for column in COLUMNS), missed or "ok"])
    return made


def play(way: str, rows: Sequence[Row], seeds: Sequence[int]) -> int:
    """Runs, prints and writes down one way; returns its exit code."""
    title, run = WAYS[way]
    runs = {row.name: [run(row, seed) for seed in seeds] for row in rows}
    found = lines(rows, runs)
    table(f"{title} (medians of {len(seeds)} seeds)", HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"lab-{way}.md").write_text(f"# {title}\n\n{markdown(HEADER, found)}")
    asked = [check for row in rows for check in checks(row, runs[row.name])]
    return conclude(f"lab-{way}", figures(runs), asked, brief=True)


def main() -> int:
    """Prints the tables; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Every scenario against the oracle")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row (default 5)")
    parser.add_argument("--only", help=f"rows by name, with commas between: {', '.join(NAMES)}")
    for way, (title, _) in WAYS.items():
        parser.add_argument(f"--{way}", action="store_true", help=f"{title.lower()} only")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    rows = [row for row in ROWS if row.name in names]
    seeds = range(min(20, max(1, given.seeds)))
    ways = [way for way in WAYS if getattr(given, way)] or list(WAYS)
    return max([play(way, rows, seeds) for way in ways])


if __name__ == "__main__":
    raise SystemExit(main())
