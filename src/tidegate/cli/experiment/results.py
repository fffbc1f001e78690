"""The results of an experiment, as tables for people and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.experiment.tables import bad, table
from tidegate.core.display import printable
from tidegate.runner.progress import Summary
from tidegate.storage import Failure, ResultStatus, Score

NOTHING = "–"
MOST_LABELS = 5
"""Labels of one output that a table shows, the most frequent first."""


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
        "untried": summary.untried,
        "evaluations": {
            name: {status.value: counts.get(status, 0) for status in ResultStatus}
            for name, counts in summary.counts.annotations.items()
        },
        "scores": [_score_facts(each) for each in summary.scores],
        "failures": [_failure_facts(each) for each in failures],
    }


def _score_facts(score: Score) -> dict[str, Any]:
    return {
        "evaluator": score.evaluator,
        "output": score.output,
        "n": score.scored,
        "mean": score.mean,
        "ok": score.ok,
        "failed": score.failed,
        "labels": dict(score.labels),
    }


def _failure_facts(failure: Failure) -> dict[str, Any]:
    return {
        "stage": failure.evaluator or "task",
        "status": failure.status.value,
        "kind": failure.kind,
        "count": failure.count,
        "example": failure.example,
    }


def _scores(scores: Sequence[Score]) -> Table:
    made = table("evaluator", "mean", "n", "failed", "labels", right=("mean", "n", "failed"))
    for each in scores:
        mean = NOTHING if each.mean is None else f"{each.mean:.3f}"
        made.add_row(Text(each.title), mean, str(each.scored), bad(each.failed), Text(_labels(each)))
    return made


def _failures(failures: Sequence[Failure]) -> Table:
    made = table("not answered", "kind", "count", "as", right=("count",), cut=("as",))
    for each in failures:
        stage = each.evaluator or "task"
        example = " ".join((each.example or "").split())
        made.add_row(Text(f"{stage} {each.status}"), Text(each.kind or NOTHING), bad(each.count), Text(example))
    return made


def _labels(score: Score) -> str:
    most = sorted(score.labels.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{printable(label)} {count}" for label, count in most[:MOST_LABELS]]
    return ", ".join(shown + (["…"] if len(most) > MOST_LABELS else []))
