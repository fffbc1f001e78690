"""What the tests of aiohttp's sessions share: how one is asked, and who answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aiohttp

import tidegate
from tests.transports.answering import BODY, EVENTS, Reply
from tidegate.admission.registry import RateLimitRegistry

Test = Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]


BUSY = b'{"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow down"}}'


def run(registry: RateLimitRegistry, test: Test, **options: Any) -> None:

    async def main() -> None:
        async with aiohttp.ClientSession(**options) as session:
            await test(registry.wrap(session))

    asyncio.run(main())


async def ask(session: aiohttp.ClientSession, url: Any, **options: Any) -> bytes:
    async with session.post(url, **{"json": BODY, **options}) as response:
        return await response.read()


class Gate:
    """A body whose first piece is there at once, and whose rest comes when it is opened."""

    def __init__(self, first: bytes = EVENTS[:24], rest: bytes = EVENTS[24:]) -> None:
        self.pieces = (first, rest)
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __iter__(self) -> Iterator[bytes]:
        yield self.pieces[0]
        self._open.wait(300)
        yield self.pieces[1]

    def reply(self, number: int, path: str) -> Reply:
        return 200, {"content-type": "text/event-stream"}, self


def refusing(number: int, path: str) -> Reply:
    return 429, {"retry-after": "0.01", "content-type": "application/json"}, BUSY


def impatient() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_wait=0))


async def read_text(response: aiohttp.ClientResponse) -> bytes:
    return (await response.text()).encode()


async def read_lines(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in response.content])


async def read_chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in response.content.iter_chunked(5)])


async def read_any(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in response.content.iter_any()])


async def read_http_chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk, _ in response.content.iter_chunks()])


async def read_exactly(response: aiohttp.ClientResponse) -> bytes:
    return await response.content.readexactly(9) + await response.content.read()


READS = [aiohttp.ClientResponse.read, read_text, read_lines, read_chunks, read_any, read_http_chunks, read_exactly]
