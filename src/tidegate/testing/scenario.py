"""Scenario of a simulated provider, as one frozen value: limits, headers, latency, faults.

A `Scenario` is written in Python, read from JSON (`from_json`) or made from command-line flags (`tidegate simulate`).
Instants are seconds since the server's start or last reset; durations are seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, get_args

from pydantic import Field, SerializeAsAny, StrictInt

from tidegate.errors import ConfigurationError, require
from tidegate.testing.admission import Call, Gate, Pricing
from tidegate.testing.dialects import Resets
from tidegate.testing.limiters import Limiter, Outage
from tidegate.testing.specs import Distribution, Drawn, Fault, Limit, NotNegative, OutageSpan, Positive, Share

DialectName = Literal[
    "auto", "openai", "azure", "azure-renewal", "anthropic", "bedrock", "gemini", "ietf", "hint", "none"
]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)

RetryAfter = Literal["exact", "late", "absurd", "one", "minute", "none"]

AT_ONCE = Distribution.constant(0.0)

Scope = Literal["credential+model", "credential", "model", "global"]
SCOPES: tuple[Scope, ...] = ("credential+model", "credential", "model", "global")


class Scenario(Pricing):
    """Simulated provider, as a value. The fields of `Pricing` say what a call is charged.

    - `dialect`: style of headers and error bodies. `auto` takes the endpoint's own: Anthropic for /v1/messages, Azure
      for /openai/deployments, Bedrock for /model, Gemini for /v1beta/models. Cohere's and Ollama's chat have none; all
      else is OpenAI.
    - `limiters`: limits that are enforced for each key
    - `scope`: parts of a key; providers count by credential and model
    - `chars_per_token`: characters of a prompt that count as a token
    - `outages`: spans in which nothing works, for all keys
    - `latency`: seconds from admission to the first byte of the answer
    - `refusal_latency`: seconds from an attempt to the answer that refuses it
    - `token_pace`: further seconds for each output token
    - `knee`: calls in flight beyond which latency grows in proportion (None: never)
    - `output_tokens`: tokens that an answer counts as (None: a quarter of its characters)
    - `retry_after`: time that refusals state: exact, three times too late, absurd, always 1 s, always 60 s, or
      none
    - `resets`: rounding of announced resets: `own` (the dialect's), `exact` (microseconds), or to `ms` or `seconds`,
      which are cut, or rounded up with `-up`
    - `refusals`: dialect of the refusals, if a gateway writes its own (empty: `dialect`); they announce no limit then
    - `prose`: whether refusals state the time in their text as well, where the provider does
    - `headers`: whether answers carry rate-limit headers
    - `faults`: calls and streams that break
    - `answers`: question to answer: the longest question found in the prompt decides
    - `batch_seconds`: seconds from the creation of a batch to its end
    - `batch_failures`: share of a batch's requests that fail with a server error
    - `batch_expired`: share of a batch's requests, rounded down, that have no answer when it expires
    - `batch_rate`: requests a second to the file and batch endpoints, evenly spaced; others get a 429 (None: any)
    - `batch_tokens`: tokens in unfinished batches of one model, beyond which an OpenAI batch fails (None: any)
    - `seed`: seed of everything random
    """

    dialect: DialectName = "auto"
    limiters: tuple[SerializeAsAny[Limit], ...] = ()
    scope: Scope = "credential+model"
    chars_per_token: Positive = 4.0
    outages: tuple[OutageSpan, ...] = ()
    latency: Drawn = AT_ONCE
    refusal_latency: Drawn = AT_ONCE
    token_pace: NotNegative = 0.0
    batch_seconds: NotNegative = 1.0
    batch_failures: Share = 0.0
    batch_expired: Share = 0.0
    batch_rate: Positive | None = None
    batch_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    knee: Annotated[StrictInt, Field(ge=1)] | None = None
    output_tokens: Drawn | None = None
    retry_after: RetryAfter = "exact"
    resets: Resets = "own"
    refusals: DialectName | Literal[""] = ""
    prose: bool = True
    headers: bool = True
    faults: tuple[Fault, ...] = ()
    answers: Mapping[str, str] = {}
    seed: int = 0

    def build_limiters(self) -> tuple[Limiter, ...]:
        """Return new, full limiters of one key, with a name each: a second of the same name gets a number."""
        limiters: list[Limiter] = []
        taken: set[str] = set()
        for limit in self.limiters:
            name, number = limit.default_name, 1
            while name in taken:
                number += 1
                name = f"{limit.default_name}-{number}"
            taken.add(name)
            limiters.append(limit.build(name, self.seed))
        return tuple(limiters)

    def build_outages(self) -> tuple[Limiter, ...]:
        """Return the outages as limiters, which have no state."""
        return tuple(
            Outage("outage", start=span.start, end=span.end, status=None if span.status == "drop" else span.status)
            for span in self.outages
        )

    def gate(self, shared: dict[str, Limiter] | None = None) -> Gate:
        """Return a new gate: all outages, then all limiters of one key.

        Limiters that keys share are taken from `shared`, by name, and put there if they are not in it.
        """
        made = self.build_limiters()
        if shared is not None:
            made = tuple(
                shared.setdefault(limiter.name, limiter) if limit.shared else limiter
                for limiter, limit in zip(made, self.limiters, strict=True)
            )
        return Gate((*self.build_outages(), *made), self)

    @property
    def announced(self) -> tuple[bool, ...]:
        """Return for each limiter of a key, in order, whether headers announce it."""
        return tuple(limit.is_announced for limit in self.limiters)

    def with_output(self, call: Call) -> Call:
        """Return the call with the median output, within its bound."""
        produced = round(self.output_tokens.median) if self.output_tokens else 0
        if call.max_tokens is not None:
            produced = min(produced, call.max_tokens)
        return replace(call, output_tokens=produced)

    def duration(self, call: Call) -> float:
        """Return the median seconds from the call's admission to the end of its answer."""
        return self.latency.median + self.token_pace * call.output_tokens

    @classmethod
    def from_json(cls, text: str | bytes) -> Scenario:
        """Return the scenario of JSON that `to_json` or a user wrote; raise ConfigurationError."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ConfigurationError("scenario", text, f"it is not JSON ({error})") from None
        require(isinstance(values, dict), "scenario", text, "it must be a JSON object")
        return cls(**values)

    def to_json(self) -> str:
        """Return the scenario as one line of JSON, without the fields that have their defaults."""
        return self.model_dump_json(exclude_defaults=True)
