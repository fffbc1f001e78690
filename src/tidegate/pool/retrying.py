"""Calls of a row's function, and the repetition of those that failed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tidegate.admission.handoff import current_handoff
from tidegate.core import backoff
from tidegate.core.values import Kind, NextStep, Outcome
from tidegate.errors import CapacityTimeout, ConfigurationError
from tidegate.pool.failure_class import TIMEOUT, FailureClass
from tidegate.pool.options import PoolOptions, is_coroutine_function
from tidegate.pool.rows import PoolRow
from tidegate.pool.threads import in_thread
from tidegate.providers.classification import classify_error

BARE_CLIENTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "aiohttp", "urllib3"})
"""Packages whose exceptions come from a client that repeats nothing; every other governed client is an SDK."""


class RowFunction:
    """Function of a pool's rows: `invoke(row)` runs it once, in the loop or in a thread; `timeout` is in seconds."""

    __slots__ = ("invoke", "timeout")

    def __init__(self, fn: Callable[[Any], Any], options: PoolOptions, *, awaits: bool) -> None:
        self.timeout = options.timeout
        self.invoke: Callable[[PoolRow], Awaitable[Any]]
        if awaits and is_coroutine_function(fn):
            self.invoke = lambda row: fn(row.body)
        else:
            self.invoke = lambda row: _in_thread(fn, row.body, awaits)
        if options.key is not None:
            self.invoke = partial(_under_key, self.invoke, options)


async def _in_thread(fn: Callable[[Any], Any], body: Any, awaits: bool) -> Any:
    result = await in_thread(partial(fn, body))
    return await result if awaits and inspect.isawaitable(result) else checked_result(fn, result)


def checked_result(fn: Callable[[Any], Any], result: Any) -> Any:
    """Return `result`; raise `ConfigurationError` for a coroutine, which would never be awaited."""
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigurationError("fn", fn, "a function that returns its result; use amap for a coroutine function")
    return result


async def _under_key(invoke: Callable[[PoolRow], Awaitable[Any]], options: PoolOptions, row: PoolRow) -> Any:
    """Run the function; if no governed call used the row's permit, the function itself was the attempt."""
    try:
        result = await invoke(row)
    except BaseException as error:
        if isinstance(error, Exception):
            _settle(options, row, classify_error(error, datetime.now(UTC)).outcome)
        raise
    _settle(options, row, Outcome(Kind.OK))
    return result


def _settle(options: PoolOptions, row: PoolRow, outcome: Outcome) -> None:
    handoff = current_handoff()
    if handoff is None or options.key is None or handoff.keys:
        return
    permit = handoff.take(options.registry, options.key)
    if permit is not None:
        row.is_attempt = True
        handoff.note_outcome(permit, outcome, True)
        options.registry.settle(permit, outcome)


def raisable(error: BaseException, what: str) -> BaseException:
    """Return `error`, or a `RuntimeError` with it as the cause where it would end or cancel the consumer's loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    wrapped = RuntimeError(f"{what} failed: {error!r} was raised")
    wrapped.__cause__ = error
    return wrapped


def delay_of_failed(
    options: PoolOptions, row: PoolRow, failure: FailureClass, outcome: Outcome | None, error: BaseException | None
) -> float | None:
    """Return the seconds until the next attempt after `row.attempts`, or None if there is none.

    `outcome` is that of the last governed attempt. If its SDK repeats calls, only the caller's `attempts` add to them.
    """
    given = options.attempts
    if failure.next_step is NextStep.PERMANENT:
        return None
    if row.attempts >= (backoff.TRANSIENT_ATTEMPTS if given is None else given):
        return None
    if given is None and failure is not TIMEOUT and _is_of_sdk(outcome, error):
        return None
    return failure.delay(row.attempts, options.registry.draw())


def capacity_timeout(options: PoolOptions, row: PoolRow, last: Outcome | None, now: float) -> CapacityTimeout:
    """Return the error of a row that is overdue; `last` is the last outcome of its key."""
    error = CapacityTimeout(
        index=row.index,
        key=row.key or options.key,
        waited=row.waited(now),
        max_wait=options.max_wait,
        status=last.status if last is not None else None,
    )
    error.__cause__ = row.error
    return error


def _is_of_sdk(outcome: Outcome | None, error: BaseException | None) -> bool:
    if outcome is None or outcome.kind is not Kind.TRANSIENT:
        return False
    while error is not None:
        package = type(error).__module__.partition(".")[0]
        if package not in BARE_CLIENTS and package not in sys.stdlib_module_names:
            return True
        error = error.__cause__ or error.__context__
    return False
