"""Clients that lie on aiohttp: one call passes two governed stacks and takes one slot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import httpx_aiohttp
import openai
import pytest

import tidegate
from tests.transports.answering import ANSWER, BODY, Reply, Server, fine, only, refused_at_first
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Simulator

MESSAGES: list[Any] = BODY["messages"]  # type: ignore[assignment]


@pytest.fixture
def narrow() -> RateLimitRegistry:
    """One slot: whoever takes two waits for himself."""
    return RateLimitRegistry(tidegate.Settings(max_concurrency=1, max_wait=60))


async def whole(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices


async def streamed(client: openai.AsyncOpenAI) -> None:
    events = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert [event async for event in events]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_openais_client_on_aiohttp_takes_one_slot_a_call(
    narrow: RateLimitRegistry, ask: Callable[[openai.AsyncOpenAI], Awaitable[None]]
) -> None:
    async def main(url: str) -> None:
        transport = openai.DefaultAioHttpClient()
        async with openai.AsyncOpenAI(base_url=url, api_key="k", http_client=transport) as client:
            assert {"httpx2", "aiohttp"} <= set(tidegate.install(narrow))
            await asyncio.gather(*(ask(client) for _ in range(3)))

    with Simulator() as provider:
        asyncio.run(main(provider.openai_url))
        assert provider.truth().total.answered == 3
    seen = only(narrow)
    assert (seen.attempts, seen.answered, seen.in_flight) == (3, 3, 0)


def test_an_httpx_client_on_aiohttp_takes_one_slot_a_call(narrow: RateLimitRegistry) -> None:
    async def main(url: str) -> None:
        tidegate.install(narrow)
        async with httpx_aiohttp.HttpxAiohttpClient() as client:
            assert (await client.post(url, json=BODY)).content == ANSWER

    with Server(fine) as server:
        asyncio.run(main(server.chat))
    assert (only(narrow).attempts, only(narrow).in_flight) == (1, 0)


def test_a_refused_stream_of_an_httpx_client_on_aiohttp_is_repeated(narrow: RateLimitRegistry) -> None:
    async def main(url: str) -> None:
        tidegate.install(narrow)
        async with httpx_aiohttp.HttpxAiohttpClient() as client, client.stream("POST", url, json=BODY) as answer:
            assert (answer.status_code, await answer.aread()) == (200, ANSWER)

    with Server(refused_at_first) as server:
        asyncio.run(main(server.chat))
    assert (only(narrow).attempts, only(narrow).refused) == (2, 1)


@pytest.mark.parametrize("status", [200, 400])
def test_a_client_above_a_wrapped_session_gets_every_body(registry: RateLimitRegistry, status: int) -> None:
    async def main(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            transport = httpx_aiohttp.AiohttpTransport(client=registry.wrap(session))
            async with httpx.AsyncClient(transport=transport) as client:
                answer = await client.post(url, json=BODY)
                assert (answer.status_code, answer.content) == (status, ANSWER)

    with Server(lambda number, path: (status, {}, ANSWER)) as server:
        asyncio.run(main(server.chat))
    assert (only(registry).attempts, only(registry).in_flight) == (1, 0)


def test_what_is_sent_inside_an_attempt_passes_through(narrow: RateLimitRegistry) -> None:
    async def main(url: str) -> None:
        inside: list[bytes] = []

        async def ask() -> bytes:
            async with session.post(url, json=BODY) as response:
                return await response.read()

        async def renew(*facts: object) -> None:
            if not inside:
                inside.append(b"")
                inside.append(await ask())

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(renew)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            narrow.wrap(session)
            assert await ask() == ANSWER
        assert inside == [b"", ANSWER]

    with Server(fine) as server:
        asyncio.run(main(server.chat))
        assert len(server.seen) == 2
    assert only(narrow).attempts == 1


def test_a_task_that_an_attempt_spawns_is_governed_once_the_attempt_is_over(
    registry: RateLimitRegistry,
) -> None:
    spawned: list[asyncio.Task[bytes]] = []

    def reply(number: int, path: str) -> Reply:
        return 200, {}, json.dumps({"number": number}).encode()

    async def main(url: str) -> None:
        over = asyncio.Event()

        async def ask() -> bytes:
            async with session.post(url, json=BODY) as response:
                return await response.read()

        async def later() -> bytes:
            await over.wait()
            return await ask()

        async def spawn(*facts: object) -> None:
            if not spawned:
                spawned.append(asyncio.create_task(later()))

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(spawn)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            registry.wrap(session)
            await ask()
            over.set()
            await spawned[0]

    with Server(reply) as server:
        asyncio.run(main(server.chat))
    assert only(registry).attempts == 2
