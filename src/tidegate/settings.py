"""Every setting, with its unit, its default and the precedent of that default."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator

from tidegate.admission.saved_state import LearnedState
from tidegate.core.ceiling import ALL_KEYS, CeilingRule, rule_for
from tidegate.core.values import Key
from tidegate.errors import ConfigurationError

PREFIX = "TIDEGATE_"

FORMER, EXPERIMENTS = "TIDEGATE_RUNNER_", "TIDEGATE_EXPERIMENTS_"
"""Former and present beginning of the variables of experiments."""

OTHER_VARIABLES = ("TIDEGATE_RUN_DIR", "TIDEGATE_STATE_DIR", "TIDEGATE_GATEWAY", "TIDEGATE_DB", EXPERIMENTS)
"""Beginnings of variables that are read elsewhere."""


LEVELS = ("model", "account")
"""Levels that a quota may belong to in `Settings.scopes`; a pattern of models is a third one."""

SERVERS = ("redis://", "rediss://", "postgresql://")
"""Beginnings of the URLs that `Settings.share` may have."""

WORDS = ("auto", "off", "ray")
"""Values of `Settings.share` that name no place."""


class Settings(BaseModel):
    """The settings of a registry; frozen. Every field can be set in the environment as TIDEGATE_<FIELD>.

    Raise `ConfigurationError`, with the field, the value and the bound, for a value that is not usable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_wait: float = Field(
        3600.0, ge=0, le=31_536_000, description="Seconds a call may wait in all (elspeth: max_capacity_retry_seconds)."
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most calls in flight per key (None: 1,000 at first, more while key, memory and pool admit them).",
    )
    ceiling: Mapping[str, str] = Field(
        {},
        description="Own ceiling of calls, 60/min or a share of announced quotas, 50%; also by pattern.",
    )
    max_unreached: float = Field(
        30.0,
        ge=0,
        le=31_536_000,
        description="Seconds that calls wait for a server that only failed so far; then its error is theirs.",
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
        description="Show the lines of `tidegate run`, cooldowns and extended timeouts (pip, uv: unless quiet).",
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
    telemetry: bool | Literal["tokens"] = Field(
        True,
        description="Report to OpenTelemetry, where its SDK is loaded: on, off, or tokens of answers as well.",
    )
    disabled: bool = Field(False, description="Pass everything through untouched.")

    @field_validator("*", mode="before")
    @classmethod
    def _not_boolean(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float, int | None):
            raise ValueError("a number, not a boolean")
        return given

    @field_validator("ceiling", mode="before")
    @classmethod
    def _ceilings(cls, given: Any) -> Any:
        ceilings = {ALL_KEYS: given} if isinstance(given, str) else given
        for text in ceilings.values() if isinstance(ceilings, Mapping) else ():
            CeilingRule.parse(str(text))
        return ceilings

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

    def ceiling_of(self, key: Key) -> CeilingRule | None:
        """Return the ceiling of a key: that of the first pattern that fits; None without one."""
        return rule_for(key, self.ceiling) if self.ceiling else None

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
                values[name] = _READERS[name](parts) if name in _READERS else given
        return cls(**values)


def _ceilings(parts: list[str]) -> dict[str, str]:
    """Return the ceilings that parts like `60/min` and `gpt-4o*=50%` stand for."""
    pairs = (part.rpartition("=") for part in parts)
    return {pattern.strip() or ALL_KEYS: text.strip() for pattern, _, text in pairs}


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


_READERS: dict[str, Callable[[list[str]], Any]] = {"hosts": list, "scopes": _scopes, "ceiling": _ceilings}


def _configuration_error(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "settings"
    field = field.removesuffix(".bool")
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
        return "on, off or tokens" if field == "telemetry" else "on or off"
    return str(error["msg"]).removeprefix("Value error, ")


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the TIDEGATE_… variables that nothing reads and that resemble a setting, with that setting's variable.

    Variables of experiments had the beginning `FORMER`, which scripts still have.
    """
    ours = {PREFIX + name.upper() for name in Settings.model_fields}
    found = {}
    for name in environ:
        if name.startswith(PREFIX) and name not in ours and not name.startswith(OTHER_VARIABLES):
            if name.startswith(FORMER):
                found[name] = name.replace(FORMER, EXPERIMENTS)
            elif near := difflib.get_close_matches(name, ours, 1, 0.8):
                found[name] = near[0]
    return found
