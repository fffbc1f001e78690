"""Fast HTTP/1.1 for a loopback server: requests, whole or chunked answers, keep-alive.

`Connection` is an asyncio protocol. It passes each request to `on_request(request, connection)`, one at a time: the
next one is read once the answer has ended. An answer is one `reply`, or `begin`, any number of `write`, and `end`.
`cut` drops the connection instead. `on_lost` is called if the client disconnects before the end, and `on_status` with
the status of the answer, 0 for a cut connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

MAX_HEAD = 64 * 1024
"""Most bytes of a request's head (else 431). Chosen: above the heads that SDKs send with long credentials."""

MAX_BODY = 64 * 1024 * 1024
"""Most bytes of a request's body (else 413). Chosen: above `providers._request._MAX_BODY`, to test that bound."""

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are lower case, `path` is without the `query`."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    query: str = ""


def _path(target: str) -> tuple[str, str]:
    """Return path and query of a request target; a server accepts the absolute form (RFC 9112, 3.2.2)."""
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    return path, query


class MalformedError(Exception):
    """Input that this server cannot read as HTTP/1.1; `status` is that of the answer."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


def take_request(buffer: bytearray) -> Request | None:
    """Remove the first request from `buffer` and return it; None if it is incomplete. Raise MalformedError."""
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        if len(buffer) > MAX_HEAD:
            raise MalformedError(431)
        return None
    lines = buffer[:head_end].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise MalformedError(400)
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if parts[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    if "chunked" in headers.get("transfer-encoding", "").lower():
        chunked = _take_chunks(buffer, head_end + 4)
        if chunked is None:
            return None
        body, end = chunked
    else:
        body_start = head_end + 4
        end = body_start + _length(headers)
        if len(buffer) < end:
            return None
        body = bytes(buffer[body_start:end])
    del buffer[:end]
    path, query = _path(parts[1])
    return Request(parts[0], path, headers, body, query)


def _length(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise MalformedError(400)
    if (length := int(text)) > MAX_BODY:
        raise MalformedError(413)
    return length


def _take_chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    body = bytearray()
    while True:
        line_end = buffer.find(b"\r\n", start)
        if line_end < 0:
            return None
        try:
            size = int(bytes(buffer[start:line_end]).split(b";")[0], 16)
        except ValueError:
            raise MalformedError(400) from None
        if size < 0 or len(body) + size > MAX_BODY:
            raise MalformedError(413)
        chunk_start = line_end + 2
        if len(buffer) < chunk_start + size + 2:
            return None
        if size == 0:
            return bytes(body), chunk_start + 2
        body += buffer[chunk_start : chunk_start + size]
        start = chunk_start + size + 2


class Connection(asyncio.Protocol):
    """Connection of one client; the module docstring has the order of calls."""

    def __init__(self, on_request: Callable[[Request, Connection], None], open_ones: set[Connection]) -> None:
        self._on_request = on_request
        self._open_ones = open_ones
        self._buffer = bytearray()
        self._busy = False
        self._advancing = False
        self._keeps = True
        self._transport: asyncio.Transport | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_status: Callable[[int], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_ones.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_ones.discard(self)
        if (on_lost := self.on_lost) is not None:
            self.on_lost = None
            on_lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._advance()

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self._busy and self._buffer and self._transport is not None:
                request = take_request(self._buffer)
                if request is None:
                    self._encourage()
                    return
                self._busy = True
                self._keeps = request.headers.get("connection", "").lower() != "close"
                self._on_request(request, self)
        except MalformedError as error:
            self._keeps = False
            self.reply(error.status, (), b"", "text/plain")
        finally:
            self._advancing = False

    def _encourage(self) -> None:
        head = bytes(self._buffer[:MAX_HEAD]).lower()
        if b"\r\nexpect: 100-continue\r\n" in head and head.endswith(b"\r\n\r\n") and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def reply(self, status: int, headers: Iterable[tuple[str, str]], body: bytes, content_type: str) -> None:
        self._tell(status)
        if self._transport is not None:
            head = self._head(status, headers, content_type)
            self._transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._done()

    def begin(self, status: int, headers: Iterable[tuple[str, str]], content_type: str) -> None:
        self._tell(status)
        if self._transport is not None:
            head = self._head(status, headers, content_type)
            self._transport.write(head + b"transfer-encoding: chunked\r\n\r\n")

    def write(self, chunk: bytes) -> None:
        if self._transport is not None and chunk:
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def end(self) -> None:
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
        self._done()

    def cut(self) -> None:
        """Drop the connection; the peer sees a reset or an early end."""
        self.on_lost = None
        self._tell(0)
        if self._transport is not None:
            self._transport.abort()

    def _tell(self, status: int) -> None:
        # A stream that is cut has told its status before.
        if (on_status := self.on_status) is not None:
            self.on_status = None
            on_status(status)

    def abort(self) -> None:
        """Drop the connection from outside; a call that is still open is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _done(self) -> None:
        self.on_lost = None
        self._busy = False
        if self._transport is None:
            return
        if not self._keeps:
            self._transport.close()
        elif self._buffer:
            self._advance()

    def _head(self, status: int, headers: Iterable[tuple[str, str]], content_type: str) -> bytes:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}", _date(), f"content-type: {content_type}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if not self._keeps:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")


_date_of: tuple[int, str] = (0, "")


def _date() -> str:
    global _date_of
    second = int(time.time())
    if _date_of[0] != second:
        _date_of = (second, time.strftime("date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)))
    return _date_of[1]
