"""The stream readers of aiohttp, which hold a body between the network and its reader."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

from tidegate.transports.bodies import MAX_SECONDS, ErrorBody
from tidegate.transports.streams import StreamWatch

LEAST = 1 << 16
"""Bytes in a reader that make the network wait (aiohttp 3.10 `ClientSession`); a line may be twice as long."""

_watches: dict[int, StreamWatch] = {}


class Readers:
    """The readers made of one module's own."""

    def __init__(self, module: ModuleType) -> None:
        self.plain = module.StreamReader
        self.watched = _watched(module.StreamReader)

    def holds(self, content: Any) -> bool:
        """Return whether it is a body that the network feeds; a stand-in's, or an empty one, is not."""
        return type(content) is self.plain

    def follow(self, content: Any, watch: StreamWatch) -> bool:
        """Has `watch` see what the network feeds to a body; False where that cannot be seen."""
        if not self.holds(content):
            return False
        try:
            content.__class__ = self.watched
        except TypeError:
            return False
        _watches[id(content)] = watch
        watch.saw(arrived(content))
        return True

    def whole(self, body: bytes) -> Any:
        """A reader that all of `body` has arrived at."""
        reader = self.plain(Unconnected(), max(LEAST, len(body)), loop=asyncio.get_running_loop())
        reader.feed_data(body, len(body))
        reader.feed_eof()
        return reader


async def begun(content: Any, body: ErrorBody) -> None:
    """Read the beginning of an error's body; what cannot be read any more is told to the caller's own reading."""
    loop = asyncio.get_running_loop()
    body.until = loop.time() + MAX_SECONDS
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
    """Have a reader give `data` again before what arrives (aiohttp 3.14 `streams.py` `unread_data`, deprecated)."""
    if not data:
        return
    if content._buffer_offset:
        content._buffer[0] = content._buffer[0][content._buffer_offset :]
        content._buffer_offset = 0
    content._size += len(data)
    content._cursor -= len(data)
    content._buffer.appendleft(data)


class Unconnected:
    """The stand-in for a connection, which a reader calls to slow down a network that is not there."""

    connected = False
    _reading_paused = False
    """Read by readers until 3.12."""

    def pause_reading(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is coming."""

    def resume_reading(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is coming."""


def arrived(content: Any) -> bytes:
    """The bytes of a body that have arrived and were not read yet."""
    return b"".join(getattr(content, "_buffer", ()))


def _watched(plain: Any) -> type:
    """A class that a reader takes on while a watch follows it: its slots have no room for one."""

    class WatchedReader(plain):  # type: ignore[misc]
        __slots__ = ()

        def feed_data(self, data: bytes, *args: Any, **kwargs: Any) -> Any:
            _watches[id(self)].saw(data)
            return super().feed_data(data, *args, **kwargs)

        def feed_eof(self) -> None:
            super().feed_eof()
            end(self, None)

        def set_exception(self, error: Any, *args: Any, **kwargs: Any) -> None:
            super().set_exception(error, *args, **kwargs)
            # A lost connection is told by a class below this one; this one itself says that the response was closed.
            end(self, None if type(error).__name__ == "ClientConnectionError" else error)

        def __del__(self) -> None:
            watch = _watches.pop(id(self), None)
            if watch is not None:
                watch.drop()

    def end(reader: WatchedReader, error: Exception | None) -> None:
        reader.__class__ = plain
        _watches.pop(id(reader)).finish(error)

    return WatchedReader
