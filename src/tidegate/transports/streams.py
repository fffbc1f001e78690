"""The `raw` of a response, which urllib3 makes and requests and botocore read, with a permit that goes to its end.

A streaming answer on its way to its reader: what its bytes say, and the permit that goes with it to its end.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import wrapt

from tidegate import providers
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Outcome
from tidegate.transports import bodies
from tidegate.transports.call import HttpCall

KEPT = 4096
"""Bytes kept of a stream's beginning and end: usage stands in the first or last events, a failure in the last."""

MOST_CHUNKS = 32
LONG = 1024
"""Pieces of it that are kept before they are cut to what is needed, and bytes of one that is cut at once: 36 kB in all,
where an event is of a few hundred bytes."""


class StreamWatch:
    """The reading of a stream's bytes, and its permit; `finish` gives the permit back once."""

    __slots__ = ("_chunks", "_head", "_held", "_outcome")

    def __init__(self, call: HttpCall, permit: Permit, outcome: Outcome) -> None:
        self._held: tuple[HttpCall, Permit] | None = (call, permit)
        self._outcome = outcome
        self._head = b""
        self._chunks: list[bytes] = []

    def saw(self, chunk: bytes) -> None:
        """Keeps the first and the last bytes, in pieces as long as they are few."""
        keep, kept, trim = self.keeping()
        keep(chunk)
        if len(kept) > MOST_CHUNKS or len(chunk) > LONG:
            trim()

    def keeping(self) -> tuple[Callable[[bytes], None], list[bytes], Callable[[], object]]:
        """Return what `saw` does, for whoever sees many: keeps a chunk, those that are kept, and cuts them."""
        return self._chunks.append, self._chunks, self._trim

    def _trim(self) -> bytes:
        """The last bytes, in one piece."""
        seen = b"".join(self._chunks)
        if len(self._head) < KEPT:
            self._head = seen[:KEPT]  # all that came is still there
        tail = seen[-KEPT:]
        self._chunks[:] = (tail,)
        return tail

    def finish(self, error: Exception | None = None) -> None:
        """The stream ended, was closed, or broke."""
        held, self._held = self._held, None
        if held is None:
            return
        call, permit = held
        if error is not None:
            call.settle_stream(permit, call.judge_error(error))
            return
        tail = self._trim()
        failure = providers.judge_event(call.provider, tail)
        if failure is not None:
            call.settle_stream(permit, failure)
            return
        outcome = self._outcome
        if call.reads_usage(permit):
            seen = self._head if len(self._head) < KEPT else self._head + tail
            outcome = call.answered(permit, outcome, seen)
        call.settle_stream(permit, outcome)

    def drop(self) -> None:
        """The response was garbage-collected before its end."""
        held, self._held = self._held, None
        if held is not None:
            call, permit = held
            call.registry.drop(permit)


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


def is_unread(response: Any) -> bool:
    """Return whether the body of a response of requests is still to be read, from urllib3."""
    urllib3 = sys.modules.get("urllib3")
    untouched = response._content is False and not response._content_consumed
    return untouched and urllib3 is not None and isinstance(response.raw, urllib3.HTTPResponse)


class BegunRaw(io.RawIOBase):
    """The body of an error as it was sent: the beginning that is judged, then the rest of `raw`.

    `begin` returns the `raw` that takes the place of the first one, and decompresses as that would.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._body = bodies.ErrorBody()

    def begin(self, now: Callable[[], float]) -> Any:
        """Read what the answer is judged by."""
        body, raw = self._body, self._raw
        body.until = now() + bodies.MAX_SECONDS
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
        """Return the beginning, decompressed."""
        encoding = self._raw.headers.get("content-encoding")
        sent = b"".join(self._body.chunks)
        if encoding is None:
            return sent
        headers = {"content-encoding": encoding}
        beginning = type(self._raw)(body=io.BytesIO(sent), headers=headers, preload_content=False)
        return bodies.decoded(beginning.stream(1024, decode_content=True))

    def cut(self) -> None:
        """End the body where it was read to, and release its connection."""
        self._body.ended = True
        with suppress(Exception):
            self._raw.close()
            self._raw.release_conn()

    def _next(self) -> bytes:
        read = getattr(self._raw, "read1", None)
        # urllib3 before 2.1 returns no less than it is asked for.
        chunk: bytes = (read or self._raw.read)(65536 if read else 1024, decode_content=False)
        return chunk

    def readable(self) -> bool:
        """Return True: it is read only."""
        return True

    def read(self, amt: int = -1) -> bytes:
        """Return up to `amt` bytes, or all."""
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
        """Return up to `amt` bytes, or as many as came together."""
        return self.read(65536 if amt is None or amt < 0 else amt)

    def close(self) -> None:
        """Close the connection, or give it back where the body has ended."""
        if not self.closed:
            super().close()
            self._raw.close()
            self._raw.release_conn()
