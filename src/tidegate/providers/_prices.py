"""Prices of models: a table of the main ones, with a source and a date on each row, and prices that users add.

A model without a row has no price, and no cost is shown for it: a guess would be worse. A deployment of Azure OpenAI
and a model of a self-hosted server have names of their users' choice, so they have no row either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from tidegate.core.token_totals import TokenCounter
from tidegate.core.values import Usage
from tidegate.errors import ConfigurationError, require
from tidegate.providers._lookup import named

OPENAI_PAGE = "https://platform.openai.com/docs/pricing"
ANTHROPIC_PAGE = "https://www.anthropic.com/pricing#api"
GOOGLE_PAGE = "https://ai.google.dev/gemini-api/docs/pricing"
_GEMINI_LIST = "https://www.morphllm.com/gemini-api-pricing (cached: public GitHub file 71179640724), read 2026-11-27"
_GEMINI_2 = "https://www.morphllm.com/gemini-api-pricing (cached: public GitHub file 52802858506), read 2026-11-27"
_GEMINI_OFFER = (
    "https://raw.githubusercontent.com/api-evangelist/deepmind/refs/heads/main/plans/deepmind-plans-pricing.yml "
    "(ai.google.dev as of 2026-10-07), public GitHub file 70095873909, read 2026-11-27"
)
_GPT_6 = (
    "https://platform.openai.com/docs/pricing, as in public GitHub files 70095873909 and 69383373592, read 2026-11-27"
)
_EMBEDDINGS = (
    "https://platform.openai.com/docs/pricing, as in public GitHub files 60368387976, 31474524636, read 2026-11-27"
)
_LISTED = (
    "https://developers.openai.com/api/docs/pricing, as in model_prices_and_context_window_backup.json of litellm "
    "1.110.2, read 2026-11-30"
)
_CLAUDE_3 = "https://docs.anthropic.com/en/docs/about-claude/pricing (cached, of Claude Opus 4.1), read 2026-11-30"
_CLAUDE = (
    "https://www.anthropic.com/pricing#api, as in public GitHub files 70226893210 and 69449325582, read 2026-11-27"
)

PRICES_DATE = date(2026, 11, 24)
"""Day on which the rows were read. `tidegate doctor` reports a table that is older than `PRICES_MAX_AGE_DAYS`."""

PRICES_MAX_AGE_DAYS = 365
"""Days after which the table counts as old. Chosen: a provider changes the price of a model less than once a year, and
adds models more often."""

TOKENS = 1_000_000
"""Tokens that a price is for: all providers of the table state prices for a million."""

BATCH = 0.5
"""Factor of the Batch APIs of all three providers. Source: the pages of the table."""

VERSION = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest|preview(?:-\d{2}-\d{4})?)\Z")
"""Suffix of a model's name that states a version of the same price."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Price of a model in US dollars for a million tokens.

    `cached` is for input that is read from a cache, and `cache_write` for input that is written to one; both are the
    price of `input` by default. `batch` is the factor of a provider's Batch API. Input of more than `long_from` tokens
    costs `long_input` (its cached parts in the same ratio), and its output `long_output`; None means that no such
    rule exists. The price holds through the day `until`, where its end is announced. A negative or infinite number
    raises `ConfigurationError`.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    batch: float = 1.0
    long_from: int | None = None
    long_input: float | None = None
    long_output: float | None = None
    source: str = ""
    on: date | None = None
    until: date | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write", "batch", "long_from", "long_input", "long_output"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < float("inf")
            optional = value is None and name not in ("input", "output", "batch")
            require(number or optional, f"price {name}", value, "a number of US dollars, 0 or more")

    def nanodollars(self, usage: Usage, batch: bool = False) -> int:
        """Return the cost of a usage in units of 1e-9 US dollars, rounded."""
        tokens, produced, cached, written, _, _, _ = usage
        if not (cached or written or batch or self.long_from is not None):
            # Most usages: written out, because every answer comes here.
            return round(1_000.0 * (tokens * self.input) + 1_000.0 * produced * self.output)
        plain = max(0, tokens - cached - written)
        of_cached = self.input if self.cached is None else self.cached
        of_written = self.input if self.cache_write is None else self.cache_write
        # A price for a million tokens is 1,000 units of each token.
        spent = 1_000.0 * (plain * self.input + cached * of_cached + written * of_written)
        output = self.output
        if self.long_from is not None and tokens > self.long_from:
            spent *= 1.0 if self.long_input is None or not self.input else self.long_input / self.input
            output = output if self.long_output is None else self.long_output
        spent += 1_000.0 * produced * output
        return round(spent * self.batch if batch else spent)


