"""A stream holds its slot until it is read to the end, closed, broken or forgotten; then the slot comes back."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import tidegate
from tests.sdk.asking import KINDS, OPENAI_KINDS, at_rest, make, only, request
from tidegate.testing import Fault, Scenario, Simulator

EVERY_WAY = ["to the end", "closed early", "abandoned"]


def open_stream(kind: str, client: Any) -> Any:
    return request(kind, client, stream=True)


async def end_async(stream: Any, how: str) -> None:
    if how == "to the end":
        async for _ in stream:
            pass
    elif how == "closed early":
        async for _ in stream:
            break
        await stream.close()


def end_sync(stream: Any, how: str) -> None:
    if how == "to the end":
        for _ in stream:
            pass
    elif how == "closed early":
        for _ in stream:
            break
        stream.close()


@pytest.mark.parametrize("how", EVERY_WAY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_holds_its_slot_and_gives_it_back(kind: str, how: str, registry: tidegate.RateLimitRegistry) -> None:
    held: list[int] = []

    def sync(provider: Simulator) -> None:
        with registry.wrap(make(kind, provider.url)) as client:
            stream = open_stream(kind, client)
            held.append(only(registry).in_flight)
            end_sync(stream, how)
            del stream
            gc.collect()
            held.append(only(registry).in_flight)

    async def on_loop(provider: Simulator) -> None:
        async with registry.wrap(make(kind, provider.url)) as client:
            stream = await open_stream(kind, client)
            held.append(only(registry).in_flight)
            await end_async(stream, how)
            del stream
            gc.collect()
            held.append(only(registry).in_flight)

    with Simulator() as provider:
        if kind.startswith("async"):
            asyncio.run(on_loop(provider))
        else:
            sync(provider)
    assert held == [1, 0]
    assert at_rest(registry)


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_that_is_left_by_an_exception_gives_the_slot_back(
    kind: str, registry: tidegate.RateLimitRegistry
) -> None:
    def on_thread(client: Any) -> None:
        with client, open_stream(kind, client) as stream:
            for _ in stream:
                raise ZeroDivisionError

    async def on_loop(client: Any) -> None:
        async with client, await open_stream(kind, client) as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with Simulator() as provider:
        client = registry.wrap(make(kind, provider.url))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(on_loop(client)) if kind.startswith("async") else on_thread(client)
    assert at_rest(registry)


@pytest.mark.parametrize("fault", ["stream-error", "stream-drop"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_mid_stream_is_native_and_gives_the_slot_back(
    kind: str, fault: Any, registry: tidegate.RateLimitRegistry
) -> None:
    def plain_and_wrapped(provider: Simulator) -> list[type[BaseException]]:
        return [broken(kind, make(kind, provider.url)), broken(kind, registry.wrap(make(kind, provider.url)))]

    with Simulator(Scenario(faults=(Fault(kind=fault, nth=(1, 2)),))) as provider:
        plain, wrapped = plain_and_wrapped(provider)
    assert plain is wrapped
    assert at_rest(registry)
    assert only(registry).answered == 0


def broken(kind: str, client: Any) -> type[BaseException]:
    """The type of what a stream that breaks raises."""

    def on_thread() -> None:
        with client:
            end_sync(open_stream(kind, client), "to the end")

    async def on_loop() -> None:
        async with client:
            await end_async(await open_stream(kind, client), "to the end")

    try:
        asyncio.run(on_loop()) if kind.startswith("async") else on_thread()
    except Exception as error:
        return type(error)
    raise AssertionError("the stream did not break")


def test_an_overload_inside_a_stream_teaches_the_controller(registry: tidegate.RateLimitRegistry) -> None:
    with Simulator(Scenario(faults=(Fault(kind="stream-error", nth=(1,)),))) as provider:
        broken("anthropic", registry.wrap(make("anthropic", provider.url)))
    key = only(registry)
    assert key.refused == 1
    assert "pace" in {each.of for each in key.learnt}


@pytest.mark.parametrize("kind", KINDS)
def test_the_usage_at_the_end_of_a_stream_teaches_the_estimate(kind: str, registry: tidegate.RateLimitRegistry) -> None:
    options = {"stream_options": {"include_usage": True}} if "openai" in kind else {}

    async def on_loop(client: Any) -> None:
        async with client:
            await end_async(await request(kind, client, stream=True, **options), "to the end")

    with Simulator() as provider:
        client = registry.wrap(make(kind, provider.url))
        if kind.startswith("async"):
            asyncio.run(on_loop(client))
        else:
            with client:
                end_sync(request(kind, client, stream=True, **options), "to the end")
    assert only(registry).mean_output < 256


@pytest.mark.parametrize("kind", OPENAI_KINDS)
def test_a_refused_stream_is_retried_before_its_first_byte(kind: str) -> None:
    from tidegate.testing import Limit

    registry = tidegate.RateLimitRegistry(tidegate.Settings(pause_base=0.02, max_pause=0.1))
    scenario = Scenario(limiters=(Limit(limit=2, window=0.4),), headers=False)

    async def on_loop(client: Any) -> list[int]:
        async def read() -> int:
            return len([event async for event in await open_stream(kind, client)])

        async with client:
            return list(await asyncio.gather(*(read() for _ in range(6))))

    with Simulator(scenario) as provider:
        client = registry.wrap(make(kind, provider.url))
        if kind.startswith("async"):
            lengths = asyncio.run(on_loop(client))
        else:
            with client:
                lengths = [len(list(open_stream(kind, client))) for _ in range(6)]
        truth = provider.truth()
    assert min(lengths) > 0
    assert truth.total.answered == 6
    assert truth.total.refusals > 0
