"""One queue for threads, several event loops and trio at once; whoever goes away gives its place back."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import anyio
import pytest
import trio

import tidegate
from tests.sdk.asking import Script, at_rest, http, make, mocked, ok, only, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Distribution, Limit, Scenario, Simulator

ONE_SLOT = tidegate.Settings(max_concurrency=1)


def in_threads(*works: Any) -> list[BaseException]:
    """Runs each work on a thread of its own; what they raised."""
    raised: list[BaseException] = []

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    return raised


def test_three_threads_two_asyncio_loops_and_trio_share_one_slot() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    each = 12
    with Simulator(Scenario(latency=Distribution.constant(0.003))) as provider:
        sync_client = registry.wrap(make("openai", provider.url))

        def on_thread() -> None:
            for _ in range(each):
                request("openai", sync_client)

        async def many() -> None:
            async with registry.wrap(make("async_openai", provider.url)) as client, anyio.create_task_group() as group:
                for _ in range(each):
                    group.start_soon(lambda: request("async_openai", client))

        works = [on_thread] * 3 + [lambda: asyncio.run(many())] * 2 + [lambda: trio.run(many)]
        raised = in_threads(*works)
        truth = provider.truth()
        sync_client.close()
    assert raised == []
    assert truth.total.peak_in_flight == 1
    assert truth.total.answered == 6 * each
    assert at_rest(registry)


def test_the_queue_is_first_come_first_served_over_loops_and_threads() -> None:
    """Calls join one by one from different worlds while the only slot is taken; they are admitted in that order."""
    registry = RateLimitRegistry(ONE_SLOT)
    order: list[int] = []
    release = threading.Event()
    key = tidegate.Key("p", "https://p.test")

    def block() -> None:
        registry.execute(key, release.wait)

    def join(row: int) -> Any:
        async def on_loop() -> None:
            async def call() -> None:
                order.append(row)

            await registry.aexecute(key, call)

        def on_thread() -> None:
            registry.execute(key, lambda: order.append(row))

        return [on_thread, lambda: asyncio.run(on_loop()), lambda: trio.run(on_loop)][row % 3]

    threads = [threading.Thread(target=block)]
    threads[0].start()
    wait_until(lambda: registry.snapshot().in_flight == 1)
    for row in range(9):
        threads.append(threading.Thread(target=join(row)))
        threads[-1].start()
        wait_until(lambda row=row: registry.snapshot().waiting == row + 1)
    release.set()
    for thread in threads:
        thread.join(300)
    assert order == list(range(9))
    assert at_rest(registry)


def test_a_higher_priority_goes_first() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    order: list[str] = []
    release = threading.Event()
    threads = [threading.Thread(target=lambda: registry.execute("k", release.wait))]
    threads[0].start()
    wait_until(lambda: registry.snapshot().in_flight == 1)
    for count, (name, priority) in enumerate([("low", 0), ("high", 5), ("lowest", -1)]):

        def call(name: str = name, priority: int = priority) -> None:
            registry.execute("k", lambda: order.append(name), priority=priority)

        threads.append(threading.Thread(target=call))
        threads[-1].start()
        wait_until(lambda count=count: registry.snapshot().waiting == count + 1)
    release.set()
    for thread in threads:
        thread.join(300)
    assert order == ["high", "low", "lowest"]


def wait_until(condition: Any) -> None:
    """Gives other threads the processor until `condition` holds; fails after a long while."""
    for _ in range(60_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("the condition never came to hold")


class Steps:
    """Cancels a coroutine at its n-th suspension."""

    def __init__(self, coroutine: Any, cancel_at: int) -> None:
        self.coroutine = coroutine
        self.cancel_at = cancel_at
        self.steps = 0

    def __await__(self) -> Any:
        inner = self.coroutine.__await__()
        value = None
        while True:
            try:
                waited_for = inner.send(value)
            except StopIteration as stop:
                return stop.value
            if self.steps == self.cancel_at:
                if asyncio.isfuture(waited_for):
                    waited_for.cancel()
                inner.throw(asyncio.CancelledError())
                raise AssertionError("a cancelled call went on")
            self.steps += 1
            value = yield waited_for


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cancelled_at_any_of_its_suspensions_leaves_nothing_behind(stream: bool) -> None:
    """The call waits in the queue, is refused once, goes back to the head, is answered: cancelled at every step."""
    finished = 0
    for cancel_at in range(200):
        registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))

        async def main(cancel_at: int = cancel_at, registry: RateLimitRegistry = registry) -> bool:
            calls = iter([429, 200, 200, 200])

            async def handler(_: Any) -> Any:
                await asyncio.sleep(0)
                status = next(calls)
                return http.Response(
                    status, headers={"retry-after-ms": "1"}, json=ok("openai")[2] if status == 200 else {}
                )

            client = registry.wrap(http.AsyncClient(transport=http.MockTransport(handler)))
            blocker = asyncio.create_task(registry.aexecute(key_of(), lambda: asyncio.sleep(0.002)))
            await asyncio.sleep(0)
            coroutine = post(client, stream)
            try:
                await Steps(coroutine, cancel_at)
                done = True
            except asyncio.CancelledError:
                done = False
            await blocker
            assert at_rest(registry), f"cancelled at suspension {cancel_at}"
            await post(client, stream)
            assert at_rest(registry)
            await client.aclose()
            return done

        def key_of() -> tidegate.Key:
            return tidegate.Key("compatible", "https://provider.test/v1", "", "m")

        if asyncio.run(main()):
            finished = cancel_at
            break
    assert finished >= 3, "the call suspended too rarely for this test to mean anything"


async def post(client: Any, stream: bool) -> None:
    url = "https://provider.test/v1/chat/completions"
    if stream:
        async with client.stream("POST", url, json={"model": "m"}) as response:
            await response.aread()
    else:
        await client.post(url, json={"model": "m"})


def test_a_loop_that_is_closed_with_waiters_does_not_hold_up_the_others() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    release = threading.Event()
    blocker = threading.Thread(target=lambda: registry.execute("k", release.wait))
    blocker.start()
    wait_until(lambda: registry.snapshot().in_flight == 1)
    dead = asyncio.new_event_loop()

    async def never() -> None:
        await registry.aexecute("k", lambda: asyncio.sleep(0))

    task = dead.create_task(never())
    dead.run_until_complete(asyncio.sleep(0))
    assert registry.snapshot().waiting == 1
    dead.close()
    answered: list[int] = []
    behind = threading.Thread(target=lambda: registry.execute("k", lambda: answered.append(1)))
    behind.start()
    # The call of the closed loop leaves the queue as soon as another one looks.
    release.set()
    blocker.join(300)
    behind.join(300)
    assert answered == [1]
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()  # type: ignore[union-attr]
    assert at_rest(registry)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_forked_child_starts_with_nothing_in_flight_and_what_was_learned() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    with Simulator(Scenario(limiters=(Limit(limit=600),))) as provider:
        client = registry.wrap(make("openai", provider.url))
        request("openai", client)
        stream = request("openai", client, stream=True)
        assert only(registry).in_flight == 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            outcome = b"failed"
            try:
                key = only(registry)
                permit = registry.try_admit(key.key)
                fresh = key.in_flight == 0 and bool(permit) and key.quotas[0].limit == 600
                outcome = b"fresh" if fresh else repr(key).encode()
            finally:
                os.write(writing, outcome)
                os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reading, 4096)
        os.close(reading)
        os.close(writing)
        assert said == b"fresh"
        assert only(registry).in_flight == 1
        stream.close()
        client.close()
    assert at_rest(registry)


def test_an_inner_stack_takes_no_second_permit_and_does_not_deadlock() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    script = Script("openai", ok("openai"))
    inner = registry.wrap(http.Client(transport=http.MockTransport(script)))

    class Stacked(http.BaseTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, outer: Any) -> Any:
            answer = inner.post(str(outer.url), content=outer.read(), headers={"authorization": "Bearer x"})
            return http.Response(answer.status_code, json=answer.json())

    client = registry.wrap(
        make("openai", "https://provider.test", http_client=http.Client(transport=Stacked())), max_wait=60
    )
    assert request("openai", client).choices[0].message.content == "High."
    assert only(registry).attempts == 1
    client.close()


def test_a_task_that_outlives_the_attempt_it_was_spawned_in_is_governed() -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    script = Script("async_openai", ok("async_openai"))

    async def main() -> None:
        later: list[asyncio.Task[Any]] = []
        go_on = asyncio.Event()

        async def outlive() -> None:
            await go_on.wait()
            await client.post("https://provider.test/v1/chat/completions", json={"model": "m"})

        async def on_request(_: Any) -> None:
            if not later:
                later.append(asyncio.create_task(outlive()))

        client = registry.wrap(
            http.AsyncClient(transport=http.MockTransport(script), event_hooks={"request": [on_request]})
        )
        await client.post("https://provider.test/v1/chat/completions", json={"model": "m"})
        go_on.set()
        await later[0]
        await client.aclose()

    asyncio.run(main())
    assert only(registry).attempts == 2


def test_calls_of_an_execute_are_not_governed_twice() -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    client = registry.wrap(mocked("openai", Script("openai", ok("openai"))), max_wait=60)
    answer = registry.execute("mine", lambda: request("openai", client))
    assert answer.choices[0].message.content == "High."
    assert [key.base_url for key in registry.snapshot().keys] == ["mine"]
    client.close()
