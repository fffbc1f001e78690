"""A provider in memory below the real clients, pools and h11 of httpx2, with a clock of its own.

A mock of the transport would not do: tidegate takes another path above one. The socket alone is not real.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpcore2
import httpx2

import tidegate
from tidegate.admission.registry import RateLimitRegistry

Block = Callable[[int], None]
"""Makes this many calls."""

QUOTAS = (
    b"x-ratelimit-limit-requests: 1000000\r\nx-ratelimit-limit-tokens: 1000000000\r\n"
    b"x-ratelimit-remaining-requests: 999999\r\nx-ratelimit-remaining-tokens: 999999000\r\n"
    b"x-ratelimit-reset-requests: 0s\r\nx-ratelimit-reset-tokens: 0s\r\n"
)
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"It keeps the sea out."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":6,'
    b'"total_tokens":26}}'
)
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%b]}\n\n'
PIECE = EVENT % b'{"index":0,"delta":{"content":"It "},"finish_reason":null}'
LAST = EVENT % b'{"index":0,"delta":{},"finish_reason":"stop"}' + b"data: [DONE]\n\n"

ROUND = 0.001
"""Seconds by which the clock advances in a round of the event loop, or at a read of a thread."""


def answer(headers: bytes = QUOTAS) -> list[bytes]:
    """Return the pieces of a complete answer, as the socket gives them."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_0\r\n"
    return [head + headers + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER]


def streamed() -> list[bytes]:
    """Return the pieces of an answer of eight events."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_0\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(data), data) for data in (*[PIECE] * 6, LAST)]
    return [head + QUOTAS + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]


class Network:
    """A network, its only socket and its clock; the socket gives the same pieces again and again."""

    def __init__(self, pieces: list[bytes], now: float = 1000.0) -> None:
        self.pieces, self.now = pieces, now
        self.left = itertools.cycle(pieces)
        settings = tidegate.Settings(share="off", telemetry=False, status=False)
        self.registry = RateLimitRegistry(settings, clock=lambda: self.now)

    def connect_tcp(self, *given: object, **named: object) -> Any:
        return self

    def start_tls(self, *given: object, **named: object) -> Any:
        return self

    def read(self, *given: object, **named: object) -> Any:
        self.now += ROUND
        return next(self.left)

    def write(self, *given: object, **named: object) -> Any:
        pass

    def close(self) -> None:
        pass

    def get_extra_info(self, info: str) -> None:
        return None

    def client(self) -> httpx2.Client:
        """Return a client of the network, governed or not."""
        made = httpx2.Client(trust_env=False, transport=httpx2.HTTPTransport(verify=False))
        backend: Any = self
        made._transport._pool = httpcore2.ConnectionPool(  # type: ignore[attr-defined]
            max_connections=None, network_backend=backend
        )
        return made


class AsyncNetwork(Network):
    """The same for an event loop, which makes one round at each read; each connection has its own pieces."""

    async def connect_tcp(self, *given: object, **named: object) -> Any:
        made = AsyncNetwork.__new__(AsyncNetwork)
        made.left = itertools.cycle(self.pieces)
        return made

    async def start_tls(self, *given: object, **named: object) -> Any:
        return self

    async def read(self, *given: object, **named: object) -> Any:
        await asyncio.sleep(0)
        return next(self.left)

    async def write(self, *given: object, **named: object) -> Any:
        pass

    async def aclose(self) -> None:
        pass

    def async_client(self) -> httpx2.AsyncClient:
        made = httpx2.AsyncClient(trust_env=False, transport=httpx2.AsyncHTTPTransport(verify=False))
        backend: Any = self
        made._transport._pool = httpcore2.AsyncConnectionPool(  # type: ignore[attr-defined]
            max_connections=None, network_backend=backend
        )
        return made

    def at_once(self, call: Callable[[], Awaitable[object]], callers: int) -> Block:
        """Return a block of calls by so many tasks of one event loop."""

        async def tick() -> None:
            while True:
                self.now += ROUND
                await asyncio.sleep(0)

        async def calls(count: int) -> None:
            left, ticking = iter(range(count)), asyncio.ensure_future(tick())

            async def caller() -> None:
                for _ in left:
                    await call()

            await asyncio.gather(*(caller() for _ in range(callers)))
            ticking.cancel()

        return lambda count: asyncio.run(calls(count))
