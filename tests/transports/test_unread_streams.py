"""Programs that ask again between two chunks of a stream, where the stream holds the only slot."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import tidegate
from tests.transports.answering import BODY, Reply, Server, only
from tests.transports.test_stream_openings import PIECE, SSE, STREAMED
from tidegate.admission.registry import RateLimitRegistry

pytestmark = pytest.mark.constants(UNREAD_SECONDS=0.02)

ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()


def answer(number: int, path: str) -> Reply:
    """Stream three pieces first, and answer all other requests at once."""
    return (200, SSE, [PIECE] * 3) if number == 1 else (200, {}, ANSWER)


def make() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_concurrency=1, max_wait=30.0))


def test_each_chunk_asks_again() -> None:
    registry = make()
    with (
        Server(answer) as server,
        registry.wrap(httpx.Client()) as client,
        client.stream("POST", server.chat, json=STREAMED) as response,
    ):
        codes = [client.post(server.chat, json=BODY).status_code for _ in response.iter_bytes(len(PIECE))]
    assert codes == [200] * 3
    assert (only(registry).in_flight, only(registry).answered) == (0, 4)


def test_each_chunk_asks_again_in_another_thread() -> None:
    registry = make()
    with (
        Server(answer) as server,
        registry.wrap(httpx.Client()) as client,
        ThreadPoolExecutor(1) as pool,
        client.stream("POST", server.chat, json=STREAMED) as response,
    ):
        chunks = response.iter_bytes(len(PIECE))
        answers = [pool.submit(client.post, server.chat, json=BODY).result() for _ in chunks]
    assert [each.status_code for each in answers] == [200] * 3


def test_each_chunk_asks_several_times_in_tasks() -> None:
    registry = make()

    async def main(url: str) -> list[int]:
        codes: list[int] = []
        async with (
            registry.wrap(httpx.AsyncClient()) as client,
            client.stream("POST", url, json=STREAMED) as response,
        ):
            async for _ in response.aiter_bytes(len(PIECE)):
                answers = await asyncio.gather(*(client.post(url, json=BODY) for _ in range(2)))
                codes += [each.status_code for each in answers]
        return codes

    with Server(answer) as server:
        assert asyncio.run(main(server.chat)) == [200] * 6
    assert only(registry).in_flight == 0
