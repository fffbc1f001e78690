"""What a judge's answer says; what it does not say is never a score."""

from __future__ import annotations

import pytest

from tidegate.experiments import declared
from tidegate.experiments.declared import Unparsable


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("0.8", 0.8),
        (" 1 ", 1.0),
        ("Score: -2.5.", -2.5),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("The answer has 3 flaws and 2 merits.\nScore: 0.4\n", 0.4),
        ('{"score": 0.25, "why": "3 of 12"}', 0.25),
        ('```json\n{"score": 1}\n```', 1.0),
    ],
)
def test_the_one_number_is_the_score(answer: str, score: float) -> None:
    assert declared.score(answer, None) == score


@pytest.mark.parametrize(
    "answer",
    ["", "good", "4/5", "8 out of 10", "80%", "v1.2.3", "GPT4 is fine", '{"score": true}', '{"score": "1"}x 2 3'],
)
def test_an_answer_without_one_clear_number_is_no_score(answer: str) -> None:
    with pytest.raises(Unparsable, match="is not one number"):
        declared.score(answer, None)


def test_a_score_out_of_its_range_is_no_score() -> None:
    assert declared.score("1", (0.0, 1.0)) == 1.0
    with pytest.raises(Unparsable, match="one number from 0 to 1: '7'"):
        declared.score("7", (0.0, 1.0))


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("right", "Right"),
        (" WRONG. ", "wrong"),
        ("**Right**", "Right"),
        ("The answer is wrong, I fear.", "wrong"),
        ("That is not right", "not right"),
        ('{"label": "right"}', "Right"),
    ],
)
def test_the_one_label_that_is_named_is_the_label(answer: str, label: str) -> None:
    assert declared.label(answer, ["Right", "wrong", "not right"]) == label


@pytest.mark.parametrize("answer", ["", "bright", "right or wrong", '{"label": "fine"}'])
def test_an_answer_that_names_none_or_several_is_no_label(answer: str) -> None:
    with pytest.raises(Unparsable, match="one of right, wrong"):
        declared.label(answer, ["right", "wrong"])


def test_named_outputs_are_taken_from_the_object_in_the_answer() -> None:
    answer = 'Well {hm}, here: {"polite": 1, "tone": "warm", "more": 2} and so on'
    assert declared.outputs(answer, ["tone", "polite"]) == {"tone": "warm", "polite": 1}


@pytest.mark.parametrize("answer", ["no object", '{"polite": 1}', "[1, 2]", '{"polite": NaN, "tone": "x"}', "{" * 5000])
def test_an_answer_without_all_outputs_is_refused_and_shown_in_short(answer: str) -> None:
    with pytest.raises(Unparsable, match="a JSON object with tone, polite") as raised:
        declared.outputs(answer, ["tone", "polite"])
    assert len(str(raised.value)) < 200
