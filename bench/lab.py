"""The laboratory: every scenario of the table in virtual time and over HTTP, against an oracle that knows every limit.

python -m bench.lab [--virtual | --http] [--only NAME[,NAME…]] [--seeds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench import virtual
from bench.common import conclude, table
from bench.measures import COLUMNS, Run, checks, figures, medians
from bench.scenarios import NAMES, ROWS, Row


def report(title: str, rows: Sequence[Row], runs: dict[str, list[Run]]) -> None:
    """Prints a line for each row: medians over its seeds."""
    lines = []
    for row in rows:
        middle = medians(runs[row.name])
        missed = ", ".join(check.name.partition(": ")[2] for check in checks(row, runs[row.name]) if not check.holds)
        lines.append([row.name, *(format(middle[column.name], column.form) for column in COLUMNS), missed or "ok"])
    table(title, ("", *(column.name for column in COLUMNS), ""), lines)


def main() -> int:
    """Prints the tables; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Every scenario against the oracle")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row (default 5)")
    parser.add_argument("--only", help=f"rows by name, with commas between: {', '.join(NAMES)}")
    parser.add_argument("--virtual", action="store_true", help="in virtual time only")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else NAMES
    rows = [row for row in ROWS if row.name in names]
    if unknown := set(names) - set(NAMES):
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    seeds = range(min(20, max(1, given.seeds)))
    runs = {row.name: [virtual.run(row, seed) for seed in seeds] for row in rows}
    report("Virtual time", rows, runs)
    return conclude(
        "lab-virtual", figures(runs), [check for row in rows for check in checks(row, runs[row.name])], brief=True
    )


if __name__ == "__main__":
    raise SystemExit(main())
