"""What docs/experiments.md shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate import errors, experiments
from tidegate.experiments.declared.schema import Document, declared

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/experiments.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}[^\n]*\n(.*?)```", PAGE, re.S)
    assert found is not None
    return found[1]


def test_the_complaint_of_the_page_is_the_real_one() -> None:
    wrong = block("yaml").replace("labels: {right: 1, wrong: 0}", "labels: [yes, no]")
    with pytest.raises(ValueError, match="is not usable") as raised:
        declared(Document("experiment.yaml", wrong))
    assert f"    tidegate: {raised.value}\n" in PAGE


def test_the_names_in_the_prose_of_the_page_can_be_imported() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    names = re.findall(r"`(?:tidegate\.errors\.)?([A-Z][a-z]\w*(?:\.[A-Z]+)?)[(`]", prose)
    assert {"Experiment", "Toggle.COOLING"} <= set(names)
    for name in names:
        whose, _, member = name.partition(".")
        found = getattr(experiments, whose, None) or getattr(errors, whose)
        assert not member or member in found.__members__
