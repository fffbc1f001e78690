"""Every source that the package cites is in the tree: sections and rules of the facts' page, and captures by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/provider-facts.md").read_text()
RECORDED = "".join(path.read_text() for path in (ROOT / "tests/providers/recorded").glob("*.json"))

CITING = [path for path in (ROOT / "src").rglob("*.py") if re.search(r"provider-facts|\bcaptures? ", path.read_text())]
PLACE = re.compile(r"provider-facts\.md\s+(section|rule)s?\s+((?:\d+(?:,\s+|\s+and\s+)?)+)")
CAPTURE = re.compile(r"\bcaptures? ((?:[a-z0-9]+(?:-[\w*]+)+(?:\s\(\S+\))?(?:,\s+|\s+and\s+)?)+)")


def cited(pattern: re.Pattern[str], text: str) -> list[tuple[str, ...]]:
    """Return what the text cites; a line may end within a citation, with or without a comment sign."""
    found = pattern.findall(re.sub(r"\n\s*(?:# )?", " ", text))
    return [each if isinstance(each, tuple) else (each,) for each in found]


@pytest.mark.parametrize("path", CITING, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_citation_is_found_in_the_tree(path: Path) -> None:
    text = path.read_text()
    for kind, numbers in cited(PLACE, text):
        for number in re.findall(r"\d+", numbers):
            begin = rf"^## {number}\. " if kind == "section" else rf"^{number}\. "
            assert re.search(begin, PAGE, re.MULTILINE), f"{kind} {number}"
    for (names,) in cited(CAPTURE, text):
        for name in re.findall(r"[a-z0-9]+(?:-[\w*]+)+", re.sub(r"\(\S+\)", "", names)):
            assert name.rstrip("*") in RECORDED + PAGE, name


def test_citations_are_found_at_all() -> None:
    texts = [path.read_text() for path in CITING]
    assert sum(len(cited(PLACE, text)) for text in texts) > 80
    assert sum(len(cited(CAPTURE, text)) for text in texts) > 40
