"""`tidegate experiment compare`: two experiments side by side, for people and as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from tidegate.core.safe_text import json_line
from tidegate.core.token_totals import cost_text, token_facts
from tidegate.experiments.commands.common import existing, found
from tidegate.experiments.commands.display import NOTHING, printer, table
from tidegate.experiments.comparison import ComparedSide, Comparison, Interval, OutputComparison, compare
from tidegate.experiments.storage import ResultStatus, Store


async def compared(
    a: str, b: str, url: str, other_url: str | None, confidence: float, rows: int, as_json: bool
) -> None:
    """Print the comparison of two experiments. B is in the database `other_url`, if there is one."""
    async with existing(url, to_read=True) as store, _other(store, other_url) as other:
        comparison = await compare(store, await found(store, a), other, await found(other, b), confidence)
    if as_json:
        typer.echo(json_line(facts(comparison, rows)))
        return
    console = printer()
    for line in _lines(comparison):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_sides(comparison))
    if comparison.outputs:
        console.print(_outputs(comparison))
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


def facts(comparison: Comparison, rows: int) -> dict[str, Any]:
    """Return a comparison as plain values, with at most `rows` of the most different rows of each output."""
    return {
        "a": _side_facts(comparison.a),
        "b": _side_facts(comparison.b),
        "matched": comparison.matched,
        "changed": comparison.changed,
        "confidence": comparison.confidence,
        "outputs": [_output_facts(each, rows) for each in comparison.outputs],
        "only_a": list(comparison.only_a),
        "only_b": list(comparison.only_b),
    }


def _side_facts(side: ComparedSide) -> dict[str, Any]:
    return {
        "id": side.id,
        "name": side.name,
        "status": side.status,
        "rows": side.rows,
        "rows_complete": side.complete,
        "runs": {status.value: count for status, count in side.runs.items()},
        "untried": side.untried,
        "seconds": side.seconds,
        "spend": token_facts(side.tokens),
    }


def _output_facts(output: OutputComparison, rows: int) -> dict[str, Any]:
    return {
        "evaluator": output.evaluator,
        "output": output.output,
        "rows": output.rows,
        "a": {
            "mean": output.a_mean,
            "interval": output.a_interval,
            "failed": output.a_failed,
            "labels": dict(output.a_labels),
        },
        "b": {
            "mean": output.b_mean,
            "interval": output.b_interval,
            "failed": output.b_failed,
            "labels": dict(output.b_labels),
        },
        "difference": output.difference,
        "interval": output.difference_interval,
        "wins": output.wins,
        "losses": output.losses,
        "ties": output.ties,
        "same_labels": output.same_labels,
        "other_labels": output.other_labels,
        "different": [
            {"id": each.name, "a": each.a, "b": each.b, "a_ordinal": each.a_ordinal, "b_ordinal": each.b_ordinal}
            for each in output.different[:rows]
        ],
    }


def _lines(comparison: Comparison) -> Iterator[str]:
    a, b, matched = comparison.a, comparison.b, comparison.matched
    yield f"A: {a.name} (experiment {a.id}, {a.status}), B: {b.name} (experiment {b.id}, {b.status})"
    yield f"{matched} rows are in both by their id; A has {a.rows}, B has {b.rows}"
    if comparison.changed:
        yield f"{comparison.changed} of them have the same id and different content"
    for letter, side in (("A", a), ("B", b)):
        if not side.complete:
            yield f"the dataset of {letter} is not yet read to its end"
    for letter, outputs in (("A", comparison.only_a), ("B", comparison.only_b)):
        if outputs:
            yield f"only in {letter}: {', '.join(outputs)}"


def _sides(comparison: Comparison) -> Table:
    statuses = [status for status in ResultStatus if comparison.a.runs[status] or comparison.b.runs[status]]
    counted = [str(status) for status in statuses]
    more = ["tokens", "cost"] if any(side.tokens.metered for side in (comparison.a, comparison.b)) else []
    made = table("", "experiment", *counted, "untried", "s/result", *more,
                 right=(*counted, "untried", "s/result", *more))  # fmt: skip
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        seconds = NOTHING if side.seconds is None else f"{side.seconds:.2f}"
        counts = (str(side.runs[status]) for status in statuses)
        tokens = side.tokens
        cost = cost_text(tokens, least="≥ ") or NOTHING
        spent = [f"{tokens.input_tokens} + {tokens.output_tokens}", cost] if more else []
        made.add_row(letter, Text(side.name), *counts, str(side.untried), seconds, *spent)
    return made


def _outputs(comparison: Comparison) -> Table:
    level = f"{comparison.confidence * 100:.4g} %"
    names = ("n", "mean A", "mean B", f"B - A ({level} interval)", "wins", "losses", "ties", "failed A", "failed B")
    made = table("output", *names, right=names)
    for each in comparison.outputs:
        if not each.rows and not (each.a_failed or each.b_failed):
            continue
        made.add_row(
            Text(each.title),
            str(each.rows),
            _mean(each.a_mean, each.a_interval),
            _mean(each.b_mean, each.b_interval),
            _mean(each.difference, each.difference_interval, "+"),
            str(each.wins),
            str(each.losses),
            str(each.ties),
            str(each.a_failed),
            str(each.b_failed),
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
        made.add_row(Text(each.name), f"{each.a:.4g}", f"{each.b:.4g}")
    return made


def _label_line(output: OutputComparison) -> str | None:
    both = output.same_labels + output.other_labels
    if not both:
        return None
    return f"{output.title}: {output.same_labels} of {both} rows have the same label in both"
