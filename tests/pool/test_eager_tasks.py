"""`amap` in a loop whose tasks run before `create_task` returns (`asyncio.eager_task_factory`, Python 3.12)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import tidegate
from tests.chaos.virtual_time import in_virtual_time
from tests.pool.scene import Answered429, VirtualProvider, per_minute, registry_of

pytestmark = pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12")

SECONDS = 3600.0
"""Virtual seconds after which a pool hangs."""


def eagerly(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @in_virtual_time
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        async with asyncio.timeout(SECONDS):
            await test(*args, **kwargs)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return run


async def stream(count: int) -> AsyncIterator[int]:
    for row in range(count):
        yield row


@pytest.mark.parametrize("count", [0, 3, 5000])
@pytest.mark.parametrize("streams", [False, True])
@eagerly
async def test_functions_that_never_suspend_end_in_their_order(streams: bool, count: int) -> None:
    async def fn(row: int) -> int:
        return row

    # A short stream ends before its task is known.
    source: Any = stream(count) if streams else range(count)
    results = tidegate.amap(fn, source, pool_size=8, registry=registry_of())
    assert [row async for row in results] == [*range(count)]
    stats = results.stats
    assert (stats.submitted, stats.answered, stats.throttled_for) == (count, count, 0.0)
    assert stats.max_pending <= 32


@eagerly
async def test_rows_come_in_their_order_whatever_ends_first() -> None:
    async def fn(row: int) -> int:
        if row % 3:
            await asyncio.sleep(row % 7)
        return row

    results = tidegate.amap(fn, range(100), pool_size=10, registry=registry_of())
    assert [row async for row in results] == [*range(100)]


@eagerly
async def test_no_more_than_the_pool_are_under_way() -> None:
    under_way, most = 0, 0

    async def fn(row: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1.0)
        under_way -= 1

    async for _ in tidegate.amap(fn, range(40), pool_size=5, registry=registry_of()):
        pass
    assert most == 5


@eagerly
async def test_a_quota_is_kept_and_a_refusal_costs_no_attempt() -> None:
    provider = VirtualProvider(per_minute(600, 0.2, initial=0))
    began = provider.clock()
    results = tidegate.amap(provider.ask, range(200), pool_size=20, registry=provider.registry)
    ends = [end async for end in results.rows()]
    assert [end.value for end in ends] == [*range(200)]
    assert {end.attempts for end in ends} == {1}
    assert provider.answered == 200
    assert provider.clock() - began <= 1.03 * 20.2


@eagerly
async def test_refusals_without_a_key_are_waited_out() -> None:
    refusals = dict.fromkeys(range(0, 30, 5), 2)

    async def fn(row: int) -> int:
        if refusals.get(row):
            refusals[row] -= 1
            raise Answered429({})
        return row

    results = tidegate.amap(fn, range(30), registry=registry_of())
    assert [row async for row in results] == [*range(30)]
    assert results.stats.capacity_retries == 12


@pytest.mark.parametrize("ordered", [True, False])
@eagerly
async def test_an_error_ends_the_pool_and_nothing_is_left(ordered: bool) -> None:
    async def fn(row: int) -> int:
        if row == 3:
            raise ValueError("own")
        await asyncio.sleep(0.01 if row < 3 else 1000.0)
        return row

    async with tidegate.amap(fn, stream(100), pool_size=8, ordered=ordered, registry=registry_of()) as results:
        with pytest.raises(ValueError, match="own"):
            async for _ in results:
                pass


@eagerly
async def test_a_call_that_takes_too_long_is_cancelled_and_repeated() -> None:
    calls: list[int] = []

    async def fn(row: int) -> int:
        calls.append(row)
        await asyncio.sleep(100.0 if len(calls) == 1 else 0.0)
        return row

    results = tidegate.amap(fn, [7], timeout=2.0, registry=registry_of())
    assert [row async for row in results] == [7]
    assert calls == [7, 7]


@eagerly
async def test_a_pool_in_a_pool_ends() -> None:
    registry = registry_of()

    async def inner(row: int) -> int:
        await asyncio.sleep(0.1)
        return row

    async def outer(row: int) -> int:
        return sum([each async for each in tidegate.amap(inner, range(row), pool_size=2, registry=registry)])

    results = tidegate.amap(outer, range(20), pool_size=3, registry=registry)
    assert [row async for row in results] == [sum(range(row)) for row in range(20)]


@eagerly
async def test_a_pool_may_be_left_or_cancelled() -> None:
    async def fn(row: int) -> int:
        if row:
            await asyncio.sleep(1000.0)
        return row

    async with tidegate.amap(fn, stream(100), pool_size=4, registry=registry_of()) as results:
        assert await anext(results) == 0
    results = tidegate.amap(fn, range(1, 100), pool_size=4, registry=registry_of())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await anext(results)
    await results.aclose()
    assert results.stats.unended == results.stats.submitted > 0
