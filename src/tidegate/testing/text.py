"""Scenarios as JSON and back: frozen dataclasses, tuples and distributions, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from tidegate.errors import ConfigurationError
from tidegate.testing.distributions import Distribution
from tidegate.testing.specs import Fault, Limit, OutageSpan

T = TypeVar("T")

_LISTS: dict[str, Any] = {"limiters": Limit, "outages": OutageSpan, "faults": Fault}
_DISTRIBUTIONS = frozenset({"latency", "output_tokens"})


def encode(value: object) -> str:
    """One line of JSON, without the fields that are at their defaults."""
    return json.dumps(plain(value), separators=(",", ":"))


def decode(kind: type[T], source: str | bytes | Mapping[str, Any]) -> T:
    """The dataclass that `source` describes; unknown fields and unusable values raise ConfigurationError."""
    if not isinstance(source, Mapping):
        try:
            source = json.loads(source)
        except ValueError as error:
            raise ConfigurationError("scenario", source, f"JSON: {error}") from None
        if not isinstance(source, Mapping):
            raise ConfigurationError("scenario", source, "a JSON object")
    names = [field.name for field in dataclasses.fields(cast("Any", kind))]
    values: dict[str, Any] = {}
    for name, value in source.items():
        if name not in names:
            raise ConfigurationError(name, value, "not a field; there are " + ", ".join(names))
        values[name] = _typed(name, value)
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigurationError(kind.__name__, dict(source), str(error)) from None


def _typed(name: str, value: Any) -> Any:
    if name in _LISTS:
        if not isinstance(value, list | tuple):
            raise ConfigurationError(name, value, "a list")
        part = _LISTS[name]
        return tuple(decode(part, item) if isinstance(item, Mapping) else item for item in value)
    if name in _DISTRIBUTIONS and value is not None and not isinstance(value, Distribution):
        if not isinstance(value, str | int | float):
            raise ConfigurationError(name, value, "written as 0.5, uniform:0.2,0.8 or lognormal:0.5,0.4")
        return Distribution.parse(str(value))
    return value


def plain(value: Any) -> Any:
    """The JSON value of a scenario or a part of it, without the fields that are at their defaults."""
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
