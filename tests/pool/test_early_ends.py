"""`amap` at the ends that come at an awkward time: each ends the pool, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import tidegate
from tests.chaos.virtual_time import in_virtual_time
from tests.pool.scene import registry_of
from tidegate.admission.registry import RateLimitRegistry

SECONDS = 60.0
"""Virtual seconds after which a wait is one for ever: longer than any cancelled function may take."""


async def stream() -> AsyncIterator[int]:
    for row in range(3):
        yield row


async def forever(row: int) -> None:
    await asyncio.Event().wait()


async def collect(results: tidegate.AsyncResults[Any], given: list[Any]) -> None:
    async for value in results:
        given.append(value)


async def first_of(results: tidegate.AsyncResults[Any]) -> Any:
    return await anext(results, None)


@in_virtual_time
async def test_a_pool_may_be_closed_before_its_source_is_first_asked() -> None:
    results = tidegate.amap(forever, stream(), registry=registry_of())
    reading = asyncio.ensure_future(first_of(results))
    closing = asyncio.ensure_future(results.aclose())
    async with asyncio.timeout(SECONDS):
        assert await asyncio.gather(reading, closing) == [None, None]


def test_no_row_starts_after_the_end_of_the_program() -> None:
    begun, full = [], asyncio.Event()

    async def fn(row: int) -> None:
        begun.append(row)
        if row == 2:
            full.set()
        await asyncio.sleep(0 if row == 0 else 1000)

    async def read() -> tidegate.AsyncResults[None]:
        results = tidegate.amap(fn, range(99), pool_size=2, registry=RateLimitRegistry())
        await anext(results)
        await full.wait()
        return results

    results = asyncio.run(read())
    assert begun == [0, 1, 2]
    del results


@in_virtual_time
async def test_two_tasks_may_close_one_pool() -> None:
    async def slow_to_end(row: int) -> None:
        try:
            await forever(row)
        finally:
            await asyncio.sleep(1)

    results = tidegate.amap(slow_to_end, range(3), registry=registry_of())
    reading = asyncio.ensure_future(first_of(results))
    await asyncio.sleep(1)
    async with asyncio.timeout(SECONDS):
        closed = await asyncio.gather(results.aclose(), results.aclose(), reading)
    assert closed[:2] == [None, None]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_source_that_ignores_its_cancellation_is_asked_no_more() -> None:
    given = []

    async def stubborn() -> AsyncIterator[int]:
        for row in range(100):
            given.append(row)
            yield row
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue

    results = tidegate.amap(forever, stubborn(), registry=registry_of())
    reading = asyncio.ensure_future(first_of(results))
    await asyncio.sleep(5)
    async with asyncio.timeout(SECONDS):
        await results.aclose()
        await reading
    assert given == [0, 1]


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("threaded", [False, True])
def test_no_exception_of_a_source_is_taken_for_its_end(error: type[BaseException], threaded: bool) -> None:
    def rows() -> Iterator[int]:
        yield 0
        raise error

    @in_virtual_time
    async def run() -> None:
        given: list[Any] = []
        with pytest.raises(RuntimeError, match="source failed"):
            await collect(tidegate.amap(asyncio.sleep, rows(), registry=registry_of()), given)
        assert given == [None]

    def read() -> None:
        given: list[str] = []
        with pytest.raises(RuntimeError, match="source failed"):
            given.extend(tidegate.map(str, rows(), registry=RateLimitRegistry()))
        assert given == ["0"]

    (read if threaded else run)()
