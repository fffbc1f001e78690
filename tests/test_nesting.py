"""What of the running context decides whether a request is governed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import tidegate
from tidegate.admission.context import AttemptScope, current_scope
from tidegate.admission.registry import RateLimitRegistry


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


def registry_of(slots: int) -> RateLimitRegistry:
    settings = tidegate.Settings(max_concurrency=slots, share="off", max_wait=30.0)
    return RateLimitRegistry(settings)


def test_a_call_inside_a_call_of_its_key_does_not_wait_for_the_slot_of_the_outer_one() -> None:
    registry = registry_of(1)
    assert registry.execute("k", lambda: registry.execute("k", lambda: registry.execute("k", lambda: 3))) == 3
    assert registry.snapshot().in_flight == 0


def test_tasks_inside_a_call_of_their_key_run_one_after_the_other_beyond_its_slot() -> None:
    registry, running, most = registry_of(1), 0, 0

    async def inner() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 1

    async def outer() -> int:
        return sum(await asyncio.gather(*(registry.aexecute("k", inner) for _ in range(5))))

    assert asyncio.run(registry.aexecute("k", outer)) == 5
    assert most == 1


def test_calls_that_hold_all_slots_and_wait_for_calls_inside_them_all_end() -> None:
    registry, began = registry_of(2), threading.Barrier(2)

    def outer() -> int:
        began.wait()
        return registry.execute("k", lambda: 1)

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(registry.execute, "k", outer) for _ in range(2)]
        assert [each.result() for each in others] == [1, 1]


def test_a_call_inside_a_call_passes_those_that_wait_for_the_outer_one() -> None:
    registry, pool = registry_of(1), ThreadPoolExecutor(1)

    def outer() -> int:
        other = pool.submit(registry.execute, "k", lambda: 2)
        while not registry.snapshot().waiting:
            threading.Event().wait(0.001)
        others.append(other)
        return registry.execute("k", lambda: 1)

    others: list[Future[int]] = []
    with pool:
        assert registry.execute("k", outer) == 1
        assert others[0].result() == 2


def test_a_call_beside_a_call_of_its_key_waits() -> None:
    """Only what runs inside the outer call goes beyond its slot, and only while nothing else would end."""
    registry, running, most = registry_of(2), [0], [0]

    def inner() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(0.002)
        running[0] -= 1

    def outer() -> None:
        for _ in range(3):
            registry.execute("k", inner)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: registry.execute("k", outer), range(6)))
    assert most[0] == 1
    assert registry.snapshot().in_flight == 0
