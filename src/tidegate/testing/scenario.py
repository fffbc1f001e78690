"""Scenario of a simulated provider, as one frozen value: limits, headers, latency, faults.

A `Scenario` is written in Python, read from JSON (`from_json`) or made from command-line flags (`tidegate simulate`).
JSON covers frozen dataclasses, tuples and distributions, and nothing else. Instants are seconds since the server's
start or last reset; durations are seconds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

from tidegate.errors import ConfigurationError
from tidegate.testing.admission import CHARGES, Call, Charge, Gate, Pricing
from tidegate.testing.dialects import RESETS, Resets
from tidegate.testing.limiters import Limiter, Outage
from tidegate.testing.specs import Distribution, Fault, Limit, OutageSpan, among, at_least, positive

T = TypeVar("T")

_LISTS: dict[str, Any] = {"limiters": Limit, "outages": OutageSpan, "faults": Fault}
_DISTRIBUTIONS = frozenset({"latency", "output_tokens", "refusal_latency"})


def encode(value: object) -> str:
    """Return one line of JSON, without the fields that have their defaults."""
    return json.dumps(plain(value), separators=(",", ":"))


def decode(kind: type[T], source: str | bytes | Mapping[str, Any]) -> T:
    """Return the dataclass that `source` describes; raise ConfigurationError for unknown fields and unusable values."""
    if not isinstance(source, Mapping):
        try:
            source = json.loads(source)
        except ValueError as error:
            raise ConfigurationError("scenario", source, f"it is not JSON ({error})") from None
        if not isinstance(source, Mapping):
            raise ConfigurationError("scenario", source, "it must be a JSON object")
    names = [field.name for field in dataclasses.fields(cast("Any", kind))]
    values: dict[str, Any] = {}
    for name, value in source.items():
        if name not in names:
            raise ConfigurationError(name, value, "there is no such field; the fields are " + ", ".join(names))
        values[name] = _typed(name, value)
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigurationError(kind.__name__, dict(source), str(error)) from None


def _typed(name: str, value: Any) -> Any:
    if name in _LISTS:
        if not isinstance(value, list | tuple):
            raise ConfigurationError(name, value, "it must be a list")
        part = _LISTS[name]
        return tuple(decode(part, item) if isinstance(item, Mapping) else item for item in value)
    if name in _DISTRIBUTIONS and value is not None and not isinstance(value, Distribution):
        if not isinstance(value, str | int | float):
            raise ConfigurationError(name, value, "it must be like 0.5, uniform:0.2,0.8 or lognormal:0.5,0.4")
        return Distribution.parse(str(value))
    return value


def plain(value: Any) -> Any:
    """Return the JSON value of a scenario or a part of it, without the fields that have their defaults."""
    if isinstance(value, Distribution):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


DialectName = Literal[
    "auto", "openai", "azure", "azure-renewal", "anthropic", "bedrock", "gemini", "ietf", "hint", "none"
]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)

RetryAfter = Literal["exact", "late", "absurd", "one", "minute", "none"]
RETRY_AFTERS: tuple[RetryAfter, ...] = get_args(RetryAfter)

AT_ONCE = Distribution.constant(0.0)

Scope = Literal["credential+model", "credential", "model", "global"]
SCOPES: tuple[Scope, ...] = ("credential+model", "credential", "model", "global")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Simulated provider, as a value.

    - `dialect`: style of headers and error bodies. `auto` takes the endpoint's own: Anthropic for /v1/messages, Azure
      for /openai/deployments, Bedrock for /model, Gemini for /v1beta/models. Cohere's and Ollama's chat have none; all
      else is OpenAI.
    - `limiters`: limits that are enforced for each key
    - `scope`: parts of a key; providers count by credential and model
    - `charge`: charge of a token limiter: see `Pricing`
    - `gives_back`: whether a reserved output that was not produced is given back at the end (Bedrock does, Azure does
      not)
    - `burndown`: tokens that a limiter is charged at the end for each produced token (Bedrock: 5 for Claude)
    - `default_max_tokens`: output reserved for a call that names no bound
    - `cached_tokens`: tokens at the beginning of each prompt that are read from a cache and are not charged
    - `least_tokens`: tokens that a token limiter is charged for a call at least
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
    limiters: tuple[Limit, ...] = ()
    scope: Scope = "credential+model"
    charge: Charge = "input"
    gives_back: bool = False
    burndown: float = 1.0
    default_max_tokens: int = 256
    cached_tokens: int = 0
    least_tokens: int = 0
    chars_per_token: float = 4.0
    outages: tuple[OutageSpan, ...] = ()
    latency: Distribution = AT_ONCE
    refusal_latency: Distribution = AT_ONCE
    token_pace: float = 0.0
    batch_seconds: float = 1.0
    batch_failures: float = 0.0
    batch_expired: float = 0.0
    batch_rate: float | None = None
    batch_tokens: int | None = None
    knee: int | None = None
    output_tokens: Distribution | None = None
    retry_after: RetryAfter = "exact"
    resets: Resets = "own"
    refusals: DialectName | Literal[""] = ""
    prose: bool = True
    headers: bool = True
    faults: tuple[Fault, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        among("dialect", self.dialect, DIALECTS)
        among("refusals", self.refusals, ("", *DIALECTS))
        among("scope", self.scope, SCOPES)
        among("charge", self.charge, CHARGES)
        among("retry_after", self.retry_after, RETRY_AFTERS)
        among("resets", self.resets, RESETS)
        positive("burndown", self.burndown)
        positive("chars_per_token", self.chars_per_token)
        at_least("default_max_tokens", self.default_max_tokens, 0)
        at_least("cached_tokens", self.cached_tokens, 0)
        at_least("least_tokens", self.least_tokens, 0)
        at_least("token_pace", self.token_pace, 0)
        at_least("batch_seconds", self.batch_seconds, 0)
        for name in ("batch_failures", "batch_expired"):
            at_least(name, getattr(self, name), 0)
            if getattr(self, name) > 1:
                raise ConfigurationError(name, getattr(self, name), "at most 1")
        if self.batch_rate is not None:
            positive("batch_rate", self.batch_rate)
        if self.batch_tokens is not None:
            at_least("batch_tokens", self.batch_tokens, 1)
        if self.knee is not None:
            at_least("knee", self.knee, 1)
        for name, part in _LISTS.items():
            parts = tuple(getattr(self, name))
            for each in parts:
                if not isinstance(each, part):
                    raise ConfigurationError(name, each, f"each must be a {part.__name__}")
            object.__setattr__(self, name, parts)
        for name, value in self.answers.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise ConfigurationError("answers", (name, value), "it must map texts to texts")

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
        return Gate((*self.build_outages(), *made), self.pricing)

    @property
    def pricing(self) -> Pricing:
        """Return the rules by which calls are charged."""
        return Pricing(
            self.charge,
            self.gives_back,
            self.default_max_tokens,
            self.burndown,
            self.cached_tokens,
            self.least_tokens,
        )

    @property
    def announced(self) -> tuple[bool, ...]:
        """Return for each limiter of a key, in order, whether headers announce it."""
        return tuple(limit.is_announced for limit in self.limiters)

    def with_output(self, call: Call) -> Call:
        """Return the call with the median output, within its bound."""
        produced = round(self.output_tokens.median) if self.output_tokens else 0
        if call.max_tokens is not None:
            produced = min(produced, call.max_tokens)
        return dataclasses.replace(call, output_tokens=produced)

    def duration(self, call: Call) -> float:
        """Return the median seconds from the call's admission to the end of its answer."""
        return self.latency.median + self.token_pace * call.output_tokens

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> Scenario:
        """Return the scenario of JSON that `to_json` or a user wrote; raise ConfigurationError."""
        return decode(cls, text)

    def to_json(self) -> str:
        """Return the scenario as one line of JSON, without the fields that have their defaults."""
        return encode(self)

    def replace(self, **changes: Any) -> Scenario:
        """Return this scenario with some fields changed, as Python or JSON values; raise ConfigurationError."""
        return decode(Scenario, {**_fields(self), **changes})


def _fields(scenario: Scenario) -> dict[str, Any]:
    return {each.name: getattr(scenario, each.name) for each in dataclasses.fields(scenario)}
