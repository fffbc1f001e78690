"""Each code block of the README and of the docs is run, or parsed, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import NOT_RUN, ROOT, check, pages, snippets
from tidegate.testing import Limit, Scenario, SimulatorProcess

ANSWERS = {
    "Answer right or wrong": "right",
    "capital of Chad": "N'Djamena",
    "capital of Mongolia": "Ulaanbaatar",
    "capital of Peru": "Lima",
    "capital of Slovenia": "Zagreb",
    "capital of Tonga": "Nuku'alofa",
}
"""Answers of the simulated provider to questions that hold these words. To others it answers with an echo."""


@pytest.fixture(scope="module")
def provider() -> SimulatorProcess:
    with SimulatorProcess(Scenario(limiters=(Limit(limit=100, window=1.0),), answers=ANSWERS)) as started:
        yield started


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_of_a_page_holds(page: Path, provider: SimulatorProcess, tmp_path: Path) -> None:
    check(page, tmp_path / "page", provider)


def test_the_provider_of_the_tutorial_gives_the_answers_that_its_scores_are_of() -> None:
    [scenario] = [each for each in snippets(ROOT / "docs/tutorials/experiment.md") if each.title == "provider.json"]
    answers = Scenario.from_json(scenario.code).answers
    assert len(answers) == 5
    assert answers.items() <= ANSWERS.items()


def test_every_fence_is_seen_and_has_a_language_that_the_tests_know() -> None:
    for page in pages():
        found = snippets(page)
        fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(found), f"{page}: a block is open, indented or has other attributes than a title"
        for snippet in found:
            known = ("", "text", "python", "bash", "json", "yaml", "toml", "dockerfile")
            assert snippet.language in known, snippet.place
            assert not snippet.title or snippet.is_file or snippet.is_output or snippet.title.startswith(NOT_RUN)


def test_blocks_that_do_not_run_are_few_and_each_says_why() -> None:
    left = [snippet for page in pages() for snippet in snippets(page) if snippet.fate == "not run"]
    assert len(left) <= 8
    assert [snippet.place for snippet in left if len(snippet.title) < len(NOT_RUN) + 10] == []
