"""The picture of the README is drawn from what was measured, and its script runs."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.docs.snippets import ROOT
from tools import readme_picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_picture_shows_that_no_call_was_lost() -> None:
    title = ElementTree.fromstring(readme_picture.PLACE.read_text()).find(f"{SVG}title")
    assert title is not None
    plain, governed = str(title.text).split("; ")
    assert " 0 lost" not in plain
    assert f"{readme_picture.CALLS} of {readme_picture.CALLS} calls answered, 0 lost" in governed
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
