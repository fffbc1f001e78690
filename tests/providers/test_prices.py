"""Prices of models, and the costs of answers by them, against figures that were computed by hand."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path

import pytest

from tidegate.core.values import Usage
from tidegate.errors import ConfigurationError
from tidegate.providers import ModelPrice, load_prices, price_of, register_price, table_of
from tidegate.providers._prices import PRICES, _added


@pytest.fixture(autouse=True)
def _only_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.providers._prices._added", dict(_added))


BY_HAND = [
    # provider, model, usage, dollars, dollars in a batch
    # 1,000 of input at .15 and 500 of output at .6 a million: .00015 + .0003
    ("openai", "gpt-4o-mini", Usage(1_000, 500), 0.00045, 0.000225),
    # 600 plain at .15, 400 cached at .075, 500 of output at .6: .00009 + .00003 + .0003
    ("openai", "gpt-4o-mini", Usage(1_000, 500, 400), 0.00042, 0.00021),
    # Reasoning is output: 2,000 at 10 a million, 100 of input at 1.25
    ("openai", "gpt-5", Usage(100, 2_000, 0, 0, 1_800), 0.020125, 0.0100625),
    # 300,000 of input is more than 272,000: 250,000 plain at 5, 50,000 cached at .5, 1,000 of output at 22.5
    ("openai", "gpt-5.4", Usage(300_000, 1_000, 50_000), 1.2975, 0.64875),
    # 300,000 of input is more than 272,000: 200,000 plain at 8, 60,000 cached at .8, 40,000 written at 10, 100 at 30
    ("openai", "gpt-5.6-sol", Usage(300_000, 100, 60_000, 40_000), 2.051, 1.0255),
    # 1,000 of input at 30 and 2,000 of output at 180; cached input has no price of its own
    ("openai", "gpt-5.5-pro-2026-04-23", Usage(1_000, 2_000, 500), 0.39, 0.195),
    ("openai", "gpt-5.3-codex", Usage(1_000_000, 1_000_000), 15.75, 7.875),
    ("openai", "gpt-3.5-turbo", Usage(1_000_000, 1_000_000), 2.0, 1.0),
    # 600 plain at .25, 400 written to the cache at .3, 100 of output at 1.25
    ("anthropic", "claude-3-haiku-20240307", Usage(1_000, 100, 0, 400), 0.000395, 0.0001975),
    # 100 plain at 3, 900 read from the cache at .3, 2,000 written to it at 3.75, 50 of output at 15
    ("anthropic", "claude-sonnet-4-6", Usage(3_000, 50, 900, 2_000), 0.00882, 0.00441),
    ("anthropic", "claude-haiku-4-5", Usage(1_000_000, 1_000_000), 6.0, 3.0),
    # 200,001 plain of more than 200,000: 200,001 at 6, 10 of output at 22.5
    ("anthropic", "claude-sonnet-4-5", Usage(200_001, 10), 1.200231, 0.6001155),
    # 10,000 plain at 1.25, 30,000 cached at .125, 5,000 of output (4,000 of it thought) at 10
    ("gemini", "gemini-2.5-pro", Usage(40_000, 5_000, 30_000, 0, 4_000), 0.06625, 0.033125),
    ("vertex", "gemini-3.5-flash-lite", Usage(1_000, 1_000), 0.0028, 0.0014),
]


@pytest.mark.parametrize(("provider", "model", "usage", "dollars", "in_a_batch"), BY_HAND)
def test_costs_are_those_computed_by_hand(
    provider: str, model: str, usage: Usage, dollars: float, in_a_batch: float
) -> None:
    price = price_of(provider, model)
    assert price is not None
    assert price.nanodollars(usage) == round(dollars * 1e9)
    assert price.nanodollars(usage, batch=True) == round(in_a_batch * 1e9)


def test_every_row_has_a_source_and_a_date() -> None:
    for price in (price for prices in PRICES.values() for price in prices):
        assert price.source.startswith("https://")
        assert price.on is not None


def test_every_price_is_found_by_the_name_of_the_provider_that_answers() -> None:
    hosts = {
        "openai": "api.openai.com",
        "anthropic": "api.anthropic.com",
        "gemini": "generativelanguage.googleapis.com",
        "vertex": "us-central1-aiplatform.googleapis.com",
    }
    found = {name: table_of(host) for name, host in hosts.items()}
    for provider, model in PRICES:
        table = found[provider]
        assert table is not None
        assert price_of(table.name, model) is not None


def test_a_price_whose_end_is_announced_holds_until_then() -> None:
    price = price_of("gemini", "gemini-3.6-flash", day=date(2026, 12, 31))
    later = price_of("gemini", "gemini-3.6-flash", day=date(2027, 1, 1))
    assert price is not None
    assert later is not None
    assert (price.input, price.until, later.input, later.until) == (0.75, date(2026, 12, 31), 1.5, None)


def test_a_registered_price_that_has_ended_gives_way_to_the_table() -> None:
    register_price("gpt-4o-mini", ModelPrice(1.0, 2.0, until=date(2026, 1, 1)))
    (listed,) = PRICES["openai", "gpt-4o-mini"]
    assert price_of("openai", "gpt-4o-mini", day=date(2026, 1, 2)) is listed


@pytest.mark.parametrize(
    ("provider", "model", "same_as"),
    [
        ("openai", "gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("anthropic", "claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("anthropic", "claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("anthropic", "claude-3-5-sonnet-20241022", "claude-3-5-sonnet"),
        ("openai", "gpt-4-turbo-2024-04-09", "gpt-4-turbo"),
        ("openai", "o3-mini-2025-01-31", "o3-mini"),
        ("openai", "o1-2024-12-17", "o1"),
        ("gemini", "models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("vertex", "gemini-3.1-pro-preview", "gemini-3.1-pro"),
    ],
)
def test_versions_of_a_model_have_its_price(provider: str, model: str, same_as: str) -> None:
    assert price_of(provider, model) is PRICES[provider, same_as][0]


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-mini-tuned"),
        ("azure", "gpt-4o-mini"),
        ("openai", ""),
        ("compatible", "gpt-5"),
        ("openai", "gpt"),
    ],
)
def test_nothing_is_guessed(provider: str, model: str) -> None:
    assert price_of(provider, model) is None


def test_a_registered_price_comes_before_the_table_and_may_be_of_one_provider() -> None:
    ours, theirs = ModelPrice(1.0, 2.0), ModelPrice(3.0, 4.0)
    register_price("gpt-4o-mini", ours)
    register_price("deployment", theirs, provider="azure")
    assert price_of("openai", "gpt-4o-mini-2024-07-18") is ours
    assert price_of("azure", "deployment") is theirs
    assert price_of("openai", "deployment") is None


def test_a_service_tier_has_the_price_that_is_registered_for_it_alone() -> None:
    assert price_of("openai", "gpt-5-mini", "flex") is None
    flex = ModelPrice(0.125, 1.0)
    register_price("gpt-5-mini@flex", flex)
    assert price_of("openai", "gpt-5-mini", "flex") is flex
    assert price_of("openai", "gpt-5-mini", "priority") is None


def test_prices_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({
        "llama": {"input": 0.1, "output": 0.2, "batch": 0.5, "on": "2026-11-01", "source": "the contract"},
        "azure/mine": {"input": 1, "output": 2, "cached": 0},
    }))  # fmt: skip
    load_prices(path)
    price = price_of("compatible", "llama")
    assert price == ModelPrice(0.1, 0.2, batch=0.5, on=date(2026, 11, 1), source="the contract")
    mine = price_of("azure", "mine")
    assert mine is not None
    assert mine.nanodollars(Usage(10, 1, 4)) == 8_000


def test_a_slash_in_a_file_of_prices_is_of_the_model_unless_a_provider_is_before_it(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({
        "meta-llama/Llama-3.3-70B": {"input": 1, "output": 2},
        "groq/openai/gpt-oss-120b": {"input": 3, "output": 4},
        "accounts/fireworks/models/qwen": {"input": 5, "output": 6},
    }))  # fmt: skip
    load_prices(path)
    assert price_of("together", "meta-llama/Llama-3.3-70B") == ModelPrice(1, 2)
    assert price_of("together", "Llama-3.3-70B") is None
    assert price_of("groq", "openai/gpt-oss-120b") == ModelPrice(3, 4)
    assert price_of("openai", "gpt-oss-120b") is None
    assert price_of("fireworks", "accounts/fireworks/models/qwen") == ModelPrice(5, 6)


def test_a_version_with_a_price_of_its_own_has_it() -> None:
    first, later = price_of("openai", "gpt-4o-2024-05-13"), price_of("openai", "gpt-4o-2024-08-06")
    assert first is not None
    assert later is not None
    assert (first.input, first.output, later.input, later.output) == (5.0, 15.0, 2.5, 10.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "JSON"),
        ("[]", "JSON object"),
        ('{"m": {"input": -1, "output": 1}}', "price of m"),
        ('{"m": {"input": 1}}', "price of m"),
        ('{"m": {"input": 1, "output": 1, "inputs": 1}}', "price of m"),
        ('{"m": {"input": 1, "output": true}}', "price of m"),
        ('{"m": {"input": 1, "output": 1, "on": "soon"}}', "2026-11-24"),
    ],
)
def test_a_file_with_an_unusable_price_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load_prices(path)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, None, "1", True])
def test_a_price_that_is_no_amount_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError):
        ModelPrice(value, 1.0)  # type: ignore[arg-type]
