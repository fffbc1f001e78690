"""Pool of one slot in the consumer's own thread: no other thread, no buffer, no loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any

from tidegate.admission.handoff import MAX_KEYS, PermitHandoff
from tidegate.core.values import Key, NextStep
from tidegate.pool.failure_class import classify
from tidegate.pool.flow import close_source
from tidegate.pool.options import PoolOptions
from tidegate.pool.retrying import capacity_timeout, checked_result, delay_of_failed, raisable
from tidegate.pool.rows import PoolRow
from tidegate.pool.stats import PoolMeter, PoolStats


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
        failure = classify(error, handoff.outcome, handoff.refused, False)
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
