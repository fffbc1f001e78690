"""Every file in examples/ runs, against a provider whose limit is far below what it asks for, and loses nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.testing import Distribution, Limit, Scenario, Simulator

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
EXPERIMENTS = Path(__file__).parents[1] / "examples" / "experiments"
SOURCE = Path(__file__).parents[1] / "src"
AT_ONCE = 20
"""What the provider admits at once; after that, 80 a second."""

SHORT_MINUTE = Limit(limit=AT_ONCE, window=AT_ONCE / 80)
REAL_MINUTE = Limit(limit=80 * 60, burst=AT_ONCE)
"""The same for Anthropic, whose headers do not tell how long the minute is: a client takes a real one."""


@contextmanager
def provider_for(example: Path) -> Iterator[Simulator]:
    limit = REAL_MINUTE if "import anthropic" in example.read_text() else SHORT_MINUTE
    with Simulator(Scenario(limiters=(limit,), latency=Distribution.constant(0.05))) as simulator:
        yield simulator


def run(example: Path, provider: Simulator, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTEST_"))}
    pointed = {
        "OPENAI_BASE_URL": provider.openai_url,
        "ANTHROPIC_BASE_URL": provider.url,
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_API_KEY": "any",
        "PYTHONPATH": str(SOURCE),
        "PYTHONWARNINGS": "error::ResourceWarning",
    }
    return subprocess.run(
        [sys.executable, str(example)],
        env={**own, **pointed, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_there_are_examples() -> None:
    assert "quickstart" in {example.stem for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_loses_no_call_at_a_limit_that_binds(example: Path, tmp_path: Path) -> None:
    with provider_for(example) as provider:
        done = run(example, provider, SUSPENSIONS=str(tmp_path / "suspensions.sqlite"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = re.search(r"^(\d+) calls answered$", done.stdout, re.MULTILINE)
    assert said is not None, done.stdout
    total = provider.truth().total
    assert total.answered == int(said[1])
    assert (total.broken, total.abandoned, total.in_flight) == (0, 0, 0)
    assert total.answered > AT_ONCE, "the limit never bound"


def experiment(*words: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, *words],
        env={**own, "PYTHONPATH": str(SOURCE), "TIDEGATE_DB": str(folder / "runs.db"), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_experiment_that_is_killed_and_resumed_asks_again_what_was_in_flight_and_nothing_else(
    tmp_path: Path,
) -> None:
    done = experiment(str(EXPERIMENTS / "killed_and_resumed.py"), folder=tmp_path, env={})
    assert done.returncode == 0, done.stderr
    assert "capitals: COMPLETED: 40 rows × 3, 120 answered\n" in done.stdout
    scores = [line.split()[:4] for line in done.stdout.splitlines()]
    assert ["correct", "1.000", "120", "0"] in scores
    assert ["short", "1.000", "120", "0"] in scores
    said = re.search(r"^(\d+) answers for 120 questions$", done.stdout, re.MULTILINE)
    assert said is not None, done.stdout
    # Asked again is what was not yet durable at the kill, of at least half of the questions: fewer than all of these.
    assert 120 <= int(said[1]) < 120 + 60


def test_the_declared_experiment_is_the_same_without_code(tmp_path: Path) -> None:
    countries = [json.loads(line) for line in (EXPERIMENTS / "countries.jsonl").read_text().splitlines()]
    answers = {f"capital of {each['country']}?": each["capital"] for each in countries}
    judgements = {f"the capital of {each['country']}? Answer 1 or 0": "1" for each in countries}
    openai = Simulator(Scenario(dialect="openai", answers=answers))
    anthropic = Simulator(Scenario(dialect="anthropic", answers=judgements))
    command = "from tidegate.cli.main import main; main()"
    with openai, anthropic:
        env = {
            "OPENAI_BASE_URL": openai.openai_url,
            "ANTHROPIC_BASE_URL": anthropic.url,
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_API_KEY": "any",
        }
        words = ("-c", command, "experiment", "run", str(EXPERIMENTS / "capitals.yaml"))
        done = experiment(*words, folder=tmp_path, env=env)
        assert openai.truth().total.answered == anthropic.truth().total.answered == 120
    assert done.returncode == 0, done.stderr
    assert ["correct", "1.000", "120", "0"] in [line.split()[:4] for line in done.stdout.splitlines()]


def test_every_example_has_a_main_guard_and_says_what_it_shows() -> None:
    for example in EXAMPLES:
        text = example.read_text()
        assert 'if __name__ == "__main__":' in text, example
        assert text.startswith('"""'), example
