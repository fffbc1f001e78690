"""Rows that are stored for ended items.

Theory of operation. Every terminal outcome leaves one row in the store. An evaluator's result has named outputs, each a
score, a label or a value. A failure has no score. `tidegate.pool.failure_class` classifies the end of a call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

from tidegate.core.values import AnsweredBy
from tidegate.experiments.engine.item import TASK, Item, own_id
from tidegate.experiments.engine.job import Stage
from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Category,
    Claim,
    LogLevel,
    LogLine,
    ResultStatus,
    RunResult,
    encoded,
)


class NoJudgement(Exception):
    """Error for an evaluator result that is no judgement: it is empty, or does not match the declared outputs."""


def evaluation_results(result: Any, name: str, outputs: tuple[str, ...]) -> tuple[Annotation, ...]:
    """Return the annotations of an evaluator's `result`, in the order of its outputs.

    Raise `NoJudgement` for None, an empty dict, a number that is not finite, or other outputs than the declared ones.
    Raise `NotStorable` for a value that JSON cannot represent.
    """
    if isinstance(result, Mapping):
        named = {str(output): value for output, value in result.items()}
    elif len(outputs) == 1:
        named = {outputs[0]: result}
    else:
        named = {name: result}
    unknown = [output for output in named if outputs and output not in outputs]
    missing = [output for output in outputs if output not in named]
    if unknown or missing:
        told = [f"unknown output {each!r}" for each in unknown] + [f"no output {each!r}" for each in missing]
        raise NoJudgement(f"result of {name} unusable: {', '.join(told)}; the evaluator declares {', '.join(outputs)}")
    if not named:
        raise NoJudgement(f"result of {name} unusable: the evaluator returned no outputs")
    return tuple(_annotation(output, value) for output, value in named.items())


def failed_evaluations(
    name: str, outputs: tuple[str, ...], status: ResultStatus, kind: str, text: str | None
) -> tuple[Annotation, ...]:
    """Return one annotation without a score for each declared output of an evaluator that failed or was parked."""
    return tuple(
        Annotation(output, status, error_kind=kind, error=text) for output in (outputs if outputs else (name,))
    )


def _annotation(output: str, value: Any) -> Annotation:
    if value is None:
        raise NoJudgement(f"output {output!r} unusable: it is None; a judgement is a number, a text or any JSON value")
    if isinstance(value, str):
        return Annotation(output, label=value)
    if isinstance(value, Real | Decimal):
        try:
            score = float(value)
        except OverflowError:
            score = math.inf
        except ValueError:
            # A signalling NaN raises ValueError.
            score = math.nan
        if not math.isfinite(score):
            raise NoJudgement(f"output {output!r} unusable: it is {score}; a score is a finite number")
        return Annotation(output, score=score)
    return Annotation(output, value=encoded(value))


OK = ResultStatus.OK


def answered(
    claim: Claim, stage: Stage, item: Item, value: Any, answered_by: tuple[AnsweredBy, ...] = ()
) -> RunResult | AnnotationResult:
    """Return the result of an answered item; raise `NoJudgement` or `NotStorable` if `value` is not a valid result.

    `answered_by` has the choices of the fallbacks that the value comes from.
    """
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, OK, encoded(value), attempts=item.attempts,
                         seconds=item.seconds, audit=tuple(item.audit), answered_by=answered_by,
                         usage=item.usage)  # fmt: skip
    annotations = evaluation_results(value, stage.name, stage.outputs)
    return AnnotationResult(claim.experiment_id, claim.epoch, *item.place, stage.name, annotations,
                            item.attempts, item.seconds, tuple(item.audit), answered_by, item.usage)  # fmt: skip


def unanswered(
    claim: Claim, stage: Stage, item: Item, status: ResultStatus, kind: str, text: str | None
) -> RunResult | AnnotationResult:
    """Return the result of an item that failed, was parked, or could not be tried."""
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, status, None, kind, text,
                         item.attempts, item.seconds, tuple(item.audit), usage=item.usage)  # fmt: skip
    annotations = failed_evaluations(stage.name, stage.outputs, status, kind, text)
    return AnnotationResult(claim.experiment_id, claim.epoch, *item.place, stage.name, annotations,
                            item.attempts, item.seconds, tuple(item.audit), usage=item.usage)  # fmt: skip


def failed(result: RunResult | AnnotationResult) -> bool:
    """Return whether a result has any status other than OK."""
    if isinstance(result, RunResult):
        return result.status is not OK
    return any(annotation.status is not OK for annotation in result.annotations)


def line(claim: Claim, level: LogLevel, category: Category, **detail: Any) -> LogLine:
    """Return a line of the experiment's log."""
    return LogLine(claim.experiment_id, claim.epoch, level, category, detail)


def failure_line(claim: Claim, stage: Stage, item: Item, kind: str, text: str | None) -> LogLine:
    """Return the log line of an item that failed permanently; the `id` is that of its row, if it has one."""
    named = own_id(item.body)
    category = Category.TASK if item.stage == TASK else Category.EVAL
    ordinal, repetition = item.place
    return line(
        claim,
        LogLevel.ERROR,
        category,
        type="failure",
        stage=stage.name,
        row=ordinal,
        **({"id": named} if named else {}),
        repetition=repetition,
        kind=kind,
        error=text,
        attempts=item.attempts,
    )
