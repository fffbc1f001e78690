"""Every setting, with its unit, its default and the precedent of that default."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tidegate.admission.saved_state import LearnedState
from tidegate.errors import ConfigurationError

PREFIX = "TIDEGATE_"

OTHER_VARIABLES = ("TIDEGATE_RUN_DIR", "TIDEGATE_STATE_DIR", "TIDEGATE_GATEWAY", "TIDEGATE_DB", "TIDEGATE_RUNNER_")
"""Beginnings of variables that are read elsewhere."""


LEVELS = ("model", "account")
"""Levels that a quota may belong to in `Settings.scopes`; a pattern of models is a third one."""

SERVERS = ("redis://", "rediss://", "postgresql://")
"""Beginnings of the URLs that `Settings.share` may have."""

WORDS = ("auto", "off", "ray")
"""Values of `Settings.share` that name no place."""

ORDERED = (
    ("start_concurrency", "max_concurrency"),
    ("pause_base", "max_pause"),
    ("backoff_base", "backoff_cap"),
    ("breaker_cooldown", "max_breaker_cooldown"),
)
"""Pairs of settings where the first must not exceed the second."""


class Settings(BaseModel):
    """The settings of a registry; frozen. Every field can be set in the environment as TIDEGATE_<FIELD>.

    Raise `ConfigurationError`, with the field, the value and the bound, for a value that is not usable. Do the same for
    two values that contradict each other. A default yields to a setting that is given: `max_concurrency=2` starts with
    2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_wait: float = Field(
        3600.0, ge=0, le=31_536_000, description="Seconds a call may wait in all (elspeth: max_capacity_retry_seconds)."
    )
    start_concurrency: int = Field(
        4, ge=1, le=100_000, description="Calls in flight at once before anything is known (RFC 3390: 4 segments)."
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most calls in flight per key (None: 1,000 at first, more while key, memory and pool admit them).",
    )
    concurrency_cut: float = Field(
        0.5, gt=0, lt=1, description="Factor for the limit at an unexplained refusal (TCP Reno, promptfoo: 0.5)."
    )
    pause_base: float = Field(
        0.5, gt=0, le=3600, description="Seconds of the first pause without a hint, doubling (openai: 0.5 s)."
    )
    max_pause: float = Field(
        120.0, gt=0, le=86_400, description="Longest pause in seconds before a probe (openai: MAX_RETRY_AFTER_DELAY)."
    )
    transient_attempts: int = Field(
        3, ge=1, le=100, description="Attempts that execute makes at a transient failure (openai: 1 + 2 retries)."
    )
    backoff_base: float = Field(
        1.0, gt=0, le=3600, description="Seconds of execute's first back-off, doubling, full jitter (Phoenix: 1 s)."
    )
    backoff_cap: float = Field(
        60.0, gt=0, le=3600, description="Longest back-off of execute in seconds (promptfoo: 60)."
    )
    breaker_threshold: int = Field(
        5, ge=1, le=10_000, description="Consecutive outage failures that open the breaker (Phoenix: 5)."
    )
    breaker_cooldown: float = Field(
        0.5, gt=0, le=3600, description="Seconds before the first probe (openai: INITIAL_RETRY_DELAY), growing."
    )
    max_breaker_cooldown: float = Field(
        60.0, gt=0, le=86_400, description="Longest time between probes in seconds (gRPC connection backoff: 120)."
    )
    max_unreached: float = Field(
        30.0,
        ge=0,
        le=31_536_000,
        description="Seconds that calls wait for a server that never answered; then its error is theirs (a start-up).",
    )
    idle_after: float = Field(
        3600.0, gt=0, description="Seconds after which an idle key is forgotten (longer than a minute or hour window)."
    )
    max_keys: int = Field(
        4096, ge=1, le=10_000_000, description="Keys kept at most; the longest idle ones are forgotten first."
    )
    hosts: tuple[str, ...] = Field(
        (),
        description="Further hosts that install() governs; comma-separated in the environment.",
    )
    scopes: Mapping[str, str | Mapping[str, str]] = Field(
        {},
        description="Level of quotas, model or account, by provider or its quota (`tidegate docs providers`).",
    )
    digest_key: SecretStr | None = Field(
        None,
        description="Secret for credential digests that stay the same across processes; by default one per process.",
    )
    initial_state: LearnedState | None = Field(
        None,
        description="What an earlier run learned: `registry.export_state()`, or a file with it; ignored when too old.",
    )
    framework_clocks: Literal["stretch", "keep"] = Field(
        "stretch",
        description="Whether install() stretches eval frameworks' own timeouts by max_wait (Phoenix: 60 s a task).",
    )
    log: bool = Field(
        True,
        description="Show what `tidegate run`, cooldowns and stretched clocks have to say (pip, uv: unless quiet).",
    )
    status: bool = Field(
        True, description="Show a program that uses tidegate in `tidegate status` (pip list: what is there is shown)."
    )
    prices: Path | None = Field(
        None, description="JSON file with prices of models beside the table's (`tidegate docs cost`)."
    )
    share: str = Field(
        "auto",
        repr=False,
        description="Processes that share a key's limits: auto (this user and host), off, ray, a folder, a server.",
    )
    telemetry: bool = Field(
        True, description="Tell OpenTelemetry what happens, where its SDK is loaded (OTEL_SDK_DISABLED: on by default)."
    )
    telemetry_tokens: bool = Field(
        False,
        description="Tell it the tokens of each answer too; other instrumentations may do the same (docs: telemetry).",
    )
    disabled: bool = Field(False, description="Pass everything through untouched.")

    @field_validator("*", mode="before")
    @classmethod
    def _not_boolean(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float, int | None):
            raise ValueError("a number, not a boolean")
        return given

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        # A default follows the setting that was given; two given settings must agree.
        for low, high in ORDERED:
            least, most = getattr(self, low), getattr(self, high)
            if most is None or least <= most:
                continue
            if low in self.model_fields_set and high in self.model_fields_set:
                facts = {"field": low, "value": least, "bound": f"at most {high}, which is {most:g}"}
                raise PydanticCustomError("order", "{bound}", facts)
            changed, value = (high, least) if low in self.model_fields_set else (low, most)
            self.__dict__[changed] = value
        return self

    @field_validator("scopes")
    @classmethod
    def _levels(cls, given: Mapping[str, str | Mapping[str, str]]) -> Mapping[str, str | Mapping[str, str]]:
        for provider, level in given.items():
            levels = {level} if isinstance(level, str) else set(level.values())
            named = provider and (isinstance(level, str) or all(level))
            if not named or not levels or any(each not in LEVELS and "*" not in each for each in levels):
                raise ValueError("each level must be model, account, or a pattern of models with *")
            if isinstance(level, str) and level not in LEVELS:
                raise ValueError("the level of a whole provider must be model or account")
            if len(levels - {"model"}) > 1:
                raise ValueError(f"the quotas of {provider} can be shared in one way only")
        return {name: level if isinstance(level, str) else dict(level) for name, level in given.items()}

    @field_validator("share")
    @classmethod
    def _share(cls, given: str) -> str:
        word = given.lower() if given.lower() in WORDS else given
        if word not in WORDS and not given.startswith(SERVERS) and not Path(given).is_absolute():
            raise ValueError("auto, off, ray, the absolute path of a folder, or a URL: redis, rediss or postgresql")
        return word

    def level_of(self, provider: str) -> str:
        """Return what keys of a provider belong to by `scopes`, `model` or `account`; empty for the table's scope."""
        level = self.scopes.get(provider, "")
        return level if isinstance(level, str) else "model"

    @field_validator("initial_state", mode="before")
    @classmethod
    def _state(cls, given: Any) -> Any:
        if isinstance(given, str | Path):
            return LearnedState.read(given)
        return given if given is None or isinstance(given, LearnedState) else LearnedState.of(given)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _configuration_error(error) from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings of the TIDEGATE_… variables; an empty variable counts as absent."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            given = source.get(PREFIX + name.upper(), "").strip()
            if given:
                parts = [part.strip() for part in given.split(",") if part.strip()]
                values[name] = parts if name == "hosts" else _scopes(parts) if name == "scopes" else given
        return cls(**values)


