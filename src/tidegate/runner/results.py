"""Classification of a call's end, and the rows that are stored for it.

The meaning of a call's end for its row: an answer, a refusal for want of capacity, a failure that may pass or not.

An answer that cannot be used (a judge that named no score) may be mended by another attempt, as models are not the
same twice; but where all attempts come to that, it is the prompt, and counts as a failure that no attempt can mend.

The last governed attempt says it best, by the provider's own tables. Where no attempt was governed, or the last one
was answered, the exception is classified (`tidegate.classification`): by its status, its type, its words.

What never reached a server, and a plain 503, is capacity that is wanting: it spends no attempt, and waits behind the
key's breaker.

The judgement in an evaluator's result: named outputs, each a score, a label or a value. A failure has no score.

The rows that an item's end leaves in the store: every terminal outcome leaves one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from numbers import Real
from typing import Any, NamedTuple

from tidegate.classification import UNREACHED, UNREADABLE, Evidence, classify_error
from tidegate.core.values import CAPACITY, Cause, Kind, Outcome
from tidegate.errors import KeyRefused, NotAdmitted, UnusableAnswer
from tidegate.runner.item import TASK, Item
from tidegate.runner.job import Stage
from tidegate.storage import (
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
    """The result of an evaluator is no judgement: nothing, or something that its declared outputs do not know."""


def evaluation_results(result: Any, name: str, outputs: tuple[str, ...]) -> tuple[Annotation, ...]:
    """The annotations that `result` of the evaluator `name` says, in the order of its outputs.

    Raises `NoJudgement` where it is None, an empty dict, not a number, or has other outputs than the declared ones, and
    `NotStorable` where JSON has no word for it.
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
        raise NoJudgement(f"{', '.join(told)}: the evaluator {name} declares {', '.join(outputs)}")
    if not named:
        raise NoJudgement(f"the evaluator {name} returned no outputs")
    return tuple(_annotation(output, value) for output, value in named.items())


def failed_evaluations(
    name: str, outputs: tuple[str, ...], status: ResultStatus, kind: str, text: str | None
) -> tuple[Annotation, ...]:
    """The annotations of an evaluator that failed or was parked: one for every declared output, without a score."""
    return tuple(
        Annotation(output, status, error_kind=kind, error=text) for output in (outputs if outputs else (name,))
    )


def _annotation(output: str, value: Any) -> Annotation:
    if value is None:
        raise NoJudgement(f"the output {output!r} is None: a judgement is a number, a text, or any JSON value")
    if isinstance(value, str):
        return Annotation(output, label=value)
    if isinstance(value, Real | Decimal):
        try:
            score = float(value)
        except OverflowError:
            score = math.inf
        except ValueError:
            # A signalling NaN.
            score = math.nan
        if not math.isfinite(score):
            raise NoJudgement(f"the output {output!r} is {score}: a score is a finite number")
        return Annotation(output, score=score)
    return Annotation(output, value=encoded(value))


OK = ResultStatus.OK


def answered(claim: Claim, stage: Stage, item: Item, value: Any) -> RunResult | AnnotationResult:
    """The result of an item that came to `value`; raises `NoJudgement` and `NotStorable` where that is no result."""
    if item.stage == TASK:
        return RunResult(claim.experiment_id, claim.epoch, *item.place, OK, encoded(value),
                         attempts=item.attempts, seconds=item.seconds)  # fmt: skip
    annotations = evaluation_results(value, stage.name, stage.outputs)
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
    annotations = failed_evaluations(stage.name, stage.outputs, status, kind, text)
    return AnnotationResult(
        claim.experiment_id, claim.epoch, *item.place, stage.name, annotations, item.attempts, item.seconds
    )


def failed(result: RunResult | AnnotationResult) -> bool:
    """Return whether a result is anything but good."""
    if isinstance(result, RunResult):
        return result.status is not OK
    return any(annotation.status is not OK for annotation in result.annotations)


def line(claim: Claim, level: LogLevel, category: Category, **detail: Any) -> LogLine:
    """A line of the experiment's log."""
    return LogLine(claim.experiment_id, claim.epoch, level, category, detail)


def failure_line(claim: Claim, stage: Stage, item: Item, kind: str, text: str | None) -> LogLine:
    """The log line of an item that failed for good."""
    category = Category.TASK if item.stage == TASK else Category.EVAL
    ordinal, repetition = item.place
    return line(
        claim,
        LogLevel.ERROR,
        category,
        type="failure",
        stage=stage.name,
        row=ordinal,
        repetition=repetition,
        kind=kind,
        error=text,
        attempts=item.attempts,
    )


