"""What a request will be charged, learned per key from what earlier ones used."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.core.vocabulary import Inquiry, Usage

CHARS_PER_TOKEN = 4.0
"""Prior: about four characters of English a token (OpenAI help centre, "What are tokens and how to count them")."""

CHARS_BOUNDS = (0.5, 16.0)
OUTPUT_PRIOR = 256.0
"""Prior for the length of an answer in tokens, until the key's own answers are known."""

OUTPUT_MOST = 1e6
"""Tokens of an answer, at the most (the longest that any provider writes today is 128,000)."""

DOUBTED = 4.0
"""A first answer that is so many times off what an earlier run foretold proves that run out of date."""

MEMORY = 0.9
"""Weight of the past in each running mean: about the last ten answers (curator keeps the last fifty)."""


class Estimate:
    """Running means of one key: `chars_per_token` of its requests, tokens per answer in `mean_output`."""

    __slots__ = ("_chars", "_seeded", "_tokens", "chars_per_token", "mean_output", "version")

    def __init__(self) -> None:
        self._forget()
        self.version = 0

    def _forget(self) -> None:
        self._seeded = False
        self._chars = CHARS_PER_TOKEN
        self._tokens = 1.0
        self.chars_per_token = CHARS_PER_TOKEN
        self.mean_output = OUTPUT_PRIOR

    def export(self, now: float) -> dict[str, float]:
        """The running means, for a later run; nothing before the first lesson."""
        if not self.version:
            return {}
        return {"chars_per_token": self.chars_per_token, "mean_output": self.mean_output}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Begins with the means of an earlier run, with the weight of one answer."""
        low, high = CHARS_BOUNDS
        self.chars_per_token = self._chars = min(high, max(low, plain.get("chars_per_token", CHARS_PER_TOKEN)))
        self.mean_output = min(OUTPUT_MOST, max(1.0, plain.get("mean_output", OUTPUT_PRIOR)))
        self._seeded = True

    def learn(self, inquiry: Inquiry, usage: Usage) -> None:
        """Takes in what one answered request used; `version` counts these lessons."""
        self.version += 1
        tokens = usage.input_tokens
        if self._seeded:
            self._try(inquiry, usage)
        if tokens > 0 and inquiry.input_chars > 0:
            self._chars = MEMORY * self._chars + inquiry.input_chars
            self._tokens = MEMORY * self._tokens + tokens
            low, high = CHARS_BOUNDS
            self.chars_per_token = min(high, max(low, self._chars / self._tokens))
        if usage.output_tokens > 0:
            self.mean_output = MEMORY * self.mean_output + (1.0 - MEMORY) * usage.output_tokens

    def _try(self, inquiry: Inquiry, usage: Usage) -> None:
        # The first answer judges what an earlier run knew: far off, the means begin anew.
        foretold = (
            (inquiry.input_chars / self.chars_per_token, usage.input_tokens),
            (self.mean_output, usage.output_tokens),
        )
        if any(told and seen and not told / DOUBTED <= seen <= told * DOUBTED for told, seen in foretold):
            self._forget()
        self._seeded = False
