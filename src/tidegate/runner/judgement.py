"""The judgement in an evaluator's result: named outputs, each a score, a label or a value. A failure has no score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

from tidegate.storage import Annotation, ResultStatus, encoded


class NoJudgement(Exception):
    """The result of an evaluator is no judgement: nothing, or something that its declared outputs do not know."""


def judged(result: Any, name: str, outputs: tuple[str, ...]) -> tuple[Annotation, ...]:
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


def unjudged(
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
