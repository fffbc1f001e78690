"""The laboratory: every scenario of the table in virtual time and over HTTP, against an oracle that knows every limit.

python -m bench.lab [--virtual | --http | --late] [--only NAME[,NAME…]] [--family NAME] [--seeds 5] [--vary] [--plots]
python -m bench.lab --families [NAME,…] [--http] [--seeds 8 | --seeds 1,3,5] [--odd | --even] [--page]
python -m bench.lab --held-out [NAME,…] [--seeds 8 | --seeds 1,3,5] [--odd | --even] [--page]
python -m bench.lab --loaded [--only NAME[,NAME…] | --families NAME,…] [--seeds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import drawntable, heldouttable, loaded, overhttp, virtual
from bench.common import RESULTS, conclude, markdown, table
from bench.families import FAMILIES
from bench.measures import COLUMNS, Run, checks, figures, medians
from bench.scenarios import NAMES, ROWS, Row
from bench.varying import varied

Runner = Callable[[Row, int], Run]

WAYS: dict[str, tuple[str, Runner]] = {
    "virtual": ("Virtual time", virtual.run),
    "http": ("Over HTTP", overhttp.run),
    "late": ("Virtual time, late event loop", virtual.run_late),
}

USUAL = ("virtual", "http")
"""The ways where none is named."""

HEADER = ("", *(column.name for column in COLUMNS), "")

PLOTS = RESULTS / "plots"


def lines(rows: Sequence[Row], runs: dict[str, list[Run]]) -> list[list[str]]:
    """A line of the table for each row: medians over its seeds, and the bounds that were missed."""
    made = []
    for row in rows:
        middle = medians(runs[row.name])
        missed = ", ".join(check.name.partition(": ")[2] for check in checks(row, runs[row.name]) if not check.holds)
        made.append([row.name, *(format(middle[column.name], column.form) for column in COLUMNS), missed or "ok"])
    return made


def play(way: str, rows: Sequence[Row], seeds: Sequence[int], vary: bool = False) -> int:
    """Runs, prints and writes down one way; returns its exit code. With `vary` each seed has limits of its own."""
    title, run = WAYS[way]
    title += ", limits drawn" if vary else ""
    runs: dict[str, list[Run]] = {}
    for row in rows:
        runs[row.name] = [run(varied(row, seed) if vary else row, seed) for seed in seeds]
        print(".", end="", flush=True, file=sys.stderr)
    found = lines(rows, runs)
    table(f"{title} (medians of {len(seeds)} seeds)", HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"lab-{way}.md").write_text(f"# {title}\n\n{markdown(HEADER, found)}")
    asked = [check for row in rows for check in checks(row, runs[row.name])]
    return conclude(f"lab-{way}", figures(runs), asked, brief=True)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Writes a figure for each row: seed 0 in virtual time."""
    from bench import plots
    from bench.trace import record

    for row in rows:
        plots.draw(record(row, 0), folder / f"{row.name}.svg")
    print(f"{len(rows)} figures are in {folder}")


def chosen(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[Row]:
    """The rows that the command line names."""
    names = given.only.split(",") if given.only else NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    return [row for row in ROWS if row.name in names and given.family in (None, row.family.name)]


def seeds_of(text: str, *, odd: bool = False, even: bool = False) -> list[int]:
    """The seeds that a command line asks for: so many from 0 on, of odd or even ones too, or those it names."""
    if "," in text:
        return [int(each) for each in text.split(",") if each]
    count = min(20, max(1, int(text)))
    return list(range(1, 2 * count, 2) if odd else range(0, 2 * count, 2) if even else range(count))


def held_out(parser: argparse.ArgumentParser, given: argparse.Namespace, seeds: Sequence[int]) -> int:
    """Run the held-out families that the command line names; return the exit code."""
    names = given.held_out.split(",")
    if unknown := set(names) - set(heldouttable.NAMES):
        parser.error(f"no held-out family is called {', '.join(sorted(unknown))}")
    if given.http or given.late or given.loaded:
        parser.error("held-out families are played in virtual time")
    families = heldouttable.named(names)
    if given.page and (len(families) < len(heldouttable.NAMES) or not given.odd):
        parser.error("the page shows all held-out families by odd seeds")
    return heldouttable.play(families, seeds, drawntable.PAGE if given.page else None)


def _fixed(row: Row, seed: int) -> Row:
    return row


def main() -> int:
    """Prints the tables; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Every scenario against the oracle")
    parser.add_argument(
        "--seeds", default="5", help="runs of each row (default 5), or seeds with commas: 1,3,5 (one: 3,)"
    )
    parity = parser.add_mutually_exclusive_group()
    parity.add_argument("--odd", action="store_true", help="odd seeds: those that are reported")
    parity.add_argument("--even", action="store_true", help="even seeds: those to tune a controller by")
    parser.add_argument(
        "--families",
        nargs="?",
        const=",".join(drawntable.NAMES),
        help=f"families whose numbers the seed draws, in virtual time if not --http: {', '.join(drawntable.NAMES)}",
    )
    parser.add_argument(
        "--held-out",
        nargs="?",
        const=",".join(heldouttable.NAMES),
        help=f"families by which nothing is chosen, in virtual time: {', '.join(heldouttable.NAMES)}",
    )
    parser.add_argument("--page", action="store_true", help=f"also write the tables into docs/{drawntable.PAGE.name}")
    parser.add_argument("--only", help=f"rows by name, with commas between: {', '.join(NAMES)}")
    parser.add_argument("--family", choices=[family.name for family in FAMILIES], help="rows of one family")
    for way, (title, _) in WAYS.items():
        parser.add_argument(f"--{way}", action="store_true", help=f"{title.lower()} only")
    parser.add_argument("--loaded", action="store_true", help="over HTTP, quiet and beside burning processes in turns")
    parser.add_argument("--vary", action="store_true", help="draw limits and latencies too, around the table's")
    parser.add_argument("--plots", action="store_true", help="also draw each row (needs matplotlib)")
    given = parser.parse_args()
    seeds = seeds_of(given.seeds, odd=given.odd, even=given.even)
    if given.held_out is not None:
        if given.families is not None:
            parser.error("--held-out and --families are two tables; with --page, --families writes both")
        return held_out(parser, given, seeds)
    if given.families is not None:
        if unknown := set(given.families.split(",")) - set(drawntable.NAMES):
            parser.error(f"no family is called {', '.join(sorted(unknown))}")
        way = "http" if given.http else "virtual"
        families = drawntable.named(given.families.split(","))
        if given.http or given.loaded:
            # Idle minutes take as long over HTTP.
            families = [each for each in families if not each.row(0).arrivals]
        if given.loaded:
            return loaded.play({each.name: each.row for each in families}, seeds)
        if given.page and (len(families) < len(drawntable.NAMES) or not given.odd or given.http):
            parser.error("the page shows all families by odd seeds in virtual time")
        if not given.page:
            return drawntable.play(way, *WAYS[way], families, seeds)
        drawn = drawntable.play(way, *WAYS[way], families, seeds, drawntable.PAGE)
        return max(drawn, heldouttable.play(heldouttable.named(heldouttable.NAMES), seeds, drawntable.PAGE))
    rows = chosen(parser, given)
    if given.loaded:
        return loaded.play({row.name: partial(_fixed, row) for row in rows}, seeds)
    if given.plots:
        draw(rows, PLOTS)
    ways = [way for way in WAYS if getattr(given, way)] or USUAL
    return max([play(way, rows, seeds, given.vary) for way in ways])


if __name__ == "__main__":
    raise SystemExit(main())
