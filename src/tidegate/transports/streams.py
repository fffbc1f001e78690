"""Wrappers around a streaming body that watch its bytes and hold the call's permit until the body ends.

Theory of operation. A `StreamWatch` keeps the beginning and the end of a stream. When the stream ends, breaks, is
closed or is garbage-collected, it settles the permit once. A failure before any content is a refusal like any other:
some providers refuse only after a 200. A failure after content is counted, and shows nothing about the key.

`WatchedRaw` and `BegunRaw` wrap the `raw` of a response, which urllib3 makes and which requests and botocore read.
`Readers` lets a `StreamWatch` see what the network feeds to a stream reader of aiohttp. The byte streams of httpx are
in `httpx_streams`.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import wrapt

from tidegate import providers
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Outcome
from tidegate.transports import bodies
from tidegate.transports.call import HttpCall

KEPT_BYTES = 4096
"""Bytes kept of a stream's beginning (usage) and of its end (usage, failures)."""

MAX_SEEN_BYTES = 2 * KEPT_BYTES
"""Bytes at which a stream's bytes are trimmed to its beginning and its end. Derived from `KEPT_BYTES`: both fit."""


MAX_ENCODED_BYTES = 1 << 18
"""Bytes of a compressed body that are kept, from its beginning on. A longer one tells no usage. Chosen: answers that
are not streamed have some kilobytes, and few providers compress streams."""

MAX_DECODED_BYTES = 1 << 23
"""Bytes of a decompressed body that are searched for the usage. Chosen: far above the events of a long answer."""


class StreamWatch:
    """The watched bytes of a stream, and its permit; `finish` returns the permit once.

    Where `decode` is set, the bytes are compressed, and it returns those that they stand for.
    """

    __slots__ = ("_head", "_held", "_outcome", "_seen", "decode")

    def __init__(self, call: HttpCall, permit: Permit, outcome: Outcome) -> None:
        self._held: tuple[HttpCall, Permit] | None = (call, permit)
        self._outcome = outcome
        self._head = b""
        self._seen = permit.seen = bytearray()
        self.decode: Callable[[bytes], bytes] | None = None

    def feed(self, chunk: bytes) -> None:
        """Keep the first and the last bytes."""
        seen, trim = self.keeping()
        seen += chunk
        if len(seen) > MAX_SEEN_BYTES:
            trim()

    def keeping(self) -> tuple[bytearray, Callable[[], None]]:
        """Return the parts of `feed` for callers with many chunks: the bytes that were seen, and a trimming of them."""
        return self._seen, self._trim

    def _trim(self) -> None:
        seen = self._seen
        if self.decode is not None:
            if len(seen) <= MAX_ENCODED_BYTES:
                return
            # A part of a compressed body stands for nothing.
            self.decode = lambda encoded: b""
        if not self._head:
            self._head = bytes(seen[:KEPT_BYTES])
        del seen[:-KEPT_BYTES]

    def finish(self, error: Exception | None = None) -> None:
        """Settle the permit: the stream ended, was closed, or broke with `error`."""
        held, self._held = self._held, None
        if held is None:
            return
        call, permit = held
        permit.seen = None
        seen, is_long = bytes(self._seen), self._head != b""
        if self.decode is not None:
            self._head, seen = b"", self.decode(seen)
        tail = seen[-KEPT_BYTES:]
        failure = providers.judge_event(call.provider, tail) if error is None else call.judge_error(error)
        if failure is None:
            call.settle_stream(permit, call.answered(permit, self._outcome, self._head + seen))
            return
        # The provider had admitted the call, and nothing repeats it: to slow the key down protects no call. A time that
        # the provider names is one for all calls.
        own = not failure.retry_after and (is_long or providers.has_content(seen))
        call.settle_stream(permit, failure._replace(own=own))

    @property
    def repeatable_call(self) -> HttpCall | None:
        """Return the call that may be sent again while its reader has no event; None where the stream is compressed."""
        held = self._held
        return held[0] if held is not None and self.decode is None and held[0].policy.replayable else None

    def restart(self, failed: AttemptResult) -> tuple[HttpCall, tuple[Permit, AttemptResult]] | None:
        """Return the call, which continues after its failed attempt; None where the stream was closed."""
        if self._held is None:
            return None
        # The permit stays here for `drop`, in case that an interrupt comes before the call goes on.
        self.__class__ = _RestartedWatch
        call, permit = self._held
        permit.seen = None
        return call, (permit, failed)

    def drop(self) -> None:
        """Return the permit of a response that was garbage-collected before its end."""
        held, self._held = self._held, None
        if held is not None:
            call, permit = held
            call.registry.drop(permit)


