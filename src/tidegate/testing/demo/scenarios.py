"""Two providers of the demonstration, their limits, and the rows of the shipped data set that each is asked."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Literal

from tidegate.errors import ConfigurationError
from tidegate.testing import Call, Distribution, Limit, Scenario, ideal_makespan

MAX_TOKENS = 32
"""Bound on the output of each call, in tokens. Chosen: above the shipped answers, which are a few words."""

MIN_ROWS = 2
"""Fewest rows of a demonstration. Derived from its two providers: one row for each."""


@dataclass(frozen=True, slots=True)
class Row:
    """Question of the data set, with its right answer."""

    id: str
    category: str
    question: str
    answer: str


@dataclass(frozen=True)
class Track:
    """One provider's part of the demonstration: the SDK, the model, the provider's scenario, and the rows."""

    sdk: Literal["openai", "anthropic"]
    model: str
    scenario: Scenario
    rows: tuple[Row, ...]

    @cached_property
    def ideal(self) -> float:
        """Return the seconds that a client needs if it knows every limit from the start."""
        return ideal_makespan(self.scenario, [_call(row) for row in self.rows])


OPENAI = Scenario(
    dialect="openai",
    # Six seconds in place of a minute: OpenAI's reset headers state the length, so any length works.
    limiters=(Limit(limit=60, window=6.0), Limit(limit=2000, window=6.0, unit="tokens")),
    latency=Distribution.parse("lognormal:0.25,0.3"),
)

ANTHROPIC = Scenario(
    dialect="anthropic",
    # A real minute: Anthropic's headers do not state its length, and a client assumes the documented one.
    limiters=(
        Limit(limit=180),
        Limit(limit=6000, unit="input_tokens"),
        Limit(limit=1000, unit="output_tokens"),
    ),
    latency=Distribution.parse("lognormal:0.35,0.3"),
)


def load_rows() -> tuple[Row, ...]:
    packed = resources.files("tidegate.testing.demo").joinpath("questions.jsonl.gz").read_bytes()
    text = gzip.decompress(packed).decode("utf-8")
    return tuple(Row(**json.loads(line)) for line in text.splitlines())


def tracks(number: int | None = None, seed: int = 0) -> tuple[Track, ...]:
    """Return both providers with half of `number` rows each (None: all rows). The same seed gives the same rows."""
    rows = load_rows()
    number = len(rows) if number is None else number
    if not MIN_ROWS <= number <= len(rows):
        raise ConfigurationError("rows", number, f"between {MIN_ROWS} and {len(rows)}")
    chosen = random.Random(seed).sample(rows, number)
    half = number // 2
    return (
        Track("openai", "gpt-5-mini", _playing(OPENAI, chosen[:half], seed), tuple(chosen[:half])),
        Track("anthropic", "claude-sonnet-5", _playing(ANTHROPIC, chosen[half:], seed), tuple(chosen[half:])),
    )


def _playing(scenario: Scenario, rows: Sequence[Row], seed: int) -> Scenario:
    return scenario.replace(answers={row.question: row.answer for row in rows}, seed=seed)


def _call(row: Row) -> Call:
    return Call(_tokens(row.question), _tokens(row.answer), MAX_TOKENS)


def _tokens(text: str) -> int:
    # The simulator counts the tokens of a text in the same way (`tidegate.testing.formats.base.tokens_in`).
    return max(1, -(-len(text) // 4))
