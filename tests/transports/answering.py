"""A server that answers each request as it is told, and what the tests of several stacks ask and expect of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

from tidegate.admission.registry import RateLimitRegistry

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}'
EVENTS = b'data: {"choices": []}\n\n' * 3 + b"data: [DONE]\n\n"

Reply = tuple[int, dict[str, str], bytes | Iterable[bytes]]
"""Status, headers and body; a body in pieces ends when the server closes the connection."""


class Server:
    """Answers each request with what `reply` makes of its number and path, and keeps what it was asked."""

    def __init__(self, reply: Callable[[int, str], Reply]) -> None:
        self.seen: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Answering(BaseHTTPRequestHandler):
            wbufsize = -1
            """Head and body are sent as one."""

            def do_POST(self) -> None:
                length = self.headers.get("content-length", "0" if self.command == "GET" else None)
                outer.bodies.append(b"".join(chunks(self.rfile)) if length is None else self.rfile.read(int(length)))
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.seen.append(self.path)
                status, headers, body = reply(len(outer.seen), self.path)
                self.send_response(status)
                own = {"content-length": str(len(body))} if isinstance(body, bytes) else {}
                for name, value in {**own, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in (body,) if isinstance(body, bytes) else body:
                    self.wfile.write(piece)
                    self.wfile.flush()

            do_GET = do_POST

            def log_message(self, *facts: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.chat = f"http://127.0.0.1:{self._server.server_port}/v1/chat/completions"

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def chunks(body: IO[bytes]) -> Iterator[bytes]:
    while size := int(body.readline(), 16):
        yield body.read(size)
        body.readline()
    body.readline()


def only(registry: RateLimitRegistry) -> Any:
    (key,) = registry.snapshot().keys.values()
    return key


def fine(number: int, path: str) -> Reply:
    return 200, {}, ANSWER


def streaming(number: int, path: str) -> Reply:
    return 200, {"content-type": "text/event-stream"}, EVENTS


def refused_at_first(number: int, path: str) -> Reply:
    return (429, {"retry-after": "0.05"}, b"{}") if number == 1 else (200, {}, ANSWER)