class _RestartedWatch(StreamWatch):
    """Watch of a stream whose call continues: the end of this stream does not end the call."""

    __slots__ = ()

    def finish(self, error: Exception | None = None) -> None:
        """Do nothing."""


def ends_of(pieces: Iterable[bytes]) -> bytes:
    """Return the beginning and the end of a decompressed body, up to the first piece that cannot be decompressed."""
    head, tail, size = b"", bytearray(), 0
    with suppress(Exception):
        for piece in pieces:
            tail += piece
            size += len(piece)
            if len(tail) > MAX_SEEN_BYTES:
                head = head or bytes(tail[:KEPT_BYTES])
                del tail[:-KEPT_BYTES]
            if size > MAX_DECODED_BYTES:
                break
    return head + bytes(tail)


class WatchedRaw(wrapt.ObjectProxy[Any]):
    """A streaming `raw` that returns the permit at its end, at `close`, at an error, or when garbage-collected."""

    def __init__(self, raw: Any, watch: StreamWatch) -> None:
        super().__init__(raw)
        self._self_watch = watch

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._seen(self.__wrapped__.stream(*args, **kwargs))

    def __iter__(self) -> Iterator[bytes]:
        return self._seen(self.__wrapped__)

    def _seen(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        try:
            for piece in pieces:
                self._self_watch.feed(piece)
                yield piece
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.finish()

    def readlines(self, hint: int = -1) -> list[bytes]:
        return list(self)

    def read(self, amt: int | None = None, *args: Any, **kwargs: Any) -> bytes:
        try:
            chunk: bytes = self.__wrapped__.read(amt, *args, **kwargs)
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.feed(chunk)
        if amt is None or (amt > 0 and not chunk):
            self._self_watch.finish()
        return chunk

    def readinto(self, buffer: Any) -> int:
        try:
            number: int = self.__wrapped__.readinto(buffer)
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.feed(bytes(memoryview(buffer)[:number]))
        if number == 0 and len(buffer) > 0:
            self._self_watch.finish()
        return number

    def close(self) -> None:
        try:
            self.__wrapped__.close()
        finally:
            self._self_watch.finish()

    def release_conn(self) -> None:
        try:
            self.__wrapped__.release_conn()
        finally:
            self._self_watch.finish()

    def __del__(self) -> None:
        self._self_watch.drop()


def is_unread(response: Any) -> bool:
    """Return whether the body of a requests response is still to be read, from urllib3."""
    urllib3 = sys.modules.get("urllib3")
    untouched = response._content is False and not response._content_consumed
    return untouched and urllib3 is not None and isinstance(response.raw, urllib3.HTTPResponse)


class BegunRaw(io.RawIOBase):
    """The body of an error as it was sent: first the part that was read to judge it, then the rest of `raw`.

    `begin` returns a `raw` that replaces the first one and decompresses in the same way.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._body = bodies.ErrorBody()

    def begin(self, now: Callable[[], float]) -> Any:
        """Read the part of the body that the answer is judged by; return the new `raw`."""
        body, raw = self._body, self._raw
        body.until = now() + bodies.MAX_READ_SECONDS
        try:
            while chunk := self._next():
                if not body.add(chunk, now()):
                    break
            else:
                body.ended = True
        except Exception as error:
            body.error = error
        facts = {name: getattr(raw, name, None) for name in ("status", "version", "reason")}
        return type(raw)(
            body=self,
            headers=raw.headers,
            preload_content=False,
            decode_content=raw.decode_content,
            original_response=raw._original_response,
            request_method=getattr(raw, "_request_method", None) or "POST",
            request_url=raw.geturl(),
            retries=raw.retries,
            **facts,
        )

    def decoded(self) -> bytes:
        """Return the part that was read, decompressed."""
        encoding = self._raw.headers.get("content-encoding")
        sent = b"".join(self._body.chunks)
        if encoding is None:
            return sent
        headers = {"content-encoding": encoding}
        beginning = type(self._raw)(body=io.BytesIO(sent), headers=headers, preload_content=False)
        return bodies.decoded(beginning.stream(1024, decode_content=True))

    def cut(self) -> None:
        self._body.ended = True
        with suppress(Exception):
            self._raw.close()
            self._raw.release_conn()

    def _next(self) -> bytes:
        read = getattr(self._raw, "read1", None)
        # urllib3 before 2.1 returns no fewer bytes than requested, so request few.
        chunk: bytes = (read or self._raw.read)(65536 if read else 1024, decode_content=False)
        return chunk

    def readable(self) -> bool:
        return True

    def read(self, amt: int = -1) -> bytes:
        if amt is None or amt < 0:
            return b"".join(iter(lambda: self.read(65536), b""))
        for chunk in self._body.replay():
            if len(chunk) > amt:
                self._body.chunks.appendleft(chunk[amt:])
            return chunk[:amt]
        if self._body.ended or amt == 0:
            return b""
        rest: bytes = self._raw.read(amt, decode_content=False)
        return rest

    def read1(self, amt: int = -1) -> bytes:
        return self.read(65536 if amt is None or amt < 0 else amt)

    def close(self) -> None:
        """Close the connection, or return it to its pool if the body has ended."""
        if not self.closed:
            super().close()
            self._raw.close()
            self._raw.release_conn()


PAUSE_BYTES = 1 << 16
"""Least bytes in a reader above which the network pauses, twice that in a line (aiohttp 3.10 `ClientSession`)."""

_watches: dict[int, StreamWatch] = {}


class Readers:
    """Stream reader classes of one aiohttp module: its own, and a subclass that holds a permit until its end."""

    def __init__(self, module: ModuleType) -> None:
        self.plain = module.StreamReader
        self.watched = _watched(module.StreamReader)

    def holds(self, content: Any) -> bool:
        """Return whether the network feeds this body; a mock's or an empty body is not fed."""
        return type(content) is self.plain

    def follow(self, content: Any, watch: StreamWatch) -> bool:
        """Let `watch` see what the network feeds to a body; return False if that is not possible."""
        if not self.holds(content):
            return False
        try:
            content.__class__ = self.watched
        except TypeError:
            return False
        _watches[id(content)] = watch
        watch.feed(arrived(content))
        return True

    def whole(self, body: bytes) -> Any:
        reader = self.plain(Unconnected(), max(PAUSE_BYTES, len(body)), loop=asyncio.get_running_loop())
        reader.feed_data(body, len(body))
        reader.feed_eof()
        return reader


async def begun(content: Any, body: bodies.ErrorBody) -> None:
    """Read the beginning of an error's body. A failure here is kept, and raised when the caller reads."""
    loop = asyncio.get_running_loop()
    body.until = loop.time() + bodies.MAX_READ_SECONDS
    try:
        async with asyncio.timeout_at(body.until) as bound:
            while chunk := await content.readany():
                if not body.add(chunk, loop.time()):
                    return
            body.ended = True
    except TimeoutError as error:
        if not bound.expired():
            body.error = error
    except Exception as error:
        body.error = error


def put_back(content: Any, data: bytes) -> None:
    """Put `data` back before the unread data of a reader (aiohttp 3.14 `streams.py` `unread_data`, deprecated)."""
    if not data:
        return
    if content._buffer_offset:
        content._buffer[0] = content._buffer[0][content._buffer_offset :]
        content._buffer_offset = 0
    content._size += len(data)
    content._cursor -= len(data)
    content._buffer.appendleft(data)


class Unconnected:
    """The stand-in for a connection: a reader asks it to pause and resume."""

    connected = False
    _reading_paused = False
    """aiohttp's readers until 3.12 read it."""

    def pause_reading(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no data will arrive."""

    def resume_reading(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no data will arrive."""


def arrived(content: Any) -> bytes:
    """Return the bytes of a body that have arrived and are unread."""
    return b"".join(getattr(content, "_buffer", ()))


def _watched(plain: Any) -> type:
    """Return the class that a reader takes while it is watched; `__slots__` prevents an attribute for a watch."""

    class WatchedReader(plain):  # type: ignore[misc]
        __slots__ = ()

        def feed_data(self, data: bytes, *args: Any, **kwargs: Any) -> Any:
            _watches[id(self)].feed(data)
            return super().feed_data(data, *args, **kwargs)

        def feed_eof(self) -> None:
            super().feed_eof()
            end(self, None)

        def set_exception(self, error: Any, *args: Any, **kwargs: Any) -> None:
            super().set_exception(error, *args, **kwargs)
            # Subclasses of ClientConnectionError report a lost connection. The class itself means that the response was
            # closed.
            end(self, None if type(error).__name__ == "ClientConnectionError" else error)

        def __del__(self) -> None:
            watch = _watches.pop(id(self), None)
            if watch is not None:
                watch.drop()

    def end(reader: WatchedReader, error: Exception | None) -> None:
        reader.__class__ = plain
        _watches.pop(id(reader)).finish(error)

    return WatchedReader
