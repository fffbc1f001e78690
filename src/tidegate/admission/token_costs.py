"""Costs of the answers of a key, by the prices of the provider tables and those that users add."""

from __future__ import annotations

from tidegate.core.token_totals import TokenCounter
from tidegate.core.values import Key, Usage
from tidegate.providers import price_of


def cost_of(key: Key, usage: Usage) -> int | None:
    """Return the cost of an answer in units of 1e-9 US dollars; None where the price of its model is unknown."""
    price = price_of(key.provider, usage.model)
    return None if price is None else price.nanodollars(usage)


def count_usage(counter: TokenCounter, key: Key, usage: Usage) -> None:
    """Add an answer of `key` to its totals."""
    counter.add(usage, cost_of(key, usage))
