"""The life of one admitted call, from its admission to its last byte.

A call was decided when its request had been read; its answer is put off by timers, not by tasks, so that a waiting call
costs one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidegate.testing.accounts import Accounts, Admission
from tidegate.testing.dialects import Headers
from tidegate.testing.replies import Reply, Stream, dumps
from tidegate.testing.wire import Connection

JSON = "application/json"


class LiveCall:
    """An admitted call until its end: answered, broken by its fault, or abandoned by its client."""

    __slots__ = ("_accounts", "_admission", "_at", "_connection", "_headers", "_reply", "_stream", "_timer")

    def __init__(
        self, accounts: Accounts, connection: Connection, admission: Admission, reply: Reply, headers: Headers
    ) -> None:
        self._accounts = accounts
        self._connection = connection
        self._admission = admission
        self._reply = reply
        self._headers = headers
        self._timer: asyncio.TimerHandle | None = None
        self._stream: Stream | None = None
        self._at = 0
        connection.on_lost = self._lost

    def whole(self, body: bytes) -> None:
        """Answer with `body` after the latency and the pace of all tokens."""
        delay = self._admission.latency + self._admission.token_pace * self._reply.output_tokens
        fault = self._admission.fault
        if fault is None:
            self._later(delay, self._finish_whole, body)
        else:
            self._later(delay, self._break_whole)

    def _finish_whole(self, body: bytes) -> None:
        self._end("answered", self._reply.output_tokens)
        self._connection.reply(200, self._headers, body, JSON)

    def _break_whole(self) -> None:
        fault = self._admission.fault
        self._end("broken", 0)
        if fault is None or fault.kind == "drop":
            self._connection.cut()
        else:
            self._connection.reply(
                fault.status, self._headers, dumps(error_body("Injected error", "server_error")), JSON
            )

    def stream(self, stream: Stream) -> None:
        """Stream after the latency, each piece at its share of the tokens' pace."""
        self._stream = stream
        fault = self._admission.fault
        if fault is not None and not fault.kind.startswith("stream"):
            self._later(self._admission.latency, self._break_whole)
        else:
            self._later(self._admission.latency, self._begin)

    def _begin(self) -> None:
        assert self._stream is not None
        self._connection.begin(200, self._headers, self._stream.content_type)
        if self._admission.token_pace or self._admission.fault:
            self._connection.write(self._stream.head)
            self._next_piece()
            return
        stream = self._stream
        self._end("answered", self._reply.output_tokens)
        self._connection.write(stream.head + b"".join(stream.pieces) + stream.tail)
        self._connection.end()

    def _next_piece(self) -> None:
        assert self._stream is not None
        pieces, fault = self._stream.pieces, self._admission.fault
        if fault is not None and self._at >= len(pieces) // 2:
            self._break_stream(cut=fault.kind == "stream-drop")
        elif self._at < len(pieces):
            pace = self._admission.token_pace * self._reply.output_tokens / len(pieces)
            self._later(pace, self._write_piece)
        else:
            self._end("answered", self._reply.output_tokens)
            self._connection.write(self._stream.tail)
            self._connection.end()

    def _write_piece(self) -> None:
        assert self._stream is not None
        self._connection.write(self._stream.pieces[self._at])
        self._at += 1
        self._next_piece()

    def _break_stream(self, *, cut: bool) -> None:
        assert self._stream is not None
        self._end("broken", self._produced)
        if cut:
            asyncio.get_running_loop().call_soon(self._connection.cut)
            return
        self._connection.write(self._stream.broken)
        self._connection.end()

    @property
    def _produced(self) -> int:
        pieces = len(self._stream.pieces) if self._stream else 0
        return self._reply.output_tokens * self._at // pieces if pieces else 0

    def _later(self, delay: float, act: Callable[..., None], *arguments: object) -> None:
        if delay > 0:
            self._timer = asyncio.get_running_loop().call_later(delay, act, *arguments)
        else:
            act(*arguments)

    def _end(self, how: str, produced: int) -> None:
        self._connection.on_lost = None
        self._accounts.end(self._admission, how, produced)

    def _lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._accounts.end(self._admission, "abandoned", self._produced)


def error_body(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error in a body that both OpenAI's and Anthropic's SDK read."""
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": None}}
