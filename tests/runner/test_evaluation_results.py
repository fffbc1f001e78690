"""What an evaluator's result comes to."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from tidegate.errors import NotStorable
from tidegate.experiments.engine.results import NoJudgement, evaluation_results, failed_evaluations
from tidegate.experiments.storage import Annotation, ResultStatus


@pytest.mark.parametrize(
    ("result", "annotation"),
    [
        (0.5, Annotation("judge", score=0.5)),
        (0, Annotation("judge", score=0.0)),
        (True, Annotation("judge", score=1.0)),
        (Fraction(1, 4), Annotation("judge", score=0.25)),
        (Decimal("0.25"), Annotation("judge", score=0.25)),
        ("good", Annotation("judge", label="good")),
        (["a", 1], Annotation("judge", value='["a",1]')),
    ],
)
def test_a_single_result_is_the_evaluators_own_output(result: Any, annotation: Annotation) -> None:
    assert evaluation_results(result, "judge", ()) == (annotation,)


def test_a_dict_is_named_outputs() -> None:
    assert evaluation_results({"style": 1, "tone": "dry"}, "judge", ()) == (
        Annotation("style", score=1.0),
        Annotation("tone", label="dry"),
    )


def test_one_declared_output_may_be_returned_plainly() -> None:
    assert evaluation_results(1, "judge", ("facts",)) == (Annotation("facts", score=1.0),)


@pytest.mark.parametrize(
    ("result", "outputs", "said"),
    [
        (None, (), "is None"),
        (float("nan"), (), "finite"),
        (10**400, (), "finite"),
        ({}, (), "no outputs"),
        ({"a": 1, "c": 1}, ("a", "b"), "unknown output 'c', no output 'b'"),
        (1, ("a", "b"), "unknown output 'judge'"),
        ({"a": None}, (), "is None"),
    ],
)
def test_what_is_no_judgement_is_never_a_score(result: Any, outputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(NoJudgement, match=said):
        evaluation_results(result, "judge", outputs)


@pytest.mark.parametrize("score", ["NaN", "sNaN", "Infinity", "-1e400"])
def test_decimal_that_is_not_finite_is_no_score(score: str) -> None:
    with pytest.raises(NoJudgement, match="a score is a finite number"):
        evaluation_results(Decimal(score), "judge", ())


def test_what_json_has_no_word_for_says_so() -> None:
    with pytest.raises(NotStorable):
        evaluation_results({"a": {1, 2}}, "judge", ())


def test_a_failure_is_one_of_every_declared_output_and_has_no_score() -> None:
    made = failed_evaluations("judge", ("a", "b"), ResultStatus.ERROR, "auth", "no")
    assert [(each.output, each.score, each.error_kind) for each in made] == [("a", None, "auth"), ("b", None, "auth")]
    assert [each.output for each in failed_evaluations("judge", (), ResultStatus.PARKED, "capacity", None)] == ["judge"]
