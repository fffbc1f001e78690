"""Announced rolling windows, which turn out to be such while their first calls are still under way."""

from __future__ import annotations

from bench.families import WINDOWS
from bench.scenarios import Row
from bench.virtual import run
from tidegate.testing import Distribution, Limit, Scenario


def rolling(*limits: Limit, count: int) -> Row:
    return Row(
        name="rolling",
        family=WINDOWS,
        scenario=Scenario(
            dialect="openai",
            limiters=limits,
            resets="ms-up",
            charge="input",
            latency=Distribution.lognormal(0.452, 0.26),
        ),
        count=count,
        sizes=(142, 568),
        max_tokens=64,
    )


def test_all_calls_before_the_turn_count_whichever_answers_have_found_them() -> None:
    row = rolling(Limit(kind="rolling", limit=200, window=60.0), count=403)
    assert [run(row, seed).refused_share for seed in (12, 16)] == [0.0, 0.0]


def test_calls_that_only_the_turn_finds_come_back_a_window_after_they_arrived() -> None:
    """New connections delay a first wave: a window after its sending, its last calls are not back."""
    limits = Limit(limit=1e7, window=60.0), Limit(kind="rolling", limit=75_000, window=60.0, unit="tokens")
    assert max(run(rolling(*limits, count=376), seed).refused_share for seed in (14, 20)) < 0.01
