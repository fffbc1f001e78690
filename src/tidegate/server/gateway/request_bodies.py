"""Bodies of requests, read before they are sent: only a whole body can be priced, and sent again after a refusal.

Theory of operation. A body of at most `MAX_BODY` bytes is read whole. All bodies together hold at most `MAX_BODIES`
bytes; a request beyond that waits, in order of arrival, before any of its body is read. A longer body passes through in
pieces. Such a call waits for its turn, too, but a refusal is handed back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.types import Receive

MAX_BODY = 32 << 20
"""Bytes up to which a body is held. Derived from `providers._request._MAX_BODY`, above which no body is parsed."""

MAX_BODIES = 512 << 20
"""Bytes that all held bodies have in total. Chosen: 1,000 calls of half a megabyte."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class BodyBudget:
    """Number of bytes that may be held, given out in order of arrival. It belongs to one event loop."""

    def __init__(self, size: int = MAX_BODIES) -> None:
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take this many bytes, and wait where they are not free."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(size)
            else:
                with suppress(ValueError):
                    self._waiting.remove((size, granted))
                self._grant()
            raise

    def give(self, size: int) -> None:
        self._free += size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (self._waiting[0][0] <= self._free or self._waiting[0][1].cancelled()):
            size, granted = self._waiting.popleft()
            if not granted.cancelled():
                self._free -= size
                granted.set_result(None)


class RequestBody:
    """Body of one request, as the server receives it; `length` is the stated one, None if there is none.

    After `read`, `whole` is the body, or None for one that is too long, which `pieces` yields. `release` gives the
    memory back; call it once the body is not needed any more.
    """

    def __init__(self, receive: Receive, length: int | None, budget: BodyBudget) -> None:
        self.whole: bytes | None = None
        self._receive = receive
        self._length = length
        self._budget = budget
        self._taken = 0
        self._begun: list[bytes] = []
        self._ended = False

    async def read(self) -> None:
        """Read the body, unless it is too long; raise `ClientGone` where the client closes before its end."""
        if self._length is not None and self._length > MAX_BODY:
            return
        size = MAX_BODY if self._length is None else self._length
        await self._budget.take(size)
        self._taken = size
        read = 0
        while not self._ended and read <= MAX_BODY:
            read += len(await self._next())
        if self._ended:
            self.whole = b"".join(self._begun)
            self._begun = []
            self._budget.give(self._taken - len(self.whole))
            self._taken = len(self.whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._begun or not self._ended:
            piece = self._begun.pop(0) if self._begun else await self._next(kept=False)
            if piece:
                yield piece

    def release(self) -> None:
        taken, self._taken = self._taken, 0
        self._budget.give(taken)

    async def _next(self, kept: bool = True) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        self._ended = not message.get("more_body", False)
        if kept and piece:
            self._begun.append(piece)
        return piece