def _scopes(parts: list[str]) -> dict[str, Any]:
    """Return the scopes that parts like `anthropic=account` and `openai.requests=account` stand for."""
    scopes: dict[str, Any] = {}
    for part in parts:
        name, _, level = (each.strip() for each in part.partition("="))
        provider, dot, quota = name.partition(".")
        if not dot:
            scopes[provider] = level
            continue
        levels = scopes.setdefault(provider, {})
        if isinstance(levels, str):
            raise ConfigurationError("scopes", part, f"{provider} has a level for all quotas already")
        levels[quota] = level
    return scopes


def _configuration_error(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    if first["type"] == "order":
        return ConfigurationError(*first["ctx"].values())
    field = ".".join(str(part) for part in first["loc"]) or "settings"
    value = first.get("input")
    if field == "share" and "@" in str(value):
        value = "…"
    if field == "digest_key" or (field == "initial_state" and not isinstance(value, str | Path)):
        value = "…"
    return ConfigurationError(field, value, _bound(first, field))


def _bound(error: Any, field: str) -> str:
    """Return what the value of a field should be, in words of ours where pydantic's are about its own types."""
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, Settings.model_fields, 1)
        return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
    if error["type"] in ("float_parsing", "float_type") and isinstance(error.get("input"), str):
        return "a plain number, without a unit; settings of time are in seconds"
    if error["type"] == "bool_parsing":
        return "on or off"
    return str(error["msg"]).removeprefix("Value error, ")


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the TIDEGATE_… variables that nothing reads and that resemble a setting, with that setting's variable."""
    ours = {PREFIX + name.upper() for name in Settings.model_fields}
    found = {}
    for name in environ:
        if name.startswith(PREFIX) and name not in ours and not name.startswith(OTHER_VARIABLES):
            near = difflib.get_close_matches(name, ours, 1, 0.8)
            if near:
                found[name] = near[0]
    return found