def _row(
    model: str,
    input: float,
    cached: float | None,
    output: float,
    cache_write: float | None = None,
    *long: float,
    source: str = "",
    until: date | None = None,
) -> tuple[str, ModelPrice]:
    """Return a model and its price; `long` is the least long input, and the prices of long input and output."""
    above, (of_input, of_output) = (int(long[0]), long[1:]) if long else (None, (None, None))
    price = ModelPrice(
        input, output, cached, cache_write, BATCH, above, of_input, of_output, source, PRICES_DATE, until
    )
    return model, price


_OPENAI = (
    _row("gpt-4o", 2.5, 1.25, 10.0),
    _row("gpt-4o-2024-05-13", 5.0, 5.0, 15.0),
    _row("gpt-4o-mini", 0.15, 0.075, 0.6),
    _row("gpt-4.1", 2.0, 0.5, 8.0),
    _row("gpt-4.1-mini", 0.4, 0.1, 1.6),
    _row("gpt-4.1-nano", 0.1, 0.025, 0.4),
    _row("gpt-3.5-turbo", 0.5, None, 1.5, source=_LISTED),
    _row("gpt-4-turbo", 10.0, None, 30.0, source=_LISTED),
    _row("o1", 15.0, 7.5, 60.0, source=_LISTED),
    _row("o1-pro", 150.0, None, 600.0, source=_LISTED),
    _row("o3", 2.0, 0.5, 8.0),
    _row("o3-mini", 1.1, 0.55, 4.4, source=_LISTED),
    _row("o3-pro", 20.0, None, 80.0, source=_LISTED),
    _row("o4-mini", 1.1, 0.275, 4.4),
    _row("gpt-5", 1.25, 0.125, 10.0),
    _row("gpt-5-codex", 1.25, 0.125, 10.0, source=_LISTED),
    _row("gpt-5-pro", 15.0, None, 120.0, source=_LISTED),
    _row("gpt-5-mini", 0.25, 0.025, 2.0),
    _row("gpt-5-nano", 0.05, 0.005, 0.4),
    _row("gpt-5.1", 1.25, 0.125, 10.0),
    _row("gpt-5.1-codex", 1.25, 0.125, 10.0, source=_LISTED),
    _row("gpt-5.1-codex-max", 1.25, 0.125, 10.0, source=_LISTED),
    _row("gpt-5.1-codex-mini", 0.25, 0.025, 2.0, source=_LISTED),
    _row("gpt-5.2", 1.75, 0.175, 14.0),
    _row("gpt-5.2-codex", 1.75, 0.175, 14.0, source=_LISTED),
    _row("gpt-5.2-pro", 21.0, None, 168.0, source=_LISTED),
    _row("gpt-5.3-codex", 1.75, 0.175, 14.0, source=_LISTED),
    _row("gpt-5.4", 2.5, 0.25, 15.0, None, 272_000, 5.0, 22.5),
    _row("gpt-5.4-mini", 0.75, 0.075, 4.5),
    _row("gpt-5.4-nano", 0.2, 0.02, 1.25),
    _row("gpt-5.4-pro", 30.0, None, 180.0, None, 272_000, 60.0, 270.0, source=_LISTED),
    _row("gpt-5.5", 5.0, 0.5, 30.0, None, 272_000, 10.0, 45.0),
    _row("gpt-5.5-pro", 30.0, None, 180.0, None, 272_000, 60.0, 270.0, source=_LISTED),
    _row("gpt-5.6-luna", 0.2, 0.02, 1.2, source=_GPT_6),
    _row("gpt-5.6-sol", 4.0, 0.4, 20.0, 5.0, 272_000, 8.0, 30.0, source=_LISTED),
    _row("gpt-5.6-terra", 2.0, 0.2, 12.0, 2.5, 272_000, 4.0, 18.0),
    _row("gpt-6-astra", 10.0, 1.0, 50.0, None, 272_000, 20.0, 75.0, source=_GPT_6),
    _row("gpt-6-luna", 0.1, 0.01, 0.5, source=_GPT_6),
    _row("gpt-6-sol", 2.0, 0.2, 10.0, 2.5, 272_000, 4.0, 15.0),
    _row("gpt-6.1-sol", 2.0, 0.1, 10.0, 2.5, 272_000, 4.0, 15.0),
    _row("gpt-6.1-terra", 1.0, 0.05, 5.0, 1.25, 272_000, 2.0, 7.5),
    _row("text-embedding-3-small", 0.02, None, 0.0, source=_EMBEDDINGS),
    _row("text-embedding-3-large", 0.13, None, 0.0, source=_EMBEDDINGS),
)
_ANTHROPIC = (
    _row("claude-3-haiku", 0.25, 0.03, 1.25, 0.3, source=_CLAUDE_3),
    _row("claude-3-5-sonnet", 3.0, 0.3, 15.0, 3.75, source=_CLAUDE_3),
    _row("claude-3-7-sonnet", 3.0, 0.3, 15.0, 3.75, source=_CLAUDE_3),
    _row("claude-3-5-haiku", 0.8, 0.08, 4.0, 1.0),
    _row("claude-opus-4", 15.0, 1.5, 75.0, 18.75),
    _row("claude-opus-4-0", 15.0, 1.5, 75.0, 18.75),
    _row("claude-opus-4-1", 15.0, 1.5, 75.0, 18.75),
    _row("claude-opus-4-5", 5.0, 0.5, 25.0, 6.25),
    _row("claude-opus-4-6", 5.0, 0.5, 25.0, 6.25),
    _row("claude-opus-4-7", 5.0, 0.5, 25.0, 6.25),
    _row("claude-opus-4-8", 5.0, 0.5, 25.0, 6.25),
    _row("claude-opus-5", 5.0, 0.5, 25.0, 6.25),
    _row("claude-opus-5-5", 4.0, 0.2, 20.0, 5.0),
    _row("claude-sonnet-4", 3.0, 0.3, 15.0, 3.75),
    _row("claude-sonnet-4-0", 3.0, 0.3, 15.0, 3.75),
    _row("claude-sonnet-4-5", 3.0, 0.3, 15.0, 3.75, 200_000, 6.0, 22.5),
    _row("claude-sonnet-4-6", 3.0, 0.3, 15.0, 3.75),
    _row("claude-sonnet-5", 2.0, 0.2, 10.0, 2.5),
    _row("claude-sonnet-5-5", 2.0, 0.1, 10.0, 2.5),
    _row("claude-haiku-4-5", 1.0, 0.1, 5.0, 1.25),
    _row("claude-haiku-5-5", 0.1, 0.01, 0.5, 0.125, 100_000, 0.5, 2.5, source=_CLAUDE),
    _row("claude-fable-5", 10.0, 1.0, 50.0, 12.5, source=_CLAUDE),
    _row("claude-fable-5-1", 10.0, 0.25, 50.0, 12.5, source=_CLAUDE),
)
_GOOGLE = (
    _row("gemini-2.5-pro", 1.25, 0.125, 10.0, None, 200_000, 2.5, 15.0),
    _row("gemini-2.5-flash", 0.3, 0.03, 2.5, source=_GEMINI_2),
    _row("gemini-2.5-flash-lite", 0.1, 0.01, 0.4, source=_GEMINI_2),
    _row("gemini-3-flash", 0.5, 0.05, 3.0, source=_GEMINI_LIST),
    _row("gemini-3.1-pro", 2.0, 0.2, 12.0, None, 200_000, 4.0, 18.0, source=_GEMINI_LIST),
    _row("gemini-3.1-flash-lite", 0.25, 0.025, 1.5, source=_GEMINI_LIST),
    _row("gemini-3.5-flash", 1.5, 0.15, 9.0),
    _row("gemini-3.5-flash-lite", 0.3, 0.03, 2.5),
    _row("gemini-3.6-flash", 0.75, 0.075, 3.75, source=_GEMINI_OFFER, until=date(2026, 12, 31)),
    _row("gemini-3.6-flash", 1.5, 0.15, 7.5),
    _row("gemini-3.8-flash", 0.75, 0.075, 3.75, source=_GEMINI_OFFER, until=date(2026, 12, 31)),
    _row("gemini-3.8-flash", 1.5, 0.15, 7.5),
    _row("gemini-4-argon", 4.0, 0.2, 20.0),
)

