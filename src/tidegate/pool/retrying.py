"""Calls of a row's function, and the repetition of those that failed.

`SerialRows` is a pool of one slot in the consumer's own thread: no other thread, no buffer, no loop.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tidegate.admission.handoff import MAX_KEYS, PermitHandoff, current_handoff
from tidegate.core import backoff
from tidegate.core.values import Key, Kind, NextStep, Outcome
from tidegate.errors import CapacityTimeout, ConfigurationError, PoolDeadlineExceeded
from tidegate.pool.failure_class import TIMEOUT, FailureClass, classify
from tidegate.pool.flow import close_source
from tidegate.pool.options import PoolOptions, is_coroutine_function
from tidegate.pool.rows import PoolMeter, PoolRow, PoolStats
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


def deadline_error(options: PoolOptions, row: PoolRow, now: float) -> PoolDeadlineExceeded:
    """Return the error of a row that the deadline of the pool has ended, or that would be answered after it."""
    error = PoolDeadlineExceeded(index=row.index, key=row.key, waited=row.waited(now), deadline=options.deadline)
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


class SerialRows:
    """Rows of a `map` with one slot: each call of `next_row` runs one. A refusal is waited out inside the call."""

    def __init__(self, fn: Callable[[Any], Any], rows: Iterable[Any], options: PoolOptions) -> None:
        self._fn = fn
        self._options = options
        self._rows: Iterator[Any] | None = iter(rows)
        self._count = 0
        self._keys: dict[Key, None] = {}
        self._meter = PoolMeter()
        self._meter.max_concurrent = self._meter.max_pending = self._meter.max_buffered = 1

    def next_row(self) -> PoolRow:
        if self._rows is None:
            raise StopIteration
        row = PoolRow(self._count, next(self._rows), copy_context(), time.monotonic())
        self._count += 1
        while (delay := self._attempt(row)) is not None:
            time.sleep(delay)
        self._meter.note_end(row, self._count)
        self._meter.note_taken(row, row.completed_at)
        return row

    @property
    def stats(self) -> PoolStats:
        keys = self._options.registry.snapshot(list(self._keys)).keys
        return self._meter.stats(self._options.pool_size, self._count, keys, time.monotonic())

    def close(self) -> None:
        rows, self._rows = self._rows, None
        close_source(rows)

    abandon = close

    def _attempt(self, row: PoolRow) -> float | None:
        """Run the function once; return the seconds until the next time, None if the row has ended."""
        error: BaseException | None = None
        began = time.monotonic()
        handoff = PermitHandoff(self._options.registry, None)
        try:
            row.value = row.context.copy().run(partial(self._call, handoff, row))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:
            error = raised
        now = time.monotonic()
        waited = handoff.waited_seconds()
        executed = max(0.0, now - began - waited)
        row.seconds += executed
        self._meter.add_call(waited, executed)
        row.key = next(iter(handoff.keys), None)
        self._note_keys(handoff.keys)
        failure = classify(error, handoff.outcome, handoff.refused, handoff.unserved)
        if failure.next_step is NextStep.ANSWERED:
            row.attempts += 1
            row.error = None
            row.end(now, NextStep.ANSWERED, row.index)
            return None
        row.error, row.value = None if error is None else raisable(error, f"row {row.index}"), None
        if failure.next_step is NextStep.CAPACITY:
            row.capacity_retries += 1
            self._meter.capacity_retries += 1
            row.refused_at = row.refused_at if row.refused_at is not None else now
            remaining = row.refused_at + self._options.max_wait - now
            if remaining > 0:
                row.elsewhere += 1
                draw, longest = self._options.registry.draw(), self._options.max_wait
                pause = min(failure.delay_elsewhere(row.elsewhere, draw, longest), remaining)
                self._meter.add_call(pause, 0.0)
                return pause
            row.error = capacity_timeout(self._options, row, handoff.outcome, now)
        elif failure.next_step is not NextStep.PARKED:
            row.attempts += 1
            delay = delay_of_failed(self._options, row, failure, handoff.outcome, error)
            if delay is not None:
                self._meter.transient_retries += 1
                return delay
        row.end(now, failure.next_step, row.index)
        return None

    def _note_keys(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._keys.pop(key, None)
            self._keys[key] = None
        while len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    def _call(self, handoff: PermitHandoff, row: PoolRow) -> Any:
        with handoff:
            return checked_result(self._fn, self._fn(row.body))
