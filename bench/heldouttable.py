"""Table of the held-out families: median and worst ratio and refusals per call, and calls lost, over the seeds.

The table has no bounds: nothing is developed towards it. docs/controller.md shows it for odd seeds in virtual time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import virtual
from bench.common import RESULTS, Check, conclude, markdown, table
from bench.drawn import Drawn
from bench.drawntable import shown
from bench.heldout import HELD_OUT
from bench.measures import Run, figures

NAMES = tuple(each.name for each in HELD_OUT)
HEADER = ("", "ideal s", "ratio", "max", "429s/call", "max", "lost")
MARKS = "<!-- held-out families -->\n", "<!-- /held-out families -->"


def named(names: Iterable[str]) -> list[Drawn]:
    """Return the families of these names, in the order of the table."""
    wanted = set(names)
    return [each for each in HELD_OUT if each.name in wanted]


def line(name: str, runs: Sequence[Run]) -> list[str]:
    """Return a line of the table: medians and worst seeds of one family."""
    ratios = [run.ratio for run in runs]
    refused = [run.refused_share for run in runs]
    return [
        name,
        f"{statistics.median(run.compared for run in runs):.2f}",
        f"{statistics.median(ratios):.3f}",
        f"{max(ratios):.3f}",
        f"{statistics.median(refused):.4f}",
        f"{max(refused):.4f}",
        str(sum(run.lost for run in runs)),
    ]


def play(chosen: Sequence[Drawn], seeds: Sequence[int], page: Path | None = None) -> int:
    """Run the families, print and write down their table, also on the page; return 1 if a call was lost."""
    runs: dict[str, list[Run]] = {}
    for family in chosen:
        runs[family.name] = [virtual.run(family.row(seed), seed) for seed in seeds]
        print(".", end="", flush=True, file=sys.stderr)
    found = [line(name, of_family) for name, of_family in runs.items()]
    title = "Virtual time, held-out families"
    table(f"{title} (seeds {', '.join(map(str, seeds))})", HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "held-out.md").write_text(f"# {title}\n\n{markdown(HEADER, found)}")
    if page is not None:
        page.write_text(shown(page.read_text(), found, HEADER, MARKS))
    lost = [Check(f"{name}: calls lost", sum(run.lost for run in each), 0) for name, each in runs.items()]
    return conclude("held-out", figures(runs), lost, brief=True)
