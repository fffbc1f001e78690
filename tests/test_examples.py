"""Every file in examples/ runs, against a provider whose limit is far below what it asks for, and loses nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SOURCE = Path(__file__).parents[1] / "src"
AT_ONCE = 20
"""What the provider admits at once; after that, 40 a second."""

SHORT_MINUTE = Limit(limit=AT_ONCE, window=AT_ONCE / 40)
REAL_MINUTE = Limit(limit=40 * 60, burst=AT_ONCE)
"""The same for Anthropic, whose headers do not tell how long the minute is: a client takes a real one."""


@contextmanager
def provider_for(example: Path) -> Iterator[SimulatorProcess]:
    limit = REAL_MINUTE if "import anthropic" in example.read_text() else SHORT_MINUTE
    with SimulatorProcess(Scenario(limiters=(limit,), latency=Distribution.constant(0.05))) as simulator:
        yield simulator


def run(example: Path, provider: SimulatorProcess, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
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
        timeout=120,
        check=False,
    )


def test_there_are_examples() -> None:
    assert "quickstart" in {example.stem for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_loses_no_call_at_a_limit_that_binds(example: Path) -> None:
    with provider_for(example) as provider:
        done = run(example, provider)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = re.search(r"^(\d+) calls answered$", done.stdout, re.MULTILINE)
    assert said is not None, done.stdout
    total = provider.truth().total
    assert total.answered == int(said[1])
    assert (total.broken, total.abandoned, total.in_flight) == (0, 0, 0)
    assert total.answered > AT_ONCE, "the limit never bound"


def test_the_quickstart_without_tidegate_loses_calls_at_the_same_limit() -> None:
    quickstart = next(example for example in EXAMPLES if example.stem == "quickstart")
    with provider_for(quickstart) as provider:
        done = run(quickstart, provider, TIDEGATE_DISABLED="true")
    assert done.returncode != 0
    assert "RateLimitError" in done.stderr
    total = provider.truth().total
    assert total.refusals > 0
    assert total.answered < 200


def test_every_example_has_a_main_guard_and_says_what_it_shows() -> None:
    for example in EXAMPLES:
        text = example.read_text()
        assert 'if __name__ == "__main__":' in text, example
        assert text.startswith('"""'), example
