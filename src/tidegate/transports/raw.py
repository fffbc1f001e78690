"""The `raw` of a response, which urllib3 makes and requests and botocore read, with a permit that goes to its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import wrapt

from tidegate.transports.streams import StreamWatch


class WatchedRaw(wrapt.ObjectProxy[Any]):
    """A streaming `raw`; the permit goes back at its end, at `close`, at an error, or when it is collected."""

    def __init__(self, raw: Any, watch: StreamWatch) -> None:
        super().__init__(raw)
        self._self_watch = watch

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        """The body in pieces."""
        return self._seen(self.__wrapped__.stream(*args, **kwargs))

    def __iter__(self) -> Iterator[bytes]:
        """The body in lines."""
        return self._seen(self.__wrapped__)

    def _seen(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        try:
            for piece in pieces:
                self._self_watch.saw(piece)
                yield piece
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.finish()

    def readlines(self, hint: int = -1) -> list[bytes]:
        """The rest of the body in lines."""
        return list(self)

    def read(self, amt: int | None = None, *args: Any, **kwargs: Any) -> bytes:
        """The rest of the body, or the next `amt` bytes of it."""
        try:
            chunk: bytes = self.__wrapped__.read(amt, *args, **kwargs)
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.saw(chunk)
        if amt is None or (amt > 0 and not chunk):
            self._self_watch.finish()
        return chunk

    def readinto(self, buffer: Any) -> int:
        """The next bytes of the body, as many as `buffer` holds; returns their number."""
        try:
            number: int = self.__wrapped__.readinto(buffer)
        except Exception as error:
            self._self_watch.finish(error)
            raise
        self._self_watch.saw(bytes(memoryview(buffer)[:number]))
        if number == 0 and len(buffer) > 0:
            self._self_watch.finish()
        return number

    def close(self) -> None:
        """Closes the connection."""
        try:
            self.__wrapped__.close()
        finally:
            self._self_watch.finish()

    def release_conn(self) -> None:
        """Gives the connection back to its pool."""
        try:
            self.__wrapped__.release_conn()
        finally:
            self._self_watch.finish()

    def __del__(self) -> None:
        self._self_watch.drop()
