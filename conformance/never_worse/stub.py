"""A small HTTP server for the programs, in a thread of this process, and the answers of each SDK's dialect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Headers = dict[str, str]


TLS = b"\x16"
"""First byte of a client that begins TLS. A server without TLS answers it in plain text, as nginx does."""


class Request(NamedTuple):
    """One request; `number` counts them from 1, `at` is in seconds since the first one."""

    method: str
    path: str
    headers: Headers
    body: bytes
    number: int
    at: float
    writer: asyncio.StreamWriter

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")


class Reply(NamedTuple):
    """An answer; a `body` that is no bytes is sent as JSON."""

    status: int = 200
    headers: Headers = {}  # noqa: RUF012
    body: Any = None


Handler = Callable[[Request], Awaitable[Reply | None]]
"""Behaviour of a server; None says that the handler has written its answer itself."""


class Stub:
    """Server on a loopback port, with a `handler`; `delay` seconds pass before it listens, None for never."""

    def __init__(self, handler: Handler, delay: float | None = 0.0) -> None:
        self.requests = 0
        self.in_flight = 0
        self._handler = handler
        self._first = 0.0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._delay = delay
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stub:
        self._thread.start()
        if self._delay == 0.0:
            self._ready.wait(10.0)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    @property
    def url(self) -> str:
        """Return the address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(self._listen())
        self._loop.run_forever()
        # Connections that are still open end with their tasks.
        pending = asyncio.all_tasks(self._loop)
        for each in pending:
            each.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        del task
        self._loop.close()

    async def _listen(self) -> None:
        if self._delay is None:
            return
        await asyncio.sleep(self._delay)
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self._ready.set()
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await self._read(reader, writer)
                self.in_flight += 1
                try:
                    reply = await self._handler(request)
                finally:
                    self.in_flight -= 1
                if reply is None:
                    return
                await self._write(writer, reply)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the row has ended
        finally:
            with contextlib.suppress(Exception):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
        head = await reader.readexactly(1)
        if head == TLS:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            raise ConnectionError
        head += await reader.readuntil(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ", 2)
        pairs = (each.partition(":") for each in rest if each)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await reader.readline()).strip() or b"0", 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests += 1
        self._first = self._first or time.monotonic()
        return Request(method, path, headers, body, self.requests, time.monotonic() - self._first, writer)

    async def _write(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"content-type": "application/json", **reply.headers, "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode() + body)
        await writer.drain()


def answer_to(request: Request) -> Any:
    """Return a good answer in the dialect that the path names."""
    path = request.path.partition("?")[0]
    if path.endswith(("/invoke", ":rawPredict")):
        return claude()
    if "generateContent" in path:
        content = {"role": "model", "parts": [{"text": "ok"}]}
        usage = {"promptTokenCount": 5, "candidatesTokenCount": 5, "totalTokenCount": 10}
        return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
    for ending, make in ANSWERS.items():
        if path.endswith(ending):
            return make()
    return chat()


def chat() -> Any:
    """Return an answer of OpenAI's chat completions."""
    message = {"role": "assistant", "content": "ok"}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def claude() -> Any:
    """Return an answer of Anthropic's messages."""
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "content": [{"type": "text", "text": "ok"}],
        "usage": {"input_tokens": 5, "output_tokens": 5},
    }


def _response() -> Any:
    content = [{"type": "output_text", "text": "ok", "annotations": []}]
    output = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _converse() -> Any:
    usage = {"inputTokens": 5, "outputTokens": 5, "totalTokens": 10}
    message = {"role": "assistant", "content": [{"text": "ok"}]}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}


def _cohere() -> Any:
    message = {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}
    return {"id": "c", "finish_reason": "COMPLETE", "message": message, "usage": {}}


def _ollama() -> Any:
    message = {"role": "assistant", "content": "ok"}
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": True, "eval_count": 5}


def _embeddings() -> Any:
    row = {"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}
    return {"object": "list", "model": "m", "data": [row], "usage": {"prompt_tokens": 5, "total_tokens": 5}}


def _file() -> Any:
    return {
        "id": "file-1",
        "object": "file",
        "bytes": 1,
        "created_at": 1,
        "filename": "a",
        "purpose": "batch",
        "status": "processed",
    }


def _prediction() -> Any:
    return {
        "id": "p",
        "model": "m",
        "version": "v",
        "status": "succeeded",
        "input": {},
        "output": "ok",
        "created_at": "2026-01-01T00:00:00Z",
        "urls": {},
    }


ANSWERS: dict[str, Callable[[], Any]] = {
    "/v1/messages": claude,
    "/responses": _response,
    "/converse": _converse,
    "/v2/chat": _cohere,
    "/api/chat": _ollama,
    "/embeddings": _embeddings,
    "/files": _file,
    "/predictions": _prediction,
    "/audio/transcriptions": lambda: {"text": "hello"},
}
"""Good answers by the end of the path; chat completions are the default."""
