"""Providers that deviate from their dialect: in roundings, statuses, charges, and a gateway in front."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from tidegate.errors import ConfigurationError
from tidegate.testing import Call, ContinuousBucket, Limit, Pricing, Refusal, Scenario, Simulator
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts

WALL = datetime(2026, 4, 23, 20, 50, 36, 900_123, tzinfo=UTC).timestamp()


def test_headers_carry_the_rounding():
    bucket = ContinuousBucket("tokens", "tokens", limit=60_000, window=3.0)
    bucket.charge(4368, 0.0)
    levels = [bucket.level(0.0)]
    assert ("x-ratelimit-reset-tokens", "219ms") in DIALECT_TABLE["openai"].headers(levels, WALL, "ms-up")
    assert ("x-ratelimit-reset-tokens", "218ms") in DIALECT_TABLE["openai"].headers(levels, WALL)
    anthropic = dict(DIALECT_TABLE["anthropic"].headers(levels, WALL, "ms"))
    assert anthropic["anthropic-ratelimit-tokens-reset"] == "2026-04-23T20:50:37.118Z"


def refusals(scenario: Scenario, count: int) -> list[Refusal]:
    gate = scenario.gate()
    return [gate.admit(Call(), 0.0) for _ in range(count)]


def test_a_limit_answers_with_its_statuses_in_turn():
    limit = Limit(limit=1, window=1.0, statuses=(429, 503, 529))
    found = refusals(Scenario(limiters=(limit,), dialect="none"), 5)[1:]
    said = [DIALECT_TABLE["none"].refuse(each, RefusalFacts("m", 1.0, prose=True)) for each in found]
    assert [each.status for each in said] == [429, 503, 529, 429]
    assert not any(each.headers for each in said)
    with pytest.raises(ConfigurationError):
        Limit(limit=1, statuses=(400,))


def test_cached_input_is_free_and_a_call_has_a_least_charge():
    cached = Pricing(cached_tokens=100)
    assert [cached.at_admission("tokens", Call(size)) for size in (60, 100, 250)] == [0, 0, 150]
    least = Pricing(charge="produced", least_tokens=50)
    assert [least.at_admission("input_tokens", Call(size)) for size in (20, 80)] == [50, 80]
    assert [least.at_end("tokens", Call(20), output) for output in (10, 70)] == [50, 90]


def test_a_gateway_refuses_in_words_of_its_own():
    scenario = Scenario(dialect="openai", limiters=(Limit(limit=1),), refusals="none")
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with Simulator(scenario) as provider:
        first, second = (httpx.post(f"{provider.openai_url}/chat/completions", json=body) for _ in range(2))
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert (second.status_code, "x-ratelimit-limit-requests" in second.headers) == (429, False)
    assert second.json() == {"error": {"message": "Too Many Requests"}}
