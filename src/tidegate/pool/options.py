"""Arguments of `map` and `amap`, checked before the source is touched, and the default concurrency."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidegate.admission.arguments import checked_key, checked_max_wait
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.core.values import CUSTOM, INFINITY, Key
from tidegate.errors import ConfigurationError
from tidegate.pool.execution import implementation

Errors = Literal["raise", "return"]

POOL_SIZE = 32
"""Functions under way at once. Precedent: `concurrent.futures.ThreadPoolExecutor`, at most 32."""

WINDOW_FACTOR = 4
"""Rows submitted and not yet taken, for each slot. Chosen: a row four times as long idles no slot."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Checked arguments of a pool; durations are in seconds, infinity for no limit.

    `attempts` is None if the caller gave none: the SDK's own retries then replace those of the pool.
    """

    registry: RateLimitRegistry
    pool_size: int
    ordered: bool
    window: int
    errors: Errors
    max_wait: float
    timeout: float
    attempts: int | None
    deadline: float
    key: Key | None

    @classmethod
    def checked(
        cls,
        *,
        pool_size: int,
        ordered: bool,
        window: int | None,
        errors: Errors,
        max_wait: float | None,
        timeout: float | None,
        attempts: int | None,
        deadline: float | None,
        key: Key | str | None,
        registry: RateLimitRegistry | None,
    ) -> PoolOptions:
        """Return the options; raise `ConfigurationError` for a value that cannot be used."""
        _check_count("pool_size", pool_size, 1)
        if window is None:
            window = 1 if pool_size == 1 else WINDOW_FACTOR * pool_size
        else:
            _check_count("window", window, pool_size)
        if attempts is not None:
            _check_count("attempts", attempts, 1)
        for name, seconds in (("timeout", timeout), ("deadline", deadline)):
            if seconds is not None and (
                isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0
            ):
                raise ConfigurationError(name, seconds, "a number of seconds above 0")
        if max_wait is not None:
            checked_max_wait(max_wait)
        if not isinstance(errors, str) or errors not in get_args(Errors):
            raise ConfigurationError("errors", errors, 'it is "raise" or "return"')
        if not isinstance(ordered, bool):
            raise ConfigurationError("ordered", ordered, "it is True or False")
        if registry is not None and not isinstance(registry, RateLimitRegistry):
            raise ConfigurationError("registry", registry, "a RateLimitRegistry")
        if key is not None:
            checked_key(key)
        registry = registry if registry is not None else default_registry()
        if isinstance(key, str):
            key = Key(provider=CUSTOM, base_url=registry.address(key))
        return cls(
            registry,
            pool_size,
            ordered,
            window,
            errors,
            registry.settings.max_wait if max_wait is None else max_wait,
            INFINITY if timeout is None else timeout,
            attempts,
            INFINITY if deadline is None else deadline,
            key,
        )


def check_function(fn: object, *, awaits: bool) -> None:
    """Raise `ConfigurationError` if `fn` cannot be called with one row; only with `awaits` it may be a coroutine
    function.
    """
    if not callable(fn):
        raise ConfigurationError("fn", fn, "a function of one row")
    routine = implementation(fn)
    if inspect.isgeneratorfunction(routine) or inspect.isasyncgenfunction(routine):
        raise ConfigurationError("fn", fn, "a function that returns its result, and yields nothing")
    if not awaits and is_coroutine_function(fn):
        raise ConfigurationError("fn", fn, "a function that returns its result; use amap for a coroutine function")
    try:
        # The signature of the wrapper counts, not that of the function which a decorator names as wrapped.
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        # Some callables of C have no signature.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError("fn", fn, f"a function of one row; its arguments are {signature}") from None


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Return whether a call of `fn` is known to return a coroutine."""
    return inspect.iscoroutinefunction(implementation(fn))


def check_rows(rows: object, *, awaits: bool) -> None:
    """Raise `ConfigurationError` if `rows` is no source; only with `awaits` it may be an async iterable."""
    if isinstance(rows, str | bytes | bytearray | Mapping):
        raise ConfigurationError("rows", type(rows), f"an iterable of rows, and a {type(rows).__name__} is one row")
    if isinstance(rows, Iterable) or hasattr(type(rows), "__getitem__"):
        return
    if not isinstance(rows, AsyncIterable):
        raise ConfigurationError("rows", type(rows), "an iterable of rows")
    if not awaits:
        raise ConfigurationError("rows", type(rows), "an iterable; use amap for an async iterable")


def _check_count(name: str, count: object, least: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise ConfigurationError(name, count, f"a whole number, {least} or more")
