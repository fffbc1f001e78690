"""Ordered pool: `tidegate.map` and `tidegate.amap` run a function over rows, at the providers' true limits.

    for answer in tidegate.map(ask, rows):
        ...

A bounded window of rows is under way, and their values come in the order of the rows. A row never fails for lack of
capacity that waiting can cure. The names below are the public interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Key
from tidegate.pool.options import POOL_SIZE, Errors, PoolOptions, check_function, check_rows
from tidegate.pool.results import AsyncResults, Results
from tidegate.pool.rows import Failed, PoolStats, RowResult

R = TypeVar("R")
T = TypeVar("T")

__all__ = ["AsyncResults", "Failed", "PoolStats", "Results", "RowResult", "amap", "map"]


def map(
    fn: Callable[[R], T],
    rows: Iterable[R],
    *,
    pool_size: int = POOL_SIZE,
    ordered: bool = True,
    window: int | None = None,
    errors: Errors = "raise",
    max_wait: float | None = None,
    timeout: float | None = None,
    attempts: int | None = None,
    deadline: float | None = None,
    key: Key | str | None = None,
    registry: RateLimitRegistry | None = None,
) -> Results[T]:
    """Return an iterator over `fn(row)` for all rows, in their order; the calls run in up to `pool_size` threads.

    At most `window` rows (default: 4 × `pool_size`) are submitted and not yet taken. With `ordered=False` they come as
    they end. Missing capacity spends no attempt: a row waits `max_wait` seconds for it (default: `Settings.max_wait`),
    without the time until a reset that the provider named. Other failures that may pass are repeated: `attempts` in all
    (default: 3, but 1 where the SDK itself repeats calls). `timeout` is in seconds for
    one call of `fn`, without its waits for capacity, and `deadline` for the whole pool. `key` is the key that `fn` asks
    first, if it must not be learned from its first call. If `fn` makes no governed call, it is itself admitted by
    `key`.

    The error of a row is raised in its place, and ends the pool. With `errors="return"` its value is a `Failed`. The
    pool ends a row with `CapacityTimeout` or `DeadlineExceeded`; other errors are those of `fn`. Raise
    `ConfigurationError` for an unusable argument.
    """
    check_function(fn, awaits=False)
    check_rows(rows, awaits=False)
    options = PoolOptions.checked(
        pool_size=pool_size, ordered=ordered, window=window, errors=errors, max_wait=max_wait, timeout=timeout,
        attempts=attempts, deadline=deadline, key=key, registry=registry,
    )  # fmt: skip
    return Results(fn, rows, options)


class PoolArguments(TypedDict, total=False):
    """Keyword arguments of `amap`."""

    pool_size: int
    ordered: bool
    window: int | None
    errors: Errors
    max_wait: float | None
    timeout: float | None
    attempts: int | None
    deadline: float | None
    key: Key | str | None
    registry: RateLimitRegistry | None


@overload
def amap(
    fn: Callable[[R], Awaitable[T]], rows: Iterable[R] | AsyncIterable[R], **arguments: Unpack[PoolArguments]
) -> AsyncResults[T]: ...


@overload
def amap(
    fn: Callable[[R], T], rows: Iterable[R] | AsyncIterable[R], **arguments: Unpack[PoolArguments]
) -> AsyncResults[T]: ...


def amap(
    fn: Callable[[R], Any],
    rows: Iterable[R] | AsyncIterable[R],
    *,
    pool_size: int = POOL_SIZE,
    ordered: bool = True,
    window: int | None = None,
    errors: Errors = "raise",
    max_wait: float | None = None,
    timeout: float | None = None,
    attempts: int | None = None,
    deadline: float | None = None,
    key: Key | str | None = None,
    registry: RateLimitRegistry | None = None,
) -> AsyncResults[Any]:
    """Return an async iterator over the values of `fn(row)`, as `map` does; `fn` runs in tasks of the event loop.

    A function that is no coroutine function runs in threads. `rows` may be an async iterable. A plain iterable is
    pulled in the event loop, which it must not block.
    """
    check_function(fn, awaits=True)
    check_rows(rows, awaits=True)
    options = PoolOptions.checked(
        pool_size=pool_size, ordered=ordered, window=window, errors=errors, max_wait=max_wait, timeout=timeout,
        attempts=attempts, deadline=deadline, key=key, registry=registry,
    )  # fmt: skip
    return AsyncResults(fn, rows, options)
