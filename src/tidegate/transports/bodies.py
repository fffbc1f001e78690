"""The beginning of an error's body, read before a streaming answer is judged.

Theory of operation. An error is judged by its status, its headers and its body. The body is read up to
`MAX_ERROR_BYTES` and `MAX_READ_SECONDS`. The bytes that were read are replayed to the caller, which can then read on.
An exception of this reading is raised in the caller's own reading, after the bytes before it.

If chunks arrive slowly, reading stops at the first chunk after `MAX_READ_SECONDS`. If no chunk arrives, asyncio clients
stop at `MAX_READ_SECONDS`. Threaded and trio clients wait until the client's own read timeout: to interrupt a read
there would lose the connection, and the rest of the body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tidegate.admission.drive import in_trio

MAX_ERROR_BYTES = 1 << 18
"""Bytes at which the reading of an error ends, as sent and again when decompressed. Derived from
`providers.refusal_body.MAX_BODY`, above which no body is parsed."""

MAX_READ_SECONDS = 2.0
"""Seconds of reading an error's body before the status is returned. Chosen: providers send errors of some kilobytes
together with the headers."""

PIECE_BYTES = 16
"""Bytes decompressed at a time. Chosen: even 16 bytes of Brotli can describe 16 MB."""


class ErrorBody:
    """The beginning of an error's body: the chunks that the caller has not consumed, and how the reading ended.

    `ended` means that nothing follows the chunks. `error` is what the reading raised after them. Reading stops after
    `MAX_ERROR_BYTES`, or after `until` in monotonic seconds.
    """

    __slots__ = ("chunks", "ended", "error", "size", "until")

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.until = 0.0
        self.ended = False
        self.error: Exception | None = None

    def add(self, chunk: bytes, now: float) -> bool:
        """Keep a chunk; return whether another one is wanted."""
        self.chunks.append(chunk)
        self.size += len(chunk)
        return self.size < MAX_ERROR_BYTES and now < self.until

    def replay(self) -> Iterator[bytes]:
        """Yield and forget each chunk; then raise the exception of the reading, if any."""
        while self.chunks:
            yield self.chunks.popleft()
        if self.error is not None:
            raise self.error

    def pieces(self) -> Iterator[bytes]:
        """Yield the kept bytes in pieces that are safe to decompress."""
        for chunk in self.chunks:
            for start in range(0, len(chunk), PIECE_BYTES):
                yield chunk[start : start + PIECE_BYTES]


class ErrorStream:
    """A byte stream of an HTTP library that first replays the beginning of an error's body."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest: Any = None
        self._reading: Any = None
        self._closed = False
        self.body = ErrorBody()

    def __getattr__(self, name: str) -> Any:
        if name == "_stream":
            raise AttributeError(name)
        return getattr(self._stream, name)


class SyncErrorStream(ErrorStream):
    """The stream of a blocking client; combined with the `SyncByteStream` of its module."""

    def begin(self, now: Callable[[], float]) -> None:
        """Read the part of the body that the answer is judged by."""
        body = self.body
        body.until = now() + MAX_READ_SECONDS
        try:
            self._rest = iter(self._stream)
            for chunk in self._rest:
                if not body.add(chunk, now()):
                    return
            body.ended = True
            self.close()
        except BaseException as error:
            self.cut()
            if not isinstance(error, Exception):
                raise
            body.error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self.body.replay()
        if not self.body.ended:
            yield from self._rest

    def cut(self) -> None:
        self.body.ended = True
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()


class AsyncErrorStream(ErrorStream):
    """The stream of an asynchronous client; combined with the `AsyncByteStream` of its module."""

    async def begin(self, now: Callable[[], float], connected: bool) -> None:
        """Read the part to judge by. A stalled connection of asyncio delays it by at most `MAX_READ_SECONDS`."""
        if not connected or in_trio():
            await self._read(now)
            return
        reading = self._reading = asyncio.ensure_future(self._read(now))
        try:
            await asyncio.wait((reading,), timeout=MAX_READ_SECONDS)
        except BaseException:
            await self.cut()
            raise
        if reading.done():
            self._reading = None
            reading.result()
        else:
            # Cancelling the read would lose the connection. It continues to the next chunk, for the caller.
            self.body.until = 0.0

    async def _read(self, now: Callable[[], float]) -> None:
        body = self.body
        body.until = now() + MAX_READ_SECONDS
        try:
            self._rest = aiter(self._stream)
            async for chunk in self._rest:
                if not body.add(chunk, now()):
                    return
            body.ended = True
            await self._close()
        except BaseException as error:
            with suppress(Exception):
                await self._close()
            if not isinstance(error, Exception):
                raise
            body.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._reading is not None:
            await self._reading
            self._reading = None
        for chunk in self.body.replay():
            yield chunk
        if self.body.ended:
            return
        rest, self._rest = self._rest, None  # from here on this generator closes it
        try:
            async for chunk in rest:
                yield chunk
        finally:
            if isinstance(rest, AsyncGenerator):
                await rest.aclose()

    async def cut(self) -> None:
        self.body.ended = True
        with suppress(Exception):
            await self.aclose()

    async def aclose(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait((reading,))
        await self._close()

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if isinstance(self._rest, AsyncGenerator):
                await self._rest.aclose()
            await self._stream.aclose()


def decoded(pieces: Iterable[bytes]) -> bytes:
    """Join decompressed pieces, up to `MAX_ERROR_BYTES` or to the first piece that cannot be decompressed."""
    body = bytearray()
    # The caller's own reading raises the exception; the status and the headers are known.
    with suppress(Exception):
        for piece in pieces:
            body += piece
            if len(body) >= MAX_ERROR_BYTES:
                break
    return bytes(body)
