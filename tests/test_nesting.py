"""What of the running context decides whether a request is governed."""

from __future__ import annotations

import asyncio

import tidegate
from tidegate.admission.context import AttemptScope, current_scope


def is_passthrough() -> bool:
    """Return whether a request of this context passes through."""
    scope = current_scope()
    return scope is not None and scope.open


def test_inside_an_attempt_everything_passes_and_after_it_nothing() -> None:
    assert not is_passthrough()
    with AttemptScope():
        assert is_passthrough()
    assert not is_passthrough()


def test_a_task_that_outlives_the_attempt_it_was_spawned_in_is_governed() -> None:
    async def scene() -> None:
        ended = asyncio.Event()
        seen: list[bool] = []

        async def child() -> None:
            seen.append(is_passthrough())
            await ended.wait()
            seen.append(is_passthrough())

        with AttemptScope():
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
            return is_passthrough()

        with tidegate.disabled():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task
        assert not is_passthrough()

    asyncio.run(scene())


def test_a_task_spawned_by_an_attempt_inside_a_disabled_block_stays_outside() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def child() -> bool:
            await ended.wait()
            return is_passthrough()

        with tidegate.disabled(), AttemptScope():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task
        assert not is_passthrough()

    asyncio.run(scene())


def test_a_task_spawned_by_an_attempt_inside_an_attempt_waits_for_the_outer_one() -> None:
    async def scene() -> None:
        seen: list[bool] = []
        looks = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            for look in looks:
                await look.wait()
                seen.append(is_passthrough())

        with AttemptScope():
            with AttemptScope():
                task = asyncio.create_task(child())
                await asyncio.sleep(0)
            looks[0].set()
            await asyncio.sleep(0)
            assert is_passthrough()
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
                inside = is_passthrough()
            return [inside, is_passthrough()]

        with AttemptScope():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        ended.set()
        assert await task == [True, False]

    asyncio.run(scene())
