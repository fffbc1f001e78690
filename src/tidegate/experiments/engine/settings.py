"""Settings of a runner; every setting has a default."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tidegate.errors import ConfigurationError

PREFIX = "TIDEGATE_RUNNER_"
"""Prefix of the environment variables that set runner settings."""


ORDERED = (("heartbeat", "stale_after", 2.0, 4.0), ("backoff_base", "backoff_cap", 1.0, 1.0))
"""Pairs of settings: the second must be at least the third value times the first; the last value is the usual ratio.

Raising a third value refuses more pairs. Chosen: a claim that is stale after less than two heartbeats would repeatedly
be taken from a live replica, and a backoff cannot end below its base. Usual are four heartbeats, and an equal cap."""


class RunnerSettings(BaseModel):
    """Frozen settings of one runner; an invalid one raises `ConfigurationError` with its field and bound.

    A default that conflicts with a given setting is adapted: `heartbeat=60` makes a claim stale after 240 seconds.
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
    backoff_base: float = Field(
        1.0, gt=0, le=3600, description="Seconds before the second attempt, doubling, full jitter (Phoenix: 1 s)."
    )
    backoff_cap: float = Field(60.0, gt=0, le=3600, description="Longest back-off in seconds (promptfoo: 60).")
    row_deadline: float = Field(
        3600.0, gt=0, description="Seconds of active waiting for capacity before a row is parked (elspeth: 3600)."
    )
    max_outage: float | None = Field(
        3600.0, gt=0, description="Seconds a key's breaker may stay open before its rows are parked (None: for ever)."
    )
    guard: int = Field(
        5, ge=1, le=10_000, description="Consecutive failures of one kind that stop a run or an evaluator (Phoenix: 5)."
    )
    grace: float = Field(
        30.0, ge=0, le=3600, description="Seconds in which what is under way may finish after a stop (Phoenix: 30)."
    )
    cancel_grace: float = Field(
        5.0, ge=0, le=600, description="Seconds a cancelled function may take to end before its slot is taken back."
    )
    write_grace: float = Field(
        10.0, ge=0, le=3600, description="Seconds that a shutdown waits for a database that is away (Phoenix: 5-30)."
    )
    heartbeat: float = Field(15.0, gt=0, le=3600, description="Seconds between two renewals of a claim.")
    stale_after: float = Field(
        60.0, gt=0, le=86_400, description="Seconds without a renewal after which a claim is anybody's (4 heartbeats)."
    )
    orphan_scan: float = Field(
        60.0, gt=0, le=86_400, description="Seconds between two looks for orphans, up to a tenth more (Phoenix: 120)."
    )
    batch: int = Field(100, ge=1, le=10_000, description="Results at which a batch is written at once (Phoenix: 100).")
    batch_seconds: float = Field(0.1, ge=0, le=60, description="Seconds a result waits for its batch to fill at most.")
    batch_poll: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Longest seconds between two looks at a batch (`tidegate docs batch`).",
    )
    batch_settle: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Seconds in which Anthropic may still act on a batch whose creation got no answer (its SDK: 600).",
    )
    unwritten: int = Field(
        1000, ge=1, le=1_000_000, description="Results held for a database that is away before dispatch stops."
    )
    page: int = Field(
        200, ge=2, le=100_000, description="Items of a stage held in memory at most; half of it is the low mark."
    )
    ageing: int = Field(
        8, ge=1, le=10_000, description="How often a queue is passed over for a more urgent one before it goes next."
    )
    retry_share: float = Field(
        0.5, gt=0, le=1, description="Share of the slots that retries may have while anything else could go."
    )
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
    buffer: int = Field(1000, ge=1, le=1_000_000, description="Events held for one subscriber (Phoenix: 1000).")

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

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        # A default adapts to a given setting; two given settings must agree.
        for low, high, times, usual in ORDERED:
            least, most = getattr(self, low), getattr(self, high)
            if times * least <= most:
                continue
            if low in self.model_fields_set and high in self.model_fields_set:
                facts = {"field": high, "value": most, "bound": f"at least {times:g} times {low}, which is {least:g}"}
                raise PydanticCustomError("order", "{bound}", facts)
            changed, value = (high, usual * least) if low in self.model_fields_set else (low, most / usual)
            self.__dict__[changed] = value
        return self

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "order":
                raise ConfigurationError(*first["ctx"].values()) from None
            field = ".".join(str(part) for part in first["loc"]) or "settings"
            unknown = first["type"] == "extra_forbidden"
            bound = _no_such(field, type(self).model_fields) if unknown else first["msg"]
            raise ConfigurationError(field, first.get("input"), bound) from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **given: Any) -> RunnerSettings:
        """Return settings from the TIDEGATE_RUNNER_… variables and from `given`, which has priority.

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