PRICES: dict[tuple[str, str], tuple[ModelPrice, ...]] = {}
"""Prices of the table, by the name of a provider's table and the model. Of several, each holds until its end."""

for _provider, _page, _rows in (
    ("openai", OPENAI_PAGE, _OPENAI),
    ("anthropic", ANTHROPIC_PAGE, _ANTHROPIC),
    ("gemini", GOOGLE_PAGE, _GOOGLE),
    ("vertex", GOOGLE_PAGE, _GOOGLE),
):
    for _model, _price_row in _rows:
        _priced = replace(_price_row, source=_price_row.source or _page)
        PRICES[_provider, _model] = (*PRICES.get((_provider, _model), ()), _priced)

_added: dict[tuple[str | None, str], ModelPrice] = {}


def register_price(model: str, price: ModelPrice, provider: str | None = None) -> None:
    """Set the price of a model, at one provider or at all. It has priority over the table.

    A deployment of Azure OpenAI counts as a model. Costs that were counted before do not change.
    """
    require(isinstance(model, str) and bool(model), "model", model, "the name of a model")
    require(isinstance(price, ModelPrice), "price", price, "a ModelPrice")
    _added[provider, model] = price


def price_of(provider: str, model: str, tier: str = "", day: date | None = None) -> ModelPrice | None:
    """Return the price of a model at a provider on a day, today by default; None where it is unknown.

    A name with a date, `-preview` or `-latest` at its end has the price of the name without it. A service `tier` has
    the price that is registered for `model@tier`.
    """
    for price in _find_rows(provider, model, tier) if _added else _rows_of(provider, model, tier):
        if price.until is None or (day or date.today()) <= price.until:
            return price
    return None


