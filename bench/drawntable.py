"""Table of the drawn families: median and worst ratio, refusals per call, and calls lost, over the seeds.

`PAGE` shows the table of odd seeds in virtual time, drawn by `python -m bench.lab --families --odd --seeds 8 --page`.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.announced import ANNOUNCED
from bench.bayes import filling, filtering, searching, sizing, steepening
from bench.common import RESULTS, Check, conclude, markdown, table
from bench.drawn import Drawn, families
from bench.hidden import HIDDEN
from bench.measures import Run, figures
from bench.players import unrated
from bench.scenarios import Row
from bench.unexplained import UNEXPLAINED

DRAWN = families(ANNOUNCED, HIDDEN, UNEXPLAINED)
NAMES = tuple(each.name for each in DRAWN)

YARDSTICKS = {
    "growth": steepening,
    "flips": filtering,
    "flips-mixed": filtering,
    "tiny-bucket": filtering,
    "hidden-slots": filling,
    "hidden-fixed": sizing,
    "hidden-rolling": searching,
    "hint-constant": unrated,
    "hint-late": unrated,
    "hint-absurd": unrated,
}
"""Players that know more than a client can, where the oracle's time needs knowledge that no client has."""

PAGE = Path(__file__).parents[1] / "docs" / "controller.md"
MARKS = "<!-- drawn families -->\n", "<!-- /drawn families -->"


class Bar(NamedTuple):
    """Bounds of a family: of the median ratio and refusals per call, of the worst seed's ratio, of the most hits."""

    ratio: float
    refused: float
    worst: float | None = None
    hits: int | None = None


ONE_USER = Bar(1.015, 0.01, 1.05)

BARS = {
    **{each.name: ONE_USER for each in ANNOUNCED},
    "announced-rolling": Bar(1.04, 0.005),
    "announced-heavy-tail": Bar(1.02, 0.002),
    "foreign-headers": Bar(1.01, 0.02),
    "fits-burst-openai": Bar(1.3, 0.02, 1.3),
    "fits-burst-anthropic": Bar(1.3, 0.02, 1.3),
    "drawn-outage": Bar(1.06, 0.01, hits=20),
    "growth": Bar(1.2, 0.08),
    "flips": Bar(1.08, 0.08, 1.25),
    "flips-mixed": Bar(1.10, 0.08, 1.4),
    "tiny-bucket": Bar(1.08, 0.045),
    "idle-bursts": Bar(1.15, 0.15, 1.4),
    "hidden-slots": Bar(1.05, 0.012, 1.08),
    "hidden-fixed": Bar(1.05, 0.07),
    "hidden-rolling": Bar(1.05, 0.07),
    "hint-constant": Bar(1.05, 0.01),
    "hint-late": Bar(1.05, 0.01),
    "hint-absurd": Bar(1.05, 0.01),
    "drawn-knee": Bar(1.06, 0.0),
    "bucket-and-chance": Bar(1.15, 0.15),
    "slots-and-chance": Bar(1.15, 0.15),
    "slots-and-bucket": Bar(1.1, 0.1),
    "hidden-tokens": Bar(1.05, 0.08, 1.25),
    "mixed-sizes": Bar(1.06, 0.1, 1.3),
    "smoothing": Bar(1.03, 0.1, 1.15),
    "acceleration": Bar(1.15, 0.05, 1.4),
    "brief-refill": Bar(1.03, 0.02, 1.1),
    "counted-refusals": Bar(1.15, 0.15),
}
"""Bounds that the controller is developed towards. Where a family has a yardstick, its refusals are allowed too."""

NEAR = 0.03
"""Ratio by which a run may be above its yardstick's."""

HEADER = ("", "ideal s", "ratio", "max", "429s/call", "max", "hits", "lost", "yardstick", "bounds", "")


def named(names: Iterable[str]) -> list[Drawn]:
    """Return the families of these names, in the order of the table."""
    wanted = set(names)
    return [each for each in DRAWN if each.name in wanted]


