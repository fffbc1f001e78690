"""Costs of the answers of a key, by the prices of the provider tables and those that users add.

Work with a budget in US dollars sends no request whose price is unknown. A `PriceGuard` in its context gets the model
of such a call, which is answered without a request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias

from tidegate.core.token_totals import TokenCounter
from tidegate.core.values import Key, Usage
from tidegate.providers import price_of

PriceGuard: TypeAlias = Callable[[Key, str], object]
"""Receiver of the key and the model of a call without a price."""

_guard: ContextVar[PriceGuard | None] = ContextVar("tidegate_price_guard", default=None)

price_guard = _guard.get
"""Return the guard of this context, or None where calls without a price are sent."""

require_prices = _guard.set
"""Let calls of this context be answered without a request where their price is unknown; the guard gets them."""


def cost_of(key: Key, usage: Usage) -> int | None:
    """Return the cost of an answer in units of 1e-9 US dollars; None where the price of its model is unknown."""
    price = price_of(key.provider, usage.model, usage.tier)
    return None if price is None else price.nanodollars(usage)


def count_usage(counter: TokenCounter, key: Key, usage: Usage) -> None:
    """Add an answer of `key` to its totals."""
    counter.add(usage, cost_of(key, usage))
