"""What the benchmarks share: spreads, paired blocks of work, tables, results and verdicts."""

from __future__ import annotations

import gc
import json
import platform
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some figures."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a benchmark accepts or not."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is within the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Pairs:
    """CPU microseconds per call of the two sides, one figure of each a round."""

    plain: list[float]
    governed: list[float]

    @property
    def added(self) -> list[float]:
        """The difference, round by round."""
        return [after - before for before, after in zip(self.plain, self.governed, strict=True)]

    def row(self, name: str) -> list[str]:
        """Name, plain, governed, added, its interval, and added in % of plain."""
        low, high = median_interval(self.added)
        share = 100.0 * statistics.median(self.added) / statistics.median(self.plain)
        cells = [str(spread(self.plain)), str(spread(self.governed)), str(spread(self.added))]
        return [name, *cells, f"{low:.1f} .. {high:.1f}", f"{share:.1f} %"]

    def figures(self) -> dict[str, Any]:
        """The same for the results file."""
        low, high = median_interval(self.added)
        return {
            "plain_us": asdict(spread(self.plain)),
            "governed_us": asdict(spread(self.governed)),
            "added_us": asdict(spread(self.added)),
            "added_us_95": [low, high],
            "added_share": statistics.median(self.added) / statistics.median(self.plain),
            "rounds": len(self.plain),
        }


PAIR_HEADER = ("", "plain us", "governed us", "added us", "95 % of median", "added")

Block = Callable[[int], Awaitable[object]]


def spread(figures: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return Spread(low, middle, high)


def median_interval(figures: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """A 95 % bootstrap confidence interval of the median."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(figures, k=len(figures))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


async def paired(plain: Block, governed: Block, *, rounds: int, calls: int, seed: int) -> Pairs:
    """Runs blocks of `calls` calls in the order plain, governed, governed, plain, or its mirror image as often.

    Counts the CPU time of this process: what else the machine does, and the waiting, stay out of it. The first block
    after a garbage collection has cold caches, so it is not counted.
    """
    orders = [True, False] * ((rounds + 1) // 2)
    random.Random(seed).shuffle(orders)
    pairs = Pairs([], [])
    for first_is_plain in orders:
        spent = {True: 0.0, False: 0.0}
        gc.collect()
        await (governed if first_is_plain else plain)(calls)
        for is_plain in (first_is_plain, not first_is_plain, not first_is_plain, first_is_plain):
            block = plain if is_plain else governed
            began = time.process_time()
            await block(calls)
            spent[is_plain] += time.process_time() - began
        pairs.plain.append(spent[True] / (2 * calls) * MICRO)
        pairs.governed.append(spent[False] / (2 * calls) * MICRO)
    return pairs


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under a header, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for cells in (header, *rows):
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join((first, *others)).rstrip())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same rows as a Markdown table."""
    ruled = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ruled)


def conclude(name: str, figures: Mapping[str, object], checks: Sequence[Check], *, brief: bool = False) -> int:
    """Writes `results/<name>.json`, prints what was accepted and what was missed; returns the exit code.

    With `brief` only what was missed is printed.
    """
    rows = [
        [each.name, f"{each.value:.3f}", f"{'>=' if each.at_least else '<='} {each.bound:g}", _word(each)]
        for each in checks
        if not (brief and each.holds)
    ]
    table("Acceptance", ("", "value", "bound", ""), rows)
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "figures": figures,
        "checks": [{**asdict(each), "holds": each.holds} for each in checks],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(each.holds for each in checks) else 1


def _word(check: Check) -> str:
    return "ok" if check.holds else "MISSED"
