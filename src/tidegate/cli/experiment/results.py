"""What an experiment came to, as tables for people and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.experiment.tables import table
from tidegate.runner.summary import Summary
from tidegate.storage import Failure, ResultStatus, Score

NOTHING = "–"
MOST_LABELS = 5
"""Labels of one output that a table shows, the most frequent first."""


def headline(summary: Summary) -> str:
    """How it stands, in one line."""
    row = summary.experiment
    rows = f"{row.rows} {'row' if row.rows == 1 else 'rows'}"
    times = f" × {row.repetitions}" if row.repetitions > 1 else ""
    runs = summary.counts.runs
    parts = [f"{rows}{times}", f"{summary.answered} answered"]
    parts += [f"{runs[status]} {word}" for status, word in WORDS.items() if runs.get(status)]
    untried = summary.unanswered - sum(runs.get(status, 0) for status in WORDS)
    if untried:
        parts.append(f"{untried} not tried")
    if unjudged := _unjudged(summary):
        parts.append(f"{unjudged} {'judgement' if unjudged == 1 else 'judgements'} to come")
    why = f" ({summary.last_error})" if summary.last_error else ""
    return f"{row.name}: {row.status}{why}: {', '.join(parts)}"


def _unjudged(summary: Summary) -> int:
    """How many evaluations of answered rows have not been tried."""
    evaluators = summary.experiment.spec.get("evaluators")
    names = evaluators if isinstance(evaluators, Mapping) else {}
    judged = summary.counts.annotations
    return sum(max(0, summary.answered - sum(judged.get(name, {}).values())) for name in names)


WORDS = {ResultStatus.ERROR: "failed", ResultStatus.PARKED: "parked", ResultStatus.INVALID: "invalid"}


def tables(summary: Summary, failures: Sequence[Failure]) -> Iterator[RenderableType]:
    """The means of every evaluator's outputs, and what failed by its kind; tables without rows are left out."""
    if summary.scores:
        yield _scores(summary.scores)
    if failures:
        yield _failures(failures)


def facts(summary: Summary, failures: Sequence[Failure]) -> dict[str, Any]:
    """The same as plain values. A mean is over `n` scored answers; what failed is no score."""
    row = summary.experiment
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "last_error": row.last_error,
        "dataset": row.source,
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "claimed_by": row.claimed_by,
        "quiet": row.quiet,
        "runs": {status.value: summary.counts.runs.get(status, 0) for status in ResultStatus},
        "untried": summary.unanswered - sum(summary.counts.runs.get(status, 0) for status in WORDS),
        "evaluations": {
            name: {status.value: counts.get(status, 0) for status in ResultStatus}
            for name, counts in summary.counts.annotations.items()
        },
        "scores": [
            {
                "evaluator": each.evaluator,
                "output": each.output,
                "n": each.scored,
                "mean": each.mean,
                "ok": each.ok,
                "failed": each.failed,
                "labels": dict(each.labels),
            }
            for each in summary.scores
        ],
        "failures": [
            {
                "stage": each.evaluator or "task",
                "status": each.status.value,
                "kind": each.kind,
                "count": each.count,
                "example": each.example,
            }
            for each in failures
        ],
    }


def _scores(scores: Sequence[Score]) -> Table:
    made = table("evaluator", "mean", "n", "failed", "labels", right=("mean", "n", "failed"))
    for each in scores:
        name = each.evaluator if each.output == each.evaluator else f"{each.evaluator}.{each.output}"
        mean = NOTHING if each.mean is None else f"{each.mean:.3f}"
        made.add_row(Text(name), mean, str(each.scored), _bad(each.failed), Text(_labels(each)))
    return made


def _failures(failures: Sequence[Failure]) -> Table:
    made = table("not answered", "kind", "count", "as", right=("count",), cut=("as",))
    for each in failures:
        stage = each.evaluator or "task"
        example = " ".join((each.example or "").split())
        made.add_row(Text(f"{stage} {each.status}"), Text(each.kind or NOTHING), _bad(each.count), Text(example))
    return made


def _labels(score: Score) -> str:
    most = sorted(score.labels.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{label} {count}" for label, count in most[:MOST_LABELS]]
    return ", ".join(shown + (["…"] if len(most) > MOST_LABELS else []))


def _bad(number: int) -> str:
    return f"[red]{number}[/red]" if number else "0"