class NextStep(StrEnum):
    """The next step of an item."""

    ANSWERED = "answered"
    CAPACITY = "capacity"
    PARKED = "parked"
    TRANSIENT = "transient"
    UNUSABLE = "unusable"
    PERMANENT = "permanent"


class FailureClass(NamedTuple):
    """A ruling and the kind of failure by which runs are guarded and rows are told apart.

    `kind` is `auth`, `money`, `never_fits`, `invalid`, `rate`, `overload`, `outage`, `timeout`, … or the name of an
    exception that is no provider's; `retry_after` is in seconds.
    """

    ruling: NextStep
    kind: str = ""
    retry_after: float | None = None


UNAVAILABLE = 503
"""The status of a server that is not there for now (RFC 9110, section 15.6.4)."""

OUTAGE = "outage"
"""The kind of a failure behind which nobody answers."""

ANSWERED = FailureClass(NextStep.ANSWERED)
TIMEOUT = FailureClass(NextStep.TRANSIENT, "timeout")
CANCELLED = FailureClass(NextStep.TRANSIENT, "cancelled")


def judge(error: BaseException | None, outcome: Outcome | None, refused: Outcome | None, probe: bool) -> FailureClass:
    """The verdict on a call that raised `error`, or answered where that is None.

    `outcome` is that of its last governed attempt. `refused` is the capacity answer that was handed straight back for
    the permit it was given. `probe` says that this permit was a broken key's probe, whose failure is nobody's.
    """
    last = outcome if outcome is not None else refused
    if refused is not None and last is not None and last.kind is not Kind.OK:
        return FailureClass(NextStep.CAPACITY, _cause(refused, "rate"), refused.retry_after)
    if error is None:
        # A refusal that the function swallowed must not become its answer.
        return _of_outcome(last, probe) if last is not None and last.kind in CAPACITY else ANSWERED
    if isinstance(error, NotAdmitted) and not isinstance(error, KeyRefused):
        return FailureClass(NextStep.CAPACITY, "rate")
    if isinstance(error, UnusableAnswer):
        return FailureClass(NextStep.UNUSABLE, type(error).__name__)
    if last is not None and last.kind is not Kind.OK and last.kind is not Kind.ABANDONED:
        return _of_outcome(last, probe, type(error).__name__)
    if last is not None and last.row == UNREADABLE:
        # Whatever the client and the function made of a page of HTML, it is no mistake of theirs.
        return FailureClass(NextStep.UNUSABLE, UNREADABLE)
    return _of_exception(error, last is not None and last.kind is Kind.OK)


def _of_outcome(outcome: Outcome, probe: bool, name: str = UNREADABLE) -> FailureClass:
    kind = outcome.kind
    if kind in CAPACITY:
        return FailureClass(NextStep.CAPACITY, _cause(outcome, "rate"), outcome.retry_after)
    if kind is Kind.DAILY_LIMIT:
        return FailureClass(NextStep.PARKED, "day", outcome.retry_after)
    if kind is Kind.QUOTA_EXHAUSTED:
        return FailureClass(NextStep.PERMANENT, "money")
    if kind is Kind.TRANSIENT:
        if probe or outcome.status == UNAVAILABLE or outcome.row == UNREACHED:
            return FailureClass(NextStep.CAPACITY, _cause(outcome, OUTAGE), outcome.retry_after)
        if outcome.row == UNREADABLE:
            return FailureClass(NextStep.UNUSABLE, name)
        return FailureClass(NextStep.TRANSIENT, _cause(outcome, outcome.row or "transient"), outcome.retry_after)
    return FailureClass(NextStep.PERMANENT, _cause(outcome, "invalid"))


def _of_exception(error: BaseException, answered: bool) -> FailureClass:
    outcome, evidence = classify_error(error, datetime.now(UTC), answered=answered)
    name = type(error).__name__
    if evidence is Evidence.NONE:
        # Nobody here cancelled it: something inside the function did, as a client that is being closed does.
        cancelled = any(each.__name__ == "CancelledError" for each in type(error).__mro__)
        return CANCELLED if cancelled else FailureClass(NextStep.PERMANENT, name)
    verdict = _of_outcome(outcome, False, name)
    plain = outcome.cause is Cause.INVALID or (verdict.ruling is NextStep.TRANSIENT and outcome.status is not None)
    return verdict._replace(kind=f"status {outcome.status}") if plain and outcome.status is not None else verdict


def _cause(outcome: Outcome, otherwise: str) -> str:
    return outcome.cause.value if outcome.cause is not Cause.NONE else otherwise
