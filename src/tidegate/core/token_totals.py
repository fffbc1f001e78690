"""Totals of the tokens that answers state, and of their cost."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import floor, log10
from operator import attrgetter
from typing import NamedTuple

from tidegate.core.values import Usage

DOLLARS_PER_UNIT = 1e-9
"""US dollars of one unit in which costs are counted. Sums of whole units are exact. Derived from the lowest prices: one
token costs at least 5 of them."""


class TokenTotals(NamedTuple):
    """Tokens of the answers whose usage is known, and what they cost.

    `metered` answers stated their usage. `input_tokens` include the `cached_tokens`, which were read from a cache, and
    the `cache_write_tokens`. `output_tokens` include the `reasoning_tokens`. `priced` answers have a known price, and
    cost `nanodollars` together (units of 1e-9 US dollars).
    """

    metered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    priced: int = 0
    nanodollars: int = 0

    @property
    def cost(self) -> float | None:
        """Return the cost in US dollars; None where the price of any metered answer is unknown, or none is metered."""
        return self.nanodollars * DOLLARS_PER_UNIT if self.metered and self.priced == self.metered else None

    def plus(self, other: TokenTotals) -> TokenTotals:
        return TokenTotals(*(one + another for one, another in zip(self, other, strict=True)))

    def less(self, other: TokenTotals) -> TokenTotals:
        return TokenTotals(*(one - another for one, another in zip(self, other, strict=True)))


def added(parts: Iterable[TokenTotals]) -> TokenTotals:
    return reduce(TokenTotals.plus, parts, TokenTotals())


def totals_of(usage: Usage, nanodollars: int | None) -> TokenTotals:
    """Return the totals of one answer; `nanodollars` is None where its price is unknown."""
    return TokenTotals(
        1,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        int(nanodollars is not None),
        nanodollars or 0,
    )


def tokens_text(tokens: TokenTotals) -> str:
    """Return tokens and cost in words, as `1200 input + 340 output tokens, $0.0021`; empty without a metered answer."""
    if not tokens.metered:
        return ""
    words = f"{tokens.input_tokens} input + {tokens.output_tokens} output tokens"
    return ", ".join(filter(None, (words, cost_text(tokens))))


def cost_text(tokens: TokenTotals, least: str = "at least ") -> str:
    """Return the cost in words: `$0.0021`, with `least` before it where a part has no price; empty without any."""
    if not tokens.priced:
        return ""
    least = "" if tokens.cost is not None else least
    return f"{least}{dollars(tokens.nanodollars * DOLLARS_PER_UNIT)}"


def token_facts(tokens: TokenTotals) -> dict[str, float | int | None]:
    """Return tokens and cost as plain values; the cost is None where the price of any answer is unknown."""
    counts: dict[str, float | int | None] = dict(tokens._asdict())
    del counts["nanodollars"]
    return {**counts, "cost": tokens.cost}


def dollars(amount: float) -> str:
    """Return an amount in US dollars: in cents from a dollar up, else with two digits that are not 0."""
    if amount >= 1.0 or amount == 0.0:
        return f"${amount:,.2f}"
    return f"${amount:.{2 - floor(log10(amount)) - 1}f}"


FIELDS = attrgetter(*TokenTotals._fields)
"""Function that returns the totals of a counter as a plain tuple."""


class TokenCounter:
    """Running totals of the tokens of one key."""

    __slots__ = TokenTotals._fields

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Restart the totals at zero."""
        self.metered = self.input_tokens = self.output_tokens = self.cached_tokens = self.cache_write_tokens = 0
        self.reasoning_tokens = self.priced = self.nanodollars = 0

    def add(self, usage: Usage, nanodollars: int | None) -> None:
        """Count one answer; `nanodollars` is None where its price is unknown."""
        tokens, output, cached, written, thought, _, _ = usage
        self.metered += 1
        self.input_tokens += tokens
        self.output_tokens += output
        if cached or written or thought:
            self.cached_tokens += cached
            self.cache_write_tokens += written
            self.reasoning_tokens += thought
        if nanodollars is not None:
            self.priced += 1
            self.nanodollars += nanodollars

    @property
    def totals(self) -> TokenTotals:
        return TokenTotals(*FIELDS(self))
