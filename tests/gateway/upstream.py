"""A server that records each request as it arrives, and answers with the bytes that a test has written.

It closes each connection after one answer, so answers say so: else a client may send its next request into the close.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PATIENCE = 60.0
"""Seconds after which a test that waits fails; no test is near it."""


@dataclass
class Received:
    """One request: its first line, its headers as sent, its body, and the connection to answer on."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: socket.socket

    @property
    def path(self) -> str:
        return self.line.split()[1]

    def send(self, text: bytes) -> None:
        self.connection.sendall(text)

    def is_closed_by_client(self) -> bool:
        self.connection.settimeout(PATIENCE)
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True


def answer(*headers: str, status: str = "200 OK", body: bytes = b"") -> bytes:
    head = [f"HTTP/1.1 {status}", *headers, "connection: close", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Upstream:
    """The running server; `answers` maps a path to what answers there, all else gets an empty answer."""

    url: str = ""
    answers: dict[str, Callable[[Received], None]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


def read_request(connection: socket.socket) -> Received | None:
    file = connection.makefile("rb")
    line = file.readline().decode("latin-1").rstrip()
    if not line:
        return None
    headers = []
    while text := file.readline().decode("latin-1").rstrip():
        name, _, value = text.partition(": ")
        headers.append((name, value))
    given = {name.lower(): value for name, value in headers}
    if "content-length" in given:
        body = file.read(int(given["content-length"]))
    else:
        body = b"".join(chunks(file.readline, file.read)) if "transfer-encoding" in given else b""
    return Received(line, headers, body, connection)


def chunks(readline: Callable[[], bytes], read: Callable[[int], bytes]) -> Iterator[bytes]:
    while size := int(readline(), 16):
        yield read(size)
        readline()
    readline()


def serve(upstream: Upstream) -> socketserver.ThreadingTCPServer:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            request = read_request(self.request)
            if request is not None:
                upstream.received.append(request)
                reply = upstream.answers.get(request.path.partition("?")[0])
                if reply is None:
                    request.send(answer("content-type: application/json", body=b"{}"))
                else:
                    reply(request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    upstream.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
