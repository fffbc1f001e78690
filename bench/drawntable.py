"""Table of the drawn families: median and worst ratio, refusals per call, and calls lost, over the seeds."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence

from bench.announced import ANNOUNCED
from bench.common import RESULTS, conclude, markdown, table
from bench.drawn import Drawn, families
from bench.hidden import HIDDEN
from bench.measures import Run, checks, figures
from bench.players import phaseless
from bench.scenarios import Row

DRAWN = families(ANNOUNCED, HIDDEN)
NAMES = tuple(each.name for each in DRAWN)

YARDSTICKS = {"hidden-fixed": phaseless}
"""Players that know more than a client can, where the oracle's time needs knowledge that no client has."""

HEADER = ("", "ideal s", "ratio", "max", "429s/call", "max", "hits", "lost", "yardstick", "")


def named(names: Iterable[str]) -> list[Drawn]:
    """Return the families of these names, in the order of the table."""
    wanted = set(names)
    return [each for each in DRAWN if each.name in wanted]


def line(family: Drawn, runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """Return a line of the table: medians and worst seeds of one family, and the bounds that were missed."""
    ratios = [run.ratio for run in runs]
    refused = [run.refused_share for run in runs]
    hits = str(max(run.hits for run in runs)) if any(row.scenario.outages for row in rows) else ""
    missed = [each.name.partition(": ")[2] for each in checks(rows[0], runs) if not each.holds]
    return [
        family.name,
        f"{statistics.median(run.bare or run.ideal for run in runs):.2f}",
        f"{statistics.median(ratios):.3f}",
        f"{max(ratios):.3f}",
        f"{statistics.median(refused):.4f}",
        f"{max(refused):.4f}",
        hits,
        str(sum(run.lost for run in runs)),
        yardstick(family, runs, rows),
        ", ".join(missed) or "ok",
    ]


def yardstick(family: Drawn, runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """Return median ratio and refusals per call of the family's yardstick; empty without one."""
    player = YARDSTICKS.get(family.name)
    if player is None:
        return ""
    played = [(player(row, run.seed), run) for row, run in zip(rows, runs, strict=True)]
    ratio = statistics.median(each.seconds / run.ideal for each, run in played)
    return f"{ratio:.3f}/{statistics.median(each.refused / run.calls for each, run in played):.3f}"


def play(way: str, title: str, run: Callable[[Row, int], Run], chosen: Sequence[Drawn], seeds: Sequence[int]) -> int:
    """Run the families one way, print and write down their table; return the exit code."""
    runs: dict[str, list[Run]] = {}
    found, asked = [], []
    for family in chosen:
        rows = [family.row(seed) for seed in seeds]
        runs[family.name] = [run(row, seed) for row, seed in zip(rows, seeds, strict=True)]
        found.append(line(family, runs[family.name], rows))
        asked += checks(rows[0], runs[family.name])
        print(".", end="", flush=True, file=sys.stderr)
    table(f"{title}, drawn families (seeds {', '.join(map(str, seeds))})", HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"families-{way}.md").write_text(f"# {title}, drawn families\n\n{markdown(HEADER, found)}")
    return conclude(f"families-{way}", figures(runs), asked, brief=True)
