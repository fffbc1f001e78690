"""A stream holds its slot until it is read to the end, closed, broken or forgotten; then the slot comes back."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

import tidegate
from tests.relief import relieved_after
from tests.sdk.asking import KINDS, OPENAI_KINDS, at_rest, http_of, make, mocked, only, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Source
from tidegate.testing import Fault, Limit, Scenario, Simulator

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
def test_a_stream_holds_its_slot_and_gives_it_back(kind: str, how: str, registry: RateLimitRegistry) -> None:
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
def test_a_context_that_is_left_by_an_exception_gives_the_slot_back(kind: str, registry: RateLimitRegistry) -> None:
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
    kind: str, fault: Any, registry: RateLimitRegistry
) -> None:
    def plain_and_wrapped(provider: Simulator) -> list[type[BaseException]]:
        return [broken(kind, make(kind, provider.url)), broken(kind, registry.wrap(make(kind, provider.url)))]

    with Simulator(Scenario(faults=(Fault(kind=fault, nth=(1, 2)),))) as provider:
        plain, wrapped = plain_and_wrapped(provider)
    assert plain is wrapped
    assert at_rest(registry)
    assert only(registry).answered == 0


def read(kind: str, client: Any) -> None:
    def on_thread() -> None:
        with client:
            end_sync(open_stream(kind, client), "to the end")

    async def on_loop() -> None:
        async with client:
            await end_async(await open_stream(kind, client), "to the end")

    asyncio.run(on_loop()) if kind.startswith("async") else on_thread()


def broken(kind: str, client: Any) -> type[BaseException]:
    """The type of what a stream that breaks raises."""
    try:
        read(kind, client)
    except Exception as error:
        return type(error)
    raise AssertionError("the stream did not break")


def taught(registry: RateLimitRegistry) -> set[str]:
    """What holds calls back since a refusal or a failure."""
    key = only(registry)
    held = {"pause"} if key.paused_for else set()
    return held | {each.of for each in key.learnt if each.count and each.origin is not Source.ANSWERS}


@pytest.mark.parametrize("fault", ["stream-error", "stream-drop"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_after_content_is_counted_and_holds_no_call_back(
    kind: str, fault: Any, registry: RateLimitRegistry
) -> None:
    with Simulator(Scenario(faults=(Fault(kind=fault, nth=tuple(range(2, 14))),), headers=False)) as provider:
        read(kind, registry.wrap(make(kind, provider.url)))
        before = only(registry).limit
        for _ in range(12):
            broken(kind, registry.wrap(make(kind, provider.url)))
    key = only(registry)
    assert (key.answered, key.refused + key.failed) == (1, 12)
    assert (taught(registry), key.limit, key.breaker) == (set(), before, "closed")


EVENTS = {
    "rate_limit_error": {"type": "error", "error": {"type": "rate_limit_error", "message": "Too many requests"}},
    "waits": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded", "retry_after": 30}},
}
OPENING = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
PIECE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "5"}}


def streamed(*events: dict[str, Any]) -> Any:
    """An answer of these events, one after the other."""
    pieces = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]
    return http_of("anthropic").Response(200, headers={"content-type": "text/event-stream"}, content=iter(pieces))


@pytest.mark.parametrize(
    ("error", "opening", "learns"),
    [
        ("rate_limit_error", (), True),
        ("rate_limit_error", (OPENING,), True),
        ("rate_limit_error", (OPENING, PIECE), False),
        ("waits", (OPENING, PIECE), True),
    ],
)
def test_a_refusal_before_content_or_with_a_time_holds_calls_back(
    error: str, opening: tuple[dict[str, Any], ...], learns: bool, registry: RateLimitRegistry
) -> None:
    client = mocked("anthropic", lambda _: streamed(*opening, EVENTS[error]))
    # Without time to wait the reader gets the refusal.
    broken("anthropic", registry.wrap(client, max_wait=0))
    assert only(registry).refused == 1
    assert bool(taught(registry)) is learns


@pytest.mark.parametrize("kind", KINDS)
def test_the_usage_at_the_end_of_a_stream_teaches_the_estimate(kind: str, registry: RateLimitRegistry) -> None:
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


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.1)
@pytest.mark.parametrize("kind", OPENAI_KINDS)
def test_a_refused_stream_is_retried_before_its_first_byte(kind: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    scenario = Scenario(limiters=(Limit(limit=2, window=3600.0),), headers=False, retry_after="none")

    async def on_loop(client: Any) -> list[int]:
        async def read() -> int:
            return len([event async for event in await open_stream(kind, client)])

        async with client:
            return list(await asyncio.gather(*(read() for _ in range(6))))

    with Simulator(scenario) as provider, relieved_after(1, provider, Limit(limit=30, window=0.3)):
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
