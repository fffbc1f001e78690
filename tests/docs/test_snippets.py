"""Each code block of the README and of the docs is run, or parsed, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import NOT_RUN, ROOT, Snippet, check, checked, commands, pages, runs, snippets
from tidegate.testing import Limit, Scenario, SimulatorProcess

ANSWERS = {
    "Answer right or wrong": "right",
    "capital of Chad": "N'Djamena",
    "capital of Peru": "Lima",
}
"""Answers of the simulated provider to questions that hold these words. To others it answers with an echo."""


@pytest.fixture(scope="module")
def provider() -> SimulatorProcess:
    with SimulatorProcess(Scenario(limiters=(Limit(limit=100, window=1.0),), answers=ANSWERS)) as started:
        yield started


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_of_a_page_holds(page: Path, provider: SimulatorProcess, tmp_path: Path) -> None:
    check(page, tmp_path / "page", provider)


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


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("python\nraise SystemExit(3)", "ended with 3"),
        ("bash\ntidegate docs no-such-page", "ended with 2"),
        ("bash\nfalse | cat", "unknown command false"),
        ("json\n{", "Expecting property name"),
        ("yaml\ndataset: a.jsonl\ntask: 3", "is not usable"),
        ("toml\na = ", "Invalid value"),
        ('text title="output"\nnothing', "another output"),
        ('python title="not run: no server here"\nx = = 1', "invalid syntax"),
    ],
)
def test_a_wrong_block_is_found(block: str, fault: str, provider: SimulatorProcess, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```{block}\n```\n")
    with pytest.raises(Exception, match=fault):
        check(page, tmp_path / "page", provider)


def test_a_block_uses_the_file_of_a_block_before_it_and_its_output_is_compared(
    provider: SimulatorProcess, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="one.py"\nprint("a line of 3 words")\n```\n```bash\npip install nothing\npython one.py\n```\n'
        '```text title="output"\na line of … words\n```\n```bash\ntidegate serve\n```\n'
    )
    assert check(page, tmp_path / "page", provider) == {"file": 1, "run": 1, "output": 1, "parsed": 1}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("tidegate run --sate limits.json python a.py", "No such option"),
        ("tidegate rum python a.py", "no command rum"),
        ("tidegate experiment run", "Missing parameter: source"),
        ("TIDEGATE_MAX_WATE=5 python a.py", "no variable TIDEGATE_MAX_WATE"),
        ("export TIDEGATE_BD=x", "no variable TIDEGATE_BD"),
        ("pip install 'tidegate[run]'", "no extra run"),
        ("make no-such-target", "no target"),
        ("python -m tidegate.no_such", "no module"),
        ("tidegate run python examples/no_such.py", "no_such"),
    ],
)
def test_a_wrong_command_is_found(line: str, fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        [checked(command) for command in commands(line)]


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("tidegate status  # a comment\n", True),
        ("cat a.jsonl | tidegate doctor --explain > out.txt", True),
        ("tidegate run --report out.json python my_eval.py > log 2>&1", True),
        ("tidegate run -- lm_eval --tasks gsm8k", False),
        ("tidegate simulate --rpm 60 &", False),
        ("docker build .", False),
        ("python -m bench.peers \\\n  --report", False),
        ("TIDEGATE_SHARE=redis://cache.example/0 python a.py", False),
        ("tidegate run python examples/frameworks/dspy_evaluate.py", False),
    ],
)
def test_a_block_of_bash_runs_if_each_command_ends_by_itself(code: str, ends: bool) -> None:
    assert runs(Snippet(ROOT / "README.md", 1, "bash", "", code)) is ends