def count_usage(counter: TokenCounter, provider: str, usage: Usage) -> None:
    """Add an answer of a provider to the totals of its key, with its cost."""
    price = price_of(provider, usage[5], usage[6])
    counter.add(usage, None if price is None else price.nanodollars(usage))


def _find_rows(provider: str, model: str, tier: str) -> tuple[ModelPrice, ...]:
    """Return the prices that a model has or had; the first that holds counts."""
    name = model.removeprefix("models/")
    names = [f"{name}@{tier}"] if tier else [name, *([VERSION.sub("", name)] if VERSION.search(name) else [])]
    found = [
        (_added.get((provider, each)), _added.get((None, each)), *PRICES.get((provider, each), ())) for each in names
    ]
    return tuple(price for prices in found for price in prices if price is not None)


_rows_of = lru_cache(maxsize=1024)(_find_rows)
"""The same while no user has added a price: the table does not change."""


def load_prices(path: Path) -> None:
    """Register the prices of a JSON file: `{"model": {"input": 1.0, "output": 2.0}}`, or `"provider/model"`.

    The part before the first slash is a provider if it is the name of one. Any other slash belongs to the model, such
    as `meta-llama/Llama-3.3-70B`. The fields are those of `ModelPrice`. Raise `ConfigurationError` where the file
    cannot be read, or a price is invalid.
    """
    try:
        told = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "prices", str(path), f"it must be the path of a JSON file with prices ({error})"
        ) from None
    require(isinstance(told, Mapping), "prices", str(path), "a JSON object with a price for each model")
    for name, facts in told.items():
        provider, _, model = name.partition("/")
        is_provider = bool(model) and named(provider) is not None
        register_price(model if is_provider else name, _price(name, facts), provider if is_provider else None)


def _price(name: str, facts: Any) -> ModelPrice:
    known = {each.name for each in fields(ModelPrice)}
    whole = isinstance(facts, Mapping) and facts.keys() <= known and {"input", "output"} <= facts.keys()
    require(
        whole,
        f"price of {name}",
        facts,
        f"it must be an object with input, output and any of {', '.join(sorted(known))}",
    )
    given = dict(facts)
    for field in ("on", "until"):
        try:
            given[field] = date.fromisoformat(given[field]) if field in given else None
        except (TypeError, ValueError):
            raise ConfigurationError(f"price of {name}", given[field], f"a date like 2026-11-24 in `{field}`") from None
    try:
        return ModelPrice(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"price of {name}", error.value, f"{error.field}: {error.bound}") from None
