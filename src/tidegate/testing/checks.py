"""Checks of scenario fields; each raises ConfigurationError with field, value and bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.errors import ConfigurationError


def number(field: str, value: object) -> float:
    """Return `value` if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(field, value, "it must be a finite number")
    return value


def positive(field: str, value: object) -> None:
    if number(field, value) <= 0:
        raise ConfigurationError(field, value, "it must be above 0")


def at_least(field: str, value: object, bound: float) -> None:
    if number(field, value) < bound:
        raise ConfigurationError(field, value, f"it must be {bound:g} or more")


def share(field: str, value: object) -> None:
    if not 0 <= number(field, value) <= 1:
        raise ConfigurationError(field, value, "it must be between 0 and 1")


def among(field: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigurationError(field, value, "it must be one of " + ", ".join(str(choice) for choice in choices))
