"""Settings of a runner; every setting has a default."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tidegate.errors import ConfigurationError

PREFIX = "TIDEGATE_EXPERIMENTS_"
"""Prefix of the environment variables that set runner settings."""


class RunnerSettings(BaseModel):
    """Frozen settings of one runner; an invalid one raises `ConfigurationError` with its field and bound.

    Without `max_concurrency`, `tidegate.pool.function_limit` bounds the functions in flight.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most functions in flight at once, of all experiments together (None: as many as the keys admit).",
    )
    task_timeout: float = Field(
        120.0, gt=0, le=86_400, description="Seconds a task may run, its waits for capacity aside (Phoenix: 120)."
    )
    eval_timeout: float = Field(
        60.0, gt=0, le=86_400, description="Seconds an evaluator may run, its waits for capacity aside (Phoenix: 60)."
    )
    attempts: int = Field(3, ge=1, le=100, description="Attempts at what fails and may pass (openai: 1 + 2 retries).")
    row_deadline: float = Field(
        3600.0, gt=0, description="Seconds of active waiting for capacity before a row is parked (elspeth: 3600)."
    )
    max_outage: float | None = Field(
        3600.0, gt=0, description="Seconds a key's breaker may stay open before its rows are parked (None: for ever)."
    )
    grace: float = Field(
        30.0, ge=0, le=3600, description="Seconds in which what is under way may finish after a stop (Phoenix: 30)."
    )
    batch: int = Field(100, ge=1, le=10_000, description="Results at which a batch is written at once (Phoenix: 100).")
    audit: Literal["off", "refusals", "all"] = Field(
        "refusals",
        description="Attempts kept with the results: none, those without an answer, or all (`tidegate docs audit`).",
    )
    budget_usd: float | None = Field(
        None,
        gt=0,
        description="US dollars that an experiment may spend, instead of its own budget's (Inspect: cost_limit).",
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens that an experiment may spend, instead of its own budget's (Inspect: token_limit).",
    )

    @field_validator("max_concurrency", "max_outage", "budget_usd", "budget_tokens", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        # An environment variable can express None only as text.
        return None if isinstance(value, str) and value.strip().lower() == "none" else value

    @field_validator("*", mode="before")
    @classmethod
    def _not_boolean(cls, given: Any) -> Any:
        if isinstance(given, bool):
            raise ValueError("a number, not a boolean")
        return given

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "settings"
            unknown = first["type"] == "extra_forbidden"
            bound = _no_such(field, type(self).model_fields) if unknown else first["msg"]
            raise ConfigurationError(field, first.get("input"), bound) from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **given: Any) -> RunnerSettings:
        """Return settings from the TIDEGATE_EXPERIMENTS_… variables and from `given`, which has priority.

        An empty variable is absent. Raise `ConfigurationError` for an unknown variable or an invalid value.
        """
        source = os.environ if environ is None else environ
        variables = {PREFIX + name.upper(): name for name in cls.model_fields}
        values = {}
        for variable, value in source.items():
            if variable.startswith(PREFIX) and value.strip():
                if variable not in variables:
                    raise ConfigurationError(variable, "…", _no_such(variable, variables))
                values[variables[variable]] = value.strip()
        try:
            return cls(**{**values, **given})
        except ConfigurationError as error:
            if error.field in given or error.field not in values:
                raise
            raise ConfigurationError(PREFIX + error.field.upper(), error.value, error.bound) from None


def _no_such(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f"there is no such setting; the nearest is {near[0]}" if near else "there is no such setting"
