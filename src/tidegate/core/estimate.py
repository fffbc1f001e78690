"""What a request will be charged, learned per key from what earlier ones used."""

from __future__ import annotations

from tidegate.core.vocabulary import Inquiry, Usage

CHARS_PER_TOKEN = 4.0
"""Prior: about four characters of English a token (OpenAI help centre, "What are tokens and how to count them")."""

CHARS_BOUNDS = (0.5, 16.0)
OUTPUT_PRIOR = 256.0
"""Prior for the length of an answer in tokens, until the key's own answers are known."""

MEMORY = 0.9
"""Weight of the past in each running mean: about the last ten answers (curator keeps the last fifty)."""


class Estimate:
    """Running means of one key: `chars_per_token` of its requests, tokens per answer in `mean_output`."""

    __slots__ = ("_chars", "_tokens", "chars_per_token", "mean_output", "version")

    def __init__(self) -> None:
        self._chars = CHARS_PER_TOKEN
        self._tokens = 1.0
        self.chars_per_token = CHARS_PER_TOKEN
        self.mean_output = OUTPUT_PRIOR
        self.version = 0

    def learn(self, inquiry: Inquiry, usage: Usage) -> None:
        """Takes in what one answered request used; `version` counts these lessons."""
        self.version += 1
        tokens = usage.input_tokens
        if tokens > 0 and inquiry.input_chars > 0:
            self._chars = MEMORY * self._chars + inquiry.input_chars
            self._tokens = MEMORY * self._tokens + tokens
            low, high = CHARS_BOUNDS
            self.chars_per_token = min(high, max(low, self._chars / self._tokens))
        if usage.output_tokens > 0:
            self.mean_output = MEMORY * self.mean_output + (1.0 - MEMORY) * usage.output_tokens