def asked(family: Drawn, runs: Sequence[Run], rows: Sequence[Row]) -> list[Check]:
    """Return the family's bounds and what the runs are to them."""
    bar, played = BARS[family.name], yardstick(family, runs, rows)
    ratio, refused = bar.ratio, bar.refused
    if played is not None:
        ratio, refused = max(ratio, played[0] + NEAR), max(refused, played[1])
    ratios = [run.ratio for run in runs]
    made = [
        Check(f"{family.name}: ratio", statistics.median(ratios), ratio),
        Check(f"{family.name}: 429s per call", statistics.median(run.refused_share for run in runs), refused),
        Check(f"{family.name}: calls lost", sum(run.lost for run in runs), 0),
    ]
    if bar.worst is not None:
        made.append(Check(f"{family.name}: worst ratio", max(ratios), bar.worst))
    if bar.hits is not None:
        made.append(Check(f"{family.name}: hits in the outage", max(run.hits for run in runs), bar.hits))
    return made


def line(family: Drawn, runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """Return a line of the table: medians and worst seeds of one family, its bounds, and those that were missed."""
    ratios = [run.ratio for run in runs]
    refused = [run.refused_share for run in runs]
    bar, played = BARS[family.name], yardstick(family, runs, rows)
    missed = [each.name.partition(": ")[2] for each in asked(family, runs, rows) if not each.holds]
    return [
        family.name,
        f"{statistics.median(run.compared for run in runs):.2f}",
        f"{statistics.median(ratios):.3f}",
        f"{max(ratios):.3f}",
        f"{statistics.median(refused):.4f}",
        f"{max(refused):.4f}",
        str(max(run.hits for run in runs)) if bar.hits is not None else "",
        str(sum(run.lost for run in runs)),
        f"{played[0]:.3f}/{played[1]:.3f}" if played is not None else "",
        f"{bar.ratio:g}, {f'max {bar.worst:g}, ' if bar.worst is not None else ''}{bar.refused:g}",
        ", ".join(missed) or "ok",
    ]


def yardstick(family: Drawn, runs: Sequence[Run], rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return median ratio and refusals per call of the family's yardstick; None without one."""
    player = YARDSTICKS.get(family.name)
    if player is None:
        return None
    played = [(player(row, run.seed), run) for row, run in zip(rows, runs, strict=True)]
    ratio = statistics.median(each.seconds / run.ideal for each, run in played)
    return ratio, statistics.median(each.refused / run.calls for each, run in played)


def shown(
    page: str, found: Sequence[Sequence[str]], header: Sequence[str] = HEADER, marks: tuple[str, str] = MARKS
) -> str:
    """Return the page with this table between its two marks."""
    begin, end = map(re.escape, marks)
    made, places = re.subn(
        f"({begin}).*?({end})", lambda at: f"{at[1]}{markdown(header, found)}{at[2]}", page, flags=re.S
    )
    if places != 1:
        raise ValueError(f"the page has no place for the table of {marks[0].strip()}")
    return made


def play(
    way: str,
    title: str,
    run: Callable[[Row, int], Run],
    chosen: Sequence[Drawn],
    seeds: Sequence[int],
    page: Path | None = None,
) -> int:
    """Run the families one way, print and write down their table, also on the page; return the exit code."""
    runs: dict[str, list[Run]] = {}
    found, bounds = [], []
    for family in chosen:
        rows = [family.row(seed) for seed in seeds]
        runs[family.name] = [run(row, seed) for row, seed in zip(rows, seeds, strict=True)]
        found.append(line(family, runs[family.name], rows))
        bounds += asked(family, runs[family.name], rows)
        print(".", end="", flush=True, file=sys.stderr)
    table(f"{title}, drawn families (seeds {', '.join(map(str, seeds))})", HEADER, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"families-{way}.md").write_text(f"# {title}, drawn families\n\n{markdown(HEADER, found)}")
    if page is not None:
        page.write_text(shown(page.read_text(), found))
    return conclude(f"families-{way}", figures(runs), bounds, brief=True)
