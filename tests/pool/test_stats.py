"""Statistics of a pool: its counts add up, its times are those of its rows, and its end keeps them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import tidegate
from tests.chaos.virtual_time import in_virtual_time
from tests.pool.scene import Answered429, VirtualProvider, per_minute, registry_of
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import INFINITY
from tidegate.errors import UnusableAnswer


class Outage(Exception):
    """A failure that may pass."""

    status_code = 502


class Unable(Exception):
    """A failure that does not pass."""

    status_code = 400


@in_virtual_time
async def test_every_row_is_in_one_count() -> None:
    seen: dict[int, int] = {}

    async def fn(row: int) -> int:
        seen[row] = seen.get(row, 0) + 1
        await asyncio.sleep(1.0)
        if row == 1 or (row == 2 and seen[row] < 3):
            raise Outage
        if row == 3:
            raise Unable
        if row == 4:
            raise Answered429({})
        return row

    registry = registry_of()
    results = tidegate.amap(fn, range(20), pool_size=8, errors="return", max_wait=5.0, registry=registry)
    assert results.stats == tidegate.PoolStats(8)
    ends = []
    async for end in results.rows():
        ends.append(end)
        assert len(ends) <= results.stats.submitted
    stats = results.stats
    assert (stats.submitted, stats.answered, stats.failed, stats.parked, stats.unended) == (20, 17, 2, 1, 0)
    assert stats.transient_retries == 4
    assert stats.capacity_retries == sum(end.capacity_retries for end in ends) > 1
    assert stats.max_concurrent == 8


@in_virtual_time
async def test_rows_that_an_early_end_drops_are_unended() -> None:
    async def fn(row: int) -> int:
        await asyncio.sleep(1.0 if row == 0 else 5.0)
        return row

    async with tidegate.amap(fn, range(1000), pool_size=4, registry=registry_of()) as results:
        assert await anext(results) == 0
    stats = results.stats
    assert (stats.answered, stats.failed, stats.parked) == (1, 0, 0)
    assert stats.unended == stats.submitted - 1 > 0
    await asyncio.sleep(10.0)
    assert results.stats == stats


@pytest.mark.parametrize("ordered", [True, False])
@in_virtual_time
async def test_a_row_that_blocks_the_order_is_seen_in_the_buffer(ordered: bool) -> None:
    async def fn(row: int) -> None:
        await asyncio.sleep(10.0 if row == 0 else 1.0)

    results = tidegate.amap(fn, range(8), pool_size=4, window=6, ordered=ordered, registry=registry_of())
    async for _ in results:
        pass
    stats = results.stats
    assert stats.answered == 8
    if ordered:
        # Five rows wait for the first, for 9, 9, 9, 8 and 8 seconds.
        assert (stats.max_pending, stats.max_buffered) == (6, 6)
        assert stats.buffer_wait_mean == pytest.approx(43.0 / 8, abs=0.2)
    else:
        assert stats.max_pending <= 6
        assert stats.max_buffered < 5
        assert stats.buffer_wait_mean == 0.0
    assert (stats.throttle_seconds, stats.throttled_for, stats.peak_pause) == (0.0, 0.0, 0.0)


@in_virtual_time
async def test_functions_that_compute_are_not_throttled() -> None:
    async def fn(row: int) -> None:
        await asyncio.sleep(1.0)

    results = tidegate.amap(fn, range(20), pool_size=10, registry=registry_of())
    began = asyncio.get_running_loop().time()
    assert [row async for row in results] == [None] * 20
    stats = results.stats
    assert stats.executing_for == pytest.approx(asyncio.get_running_loop().time() - began)
    assert (stats.throttle_seconds, stats.throttled_for, stats.capacity_retries) == (0.0, 0.0, 0)
    assert (stats.keys, stats.dispatch_interval_at_end) == ({}, 0.0)


@in_virtual_time
async def test_rows_behind_a_spent_quota_are_throttled() -> None:
    provider = VirtualProvider(per_minute(60, 0.1, initial=10))
    results = tidegate.amap(provider.ask, range(20), pool_size=5, registry=provider.registry)
    began = provider.clock()
    assert [row async for row in results] == [*range(20)]
    stats, wall = results.stats, provider.clock() - began
    assert wall > 8.0
    assert wall - stats.executing_for - 0.2 <= stats.throttled_for <= wall
    # Most of the time several rows stand behind the quota.
    assert 2 * stats.throttled_for < stats.throttle_seconds <= 6 * stats.throttled_for
    assert stats.executing_for <= 20 * 0.1 + 0.2
    assert stats.keys[provider.key].completed_calls == 20


@in_virtual_time
async def test_a_refusal_is_counted_with_its_pause() -> None:
    provider = VirtualProvider(per_minute(60_000, 0.1))
    refused = iter([True])

    async def call() -> dict[str, str]:
        await asyncio.sleep(0.1)
        if next(refused, False):
            raise Answered429({"retry-after": "7"})
        return {}

    async def fn(row: int) -> int:
        await provider.registry.aexecute(provider.key, call)
        return row

    results = tidegate.amap(fn, range(3), pool_size=1, key=provider.key, registry=provider.registry)
    assert [row async for row in results] == [0, 1, 2]
    stats = results.stats
    assert (stats.capacity_retries, stats.transient_retries, stats.answered) == (1, 0, 3)
    assert stats.peak_pause == pytest.approx(7.0, abs=0.1)
    assert stats.throttle_seconds >= 6.9
    assert stats.executing_for == pytest.approx(0.4, abs=0.1)


@pytest.mark.constants(FIRST_BACKOFF_SECONDS=4.0)
@in_virtual_time
async def test_a_backoff_after_another_failure_is_no_throttling() -> None:
    failing = iter([True])

    async def fn(row: int) -> int:
        if next(failing, False):
            raise UnusableAnswer("no number")
        return row

    registry = registry_of()
    results = tidegate.amap(fn, [0], registry=registry)
    assert [row async for row in results] == [0]
    stats = results.stats
    assert (stats.transient_retries, stats.throttled_for, stats.capacity_retries) == (1, 0.0, 0)


@in_virtual_time
async def test_the_end_keeps_the_state_of_the_keys() -> None:
    provider = VirtualProvider(per_minute(600, 0.1))
    results = tidegate.amap(provider.ask, range(5), registry=provider.registry)
    async for _ in results:
        pass
    stats = results.stats
    await provider.ask(5)
    assert results.stats is stats
    assert stats.keys[provider.key].completed_calls == 5
    told = json.loads(json.dumps(stats.to_json(), allow_nan=False))
    assert told["answered"] == 5
    assert told["keys"][str(provider.key)]["completed_calls"] == 5
    assert told["unended"] == 0


@in_virtual_time
async def test_learned_pace_is_told_as_the_interval_of_calls() -> None:
    # Twelve requests fit in a window of six seconds, and no header says so.
    provider = VirtualProvider(per_minute(12, 0.05, window=6.0, announced=False))
    results = tidegate.amap(provider.ask, range(200), pool_size=20, registry=provider.registry)
    async for _ in results:
        pass
    seen = results.stats.keys[provider.key]
    assert seen.pace > 0.0
    assert results.stats.dispatch_interval_at_end == pytest.approx(1.0 / seen.pace)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001, FIRST_BACKOFF_SECONDS=0.001, TRANSIENT_ATTEMPTS=2)
@pytest.mark.parametrize("pool_size", [1, 4])
def test_threads_are_counted_too(pool_size: int) -> None:
    registry = RateLimitRegistry(tidegate.Settings(telemetry=False))
    refusals = iter([True, True])

    def call(row: Any) -> Any:
        if row == 2 and next(refusals, False):
            raise Answered429({"retry-after": "0.3"})
        if row == 3:
            raise Outage
        return row

    def fn(row: int) -> Any:
        return registry.execute("service", lambda: call(row))

    results = tidegate.map(fn, range(6), pool_size=pool_size, errors="return", registry=registry)
    assert results.stats == tidegate.PoolStats(pool_size)
    assert len(list(results)) == 6
    stats = results.stats
    assert (stats.submitted, stats.answered, stats.failed, stats.unended) == (6, 5, 1, 0)
    assert stats.throttle_seconds >= stats.throttled_for > 0.0
    assert stats.executing_for > 0.0
    assert 1 <= stats.max_concurrent <= pool_size + 1
    (seen,) = stats.keys.values()
    assert (seen.completed_calls, seen.refused) == (5, 2)
    assert stats.max_pending <= (1 if pool_size == 1 else 16)


@pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.001, FIRST_PAUSE_SECONDS=0.001)
def test_a_refusal_that_no_key_recorded_is_waited_out_and_counted() -> None:
    registry = RateLimitRegistry(tidegate.Settings(telemetry=False))
    refusals = iter([True])

    def fn(row: int) -> int:
        if next(refusals, False):
            raise Answered429({"retry-after": "0.01"})
        return row

    results = tidegate.map(fn, range(3), pool_size=1, registry=registry)
    assert list(results) == [0, 1, 2]
    assert results.stats.capacity_retries == 1
    assert 0.0 < results.stats.throttled_for < INFINITY
