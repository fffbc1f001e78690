"""What of the running context decides whether a request is governed."""

from __future__ import annotations

import asyncio

import tidegate
from tidegate.admission.context import Cell, passes


def test_inside_an_attempt_everything_passes_and_after_it_nothing() -> None:
    assert not passes()
    with Cell():
        assert passes()
    assert not passes()


def test_a_task_that_outlives_the_attempt_it_was_spawned_in_is_governed() -> None:
    async def scene() -> None:
        ended = asyncio.Event()
        seen: list[bool] = []

        async def child() -> None:
            seen.append(passes())
            await ended.wait()
            seen.append(passes())

        with Cell():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        await task
        assert seen == [True, False]

    asyncio.run(scene())


def test_a_task_that_outlives_the_disabled_block_it_was_spawned_in_stays_outside() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def child() -> bool:
            await ended.wait()
            return passes()

        with tidegate.disabled():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task
        assert not passes()

    asyncio.run(scene())


def test_a_task_spawned_by_an_attempt_inside_a_disabled_block_stays_outside() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def child() -> bool:
            await ended.wait()
            return passes()

        with tidegate.disabled(), Cell():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task
        assert not passes()

    asyncio.run(scene())


def test_a_task_spawned_by_an_attempt_inside_an_attempt_waits_for_the_outer_one() -> None:
    async def scene() -> None:
        seen: list[bool] = []
        looks = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            for look in looks:
                await look.wait()
                seen.append(passes())

        with Cell():
            with Cell():
                task = asyncio.create_task(child())
                await asyncio.sleep(0)
            looks[0].set()
            await asyncio.sleep(0)
            assert passes()
        looks[1].set()
        await task
        assert seen == [True, False]

    asyncio.run(scene())


def test_a_task_spawned_inside_an_attempt_can_be_disabled_for_itself() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def child() -> list[bool]:
            with tidegate.disabled():
                await ended.wait()
                inside = passes()
            return [inside, passes()]

        with Cell():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task == [True, False]

    asyncio.run(scene())
