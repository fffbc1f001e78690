"""The picture of the README is drawn from what was measured, and its script runs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.docs.snippets import ROOT
from tools import readme_picture
from tools.readme_picture import Panel, caption, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_mark_for_each_answer_and_refusal() -> None:
    plain = Panel("plain", [[(0.1, 429), (0.9, 200)], [(0.2, 429)]])
    governed = Panel("governed", [[(0.5, 200)], [(1.5, 200)]])
    assert caption(plain) == "plain: 1 of 2 calls answered, 1 lost, 2 refusals"
    assert caption(governed) == "governed: 2 of 2 calls answered, 0 lost, 0 refusals"
    drawn = ElementTree.fromstring(picture([plain, governed], ideal=1.4))
    marks = [each.get("class") for each in drawn.iter(f"{SVG}circle") if each.get("r") == "1.8"]
    assert (marks.count("ok"), marks.count("no")) == (3, 2)
    assert "earliest end: 1.4 s" in [each.text for each in drawn.iter(f"{SVG}text")]


def test_the_committed_picture_shows_that_no_call_was_lost() -> None:
    title = ElementTree.fromstring(readme_picture.PLACE.read_text()).find(f"{SVG}title")
    assert title is not None
    plain, governed = str(title.text).split("; ")
    assert " 0 lost" not in plain
    assert f"{readme_picture.CALLS} of {readme_picture.CALLS} calls answered, 0 lost" in governed
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_script_measures_answers_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme_picture, "CALLS", 3)
    with readme_picture.SimulatorProcess(readme_picture.SCENARIO) as provider:
        run = readme_picture.measured("three", provider.openai_url, wrapped=True)
    assert (len(run.calls), run.answered, run.refused) == (3, 3, 0)
