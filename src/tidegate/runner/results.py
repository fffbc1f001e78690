"""The rows that an item's end leaves in the store: every terminal outcome leaves one."""

from __future__ import annotations

from typing import Any

from tidegate.runner.item import TASK, Item
from tidegate.runner.judgement import judged, unjudged
from tidegate.runner.stage import Stage
from tidegate.storage import AnnotationResult, Category, Claim, Level, LogLine, ResultStatus, RunResult, encoded

OK = ResultStatus.OK


def answered(claim: Claim, stage: Stage, item: Item, value: Any) -> RunResult | AnnotationResult:
    """The result of an item that came to `value`; raises `NoJudgement` and `NotStorable` where that is no result."""
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, OK, encoded(value),
                         attempts=item.attempts, seconds=item.seconds)  # fmt: skip
    annotations = judged(value, stage.name, stage.outputs)
    return AnnotationResult(
        claim.experiment_id, claim.epoch, *item.place, stage.name, annotations, item.attempts, item.seconds
    )


def unanswered(
    claim: Claim, stage: Stage, item: Item, status: ResultStatus, kind: str, text: str | None
) -> RunResult | AnnotationResult:
    """The result of an item that failed, was parked, or could not be tried."""
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, status, None, kind, text,
                         item.attempts, item.seconds)  # fmt: skip
    annotations = unjudged(stage.name, stage.outputs, status, kind, text)
    return AnnotationResult(
        claim.experiment_id, claim.epoch, *item.place, stage.name, annotations, item.attempts, item.seconds
    )


def failed(result: RunResult | AnnotationResult) -> bool:
    """Return whether a result is anything but good."""
    if isinstance(result, RunResult):
        return result.status is not OK
    return any(annotation.status is not OK for annotation in result.annotations)


def line(claim: Claim, level: Level, category: Category, **detail: Any) -> LogLine:
    """A line of the experiment's log."""
    return LogLine(claim.experiment_id, claim.epoch, level, category, detail)


def failure_line(claim: Claim, stage: Stage, item: Item, kind: str, text: str | None) -> LogLine:
    """The log line of an item that failed for good."""
    category = Category.TASK if item.stage == TASK else Category.EVAL
    ordinal, repetition = item.place
    return line(
        claim,
        Level.ERROR,
        category,
        type="failure",
        stage=stage.name,
        row=ordinal,
        repetition=repetition,
        kind=kind,
        error=text,
        attempts=item.attempts,
    )
