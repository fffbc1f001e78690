"""`tidegate experiment compare`: two experiments side by side, for people and as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import typer
from rich.table import Table
from rich.text import Text

from tidegate.cli.common import print_table
from tidegate.core.safe_text import json_line
from tidegate.core.token_totals import cost_text
from tidegate.experiments.commands.common import existing, found
from tidegate.experiments.commands.display import NOTHING, printer, table
from tidegate.experiments.comparison import Comparison, Interval, OutputComparison, compare
from tidegate.experiments.storage import ResultStatus, Store


async def compared(
    a: str, b: str, url: str, other_url: str | None, confidence: float, rows: int, as_json: bool
) -> None:
    """Print the comparison of two experiments. B is in the database `other_url`, if there is one."""
    async with existing(url, to_read=True) as store, _other(store, other_url) as other:
        comparison = await compare(store, await found(store, a), other, await found(other, b), confidence)
    if as_json:
        typer.echo(json_line(comparison.facts(rows)))
        return
    console = printer()
    for line in _lines(comparison):
        console.print(line, markup=False, soft_wrap=True)
    if comparison.a.id == comparison.b.id and other_url in (None, url):
        console.print("A and B are the same experiment: it is compared with itself", markup=False, soft_wrap=True)
    console.print(_sides(comparison))
    if comparison.outputs:
        print_table(console, _outputs(comparison))
    for output in comparison.outputs:
        if output.different and rows:
            console.print(_different(output, rows))
        if agreement := _label_line(output):
            console.print(agreement, markup=False, soft_wrap=True)


@contextlib.asynccontextmanager
async def _other(store: Store, url: str | None) -> AsyncIterator[Store]:
    if url is None:
        yield store
        return
    async with existing(url, to_read=True) as other:
        yield other


def _lines(comparison: Comparison) -> Iterator[str]:
    a, b, matched = comparison.a, comparison.b, comparison.matched
    yield f"A: {a.name} (experiment {a.id}, {a.status}), B: {b.name} (experiment {b.id}, {b.status})"
    yield f"{matched} rows are in both by their id; A has {a.rows}, B has {b.rows}"
    if comparison.changed:
        yield f"{comparison.changed} of them have the same id and different content"
    for letter, side in (("A", a), ("B", b)):
        if not side.rows_complete:
            yield f"the dataset of {letter} is not yet read to its end"
    for letter, outputs in (("A", comparison.only_a), ("B", comparison.only_b)):
        if outputs:
            yield f"only in {letter}: {', '.join(outputs)}"


def _sides(comparison: Comparison) -> Table:
    statuses = [status for status in ResultStatus if comparison.a.runs[status] or comparison.b.runs[status]]
    counted = [str(status) for status in statuses]
    more = ["tokens", "cost"] if any(side.spend.metered for side in (comparison.a, comparison.b)) else []
    made = table("", "experiment", *counted, "untried", "s/result", *more,
                 right=(*counted, "untried", "s/result", *more))  # fmt: skip
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        seconds = NOTHING if side.seconds is None else f"{side.seconds:.2f}"
        counts = (str(side.runs[status]) for status in statuses)
        tokens = side.spend
        cost = cost_text(tokens, least="≥ ") or NOTHING
        spent = [f"{tokens.input_tokens} + {tokens.output_tokens}", cost] if more else []
        made.add_row(letter, Text(side.name), *counts, str(side.untried), seconds, *spent)
    return made


def _outputs(comparison: Comparison) -> Table:
    level = f"{comparison.confidence * 100:.4g} %"
    names = ("n", "mean A", "mean B", f"B - A ({level} interval)", "wins", "losses", "ties", "failed A", "failed B")
    made = table("output", *names, right=names)
    for each in comparison.outputs:
        if not each.rows and not (each.a.failed or each.b.failed):
            continue
        made.add_row(
            Text(each.title),
            str(each.rows),
            _mean(each.a.mean, each.a.interval),
            _mean(each.b.mean, each.b.interval),
            _mean(each.difference, each.interval, "+"),
            str(each.wins),
            str(each.losses),
            str(each.ties),
            str(each.a.failed),
            str(each.b.failed),
        )
    return made


def _mean(mean: float | None, interval: Interval | None, sign: str = "") -> str:
    if mean is None:
        return NOTHING
    if interval is None:
        return f"{mean:{sign}.4g}"
    return f"{mean:{sign}.4g} [{interval.low:{sign}.4g}, {interval.high:{sign}.4g}]"


def _different(output: OutputComparison, rows: int) -> Table:
    made = table(f"{output.title}: most different rows", "A", "B", right=("A", "B"))
    for each in output.different[:rows]:
        made.add_row(Text(each.id), f"{each.a:.4g}", f"{each.b:.4g}")
    return made


def _label_line(output: OutputComparison) -> str | None:
    both = output.same_labels + output.other_labels
    if not both:
        return None
    return f"{output.title}: {output.same_labels} of {both} rows have the same label in both"
