"""Cost estimate of a request, learned per key from the usage of earlier ones.

Theory of operation. Input tokens are a line over the input's characters, with a slope and the intercept `fixed_tokens`.
The intercept is the part that every request has (a template, tools). It is below zero where a prefix of all requests is
read from a cache that costs nothing. The line is fitted to the last answers, and follows their plain ratio where all
requests are equally long.

The length of an answer depends on the bound in the request: classifiers say `max_tokens: 16`, writers 4000, under the
same key. So each power of two of the bound has its own mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.core.values import PAST_WEIGHT_SHARE, RequestFacts, Usage

CHARS_PER_TOKEN = 4.0
"""Characters per token before the first answer. Source: about four characters of English per token (OpenAI help centre,
"What are tokens and how to count them")."""

CHARS_PER_TOKEN_BOUNDS = (0.5, 16.0)
"""Bounds of the learned characters per token. Chosen: a factor of four or more on either side of English prose."""

FIRST_OUTPUT_TOKENS = 256.0
"""Tokens expected of a first answer. Chosen: between a classifier's 16 tokens and a writer's 4000."""

MAX_SAVED_TOKENS = 1e6
"""Tokens that an earlier run may have found at most. Chosen: above the longest answers of today, which have 128,000."""

MAX_BELIEVED_TOKENS = 1e9
"""Most tokens or characters of one call that anything is learned from. Chosen: a greater value is nonsense."""

DOUBTED_MEAN_FACTOR = 4.0
"""Factor by which a first answer may differ from an earlier run's mean. Beyond it, that run is out of date. Chosen:
lengths of single answers vary, so a smaller difference proves nothing."""

EQUAL_LENGTHS_SHARE = 0.03
"""Share of their mean below which deviations of request lengths count as none: the line then follows the ratio. Chosen:
lengths that are nearly equal determine no slope."""

UNBOUNDED_KIND = -1


class CostEstimator:
    """Cost estimates of one key: a line that gives the input tokens of a request by its characters, and mean outputs.

    The mean tokens of an answer are kept overall (`mean_output`), and for each power of two of the request's bound.
    """

    __slots__ = (
        "_answers",
        "_products",
        "_seeded",
        "_squares",
        "_weight",
        "_x",
        "_y",
        "chars_per_token",
        "fixed_tokens",
        "mean_output",
        "version",
    )

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._squares = self._products = 0.0
        self._answers: dict[int, tuple[float, int]] = {}
        self._seeded = False
        self.chars_per_token = CHARS_PER_TOKEN
        self.fixed_tokens = 0.0
        self.mean_output = FIRST_OUTPUT_TOKENS
        self.version = 0

    def export(self, now: float) -> dict[str, float]:
        """Return the values that a later run may begin with; empty before the first answer."""
        if not self.version:
            return {}
        return {
            "chars_per_token": self.chars_per_token,
            "fixed_tokens": self.fixed_tokens,
            "mean_output": self.mean_output,
        }

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        low, high = CHARS_PER_TOKEN_BOUNDS
        self.chars_per_token = min(high, max(low, plain.get("chars_per_token", CHARS_PER_TOKEN)))
        self.fixed_tokens = min(MAX_SAVED_TOKENS, max(0.0, plain.get("fixed_tokens", 0.0)))
        self.mean_output = min(MAX_SAVED_TOKENS, max(1.0, plain.get("mean_output", FIRST_OUTPUT_TOKENS)))
        self._seeded = True

    def output_for(self, bound: int | None) -> float:
        """Return the expected tokens of an answer to a request that allows `bound` (None: any number)."""
        known = self._answers.get(UNBOUNDED_KIND if bound is None else bound.bit_length())
        mean = known[0] if known is not None else self.mean_output
        return mean if bound is None or mean < bound else float(bound)

    def learn(self, request_facts: RequestFacts, charged: Usage) -> None:
        """Learn from the usage charged for one answered request; `version` counts these calls."""
        self.version += 1
        if 0 < charged.input_tokens <= MAX_BELIEVED_TOKENS and 0 < request_facts.input_chars <= MAX_BELIEVED_TOKENS:
            self._fit(float(request_facts.input_chars), float(charged.input_tokens))
        output = charged.output_tokens
        if 0 < output <= MAX_BELIEVED_TOKENS:
            if (
                self._seeded
                and not self.mean_output / DOUBTED_MEAN_FACTOR <= output <= self.mean_output * DOUBTED_MEAN_FACTOR
            ):
                self.mean_output = FIRST_OUTPUT_TOKENS
            self._seeded = False
            self.mean_output = PAST_WEIGHT_SHARE * self.mean_output + (1.0 - PAST_WEIGHT_SHARE) * output
            bound = request_facts.max_output_tokens
            kind = UNBOUNDED_KIND if bound is None else bound.bit_length()
            mean, count = self._answers.get(kind, (self.output_for(bound), 1))
            count += 1
            self._answers[kind] = mean + max(1.0 - PAST_WEIGHT_SHARE, 1.0 / count) * (output - mean), count

    def _fit(self, chars: float, tokens: float) -> None:
        self._weight = PAST_WEIGHT_SHARE * self._weight + 1.0
        self._x = PAST_WEIGHT_SHARE * self._x + chars
        self._y = PAST_WEIGHT_SHARE * self._y + tokens
        self._squares = PAST_WEIGHT_SHARE * self._squares + chars * chars
        self._products = PAST_WEIGHT_SHARE * self._products + chars * tokens
        x, y = self._x / self._weight, self._y / self._weight
        lean = (EQUAL_LENGTHS_SHARE * x) ** 2
        spread = max(0.0, self._squares / self._weight - x * x)
        slope = (self._products / self._weight - x * y + lean * y / x) / (spread + lean)
        low, high = CHARS_PER_TOKEN_BOUNDS
        within = 1.0 / high < slope < 1.0 / low
        if not within:
            slope = y / x
        self.chars_per_token = min(high, max(low, 1.0 / slope))
        self.fixed_tokens = y - slope * x if within else 0.0
