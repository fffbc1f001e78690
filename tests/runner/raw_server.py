"""An HTTP server on loopback that answers every request with the bytes that a test gives it, whole or broken.

Each connection is closed after one answer, so that no client keeps one open.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: the connection is reset when it is closed."""


class Reply(NamedTuple):
    """One answer: its bytes, and whether the connection is reset after them."""

    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"
    claimed: int = 0
    reset: bool = False

    def raw(self) -> bytes:
        """Return the bytes of the answer; its content-length is off by `claimed`."""
        head = (
            f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.kind}\r\ncontent-length: {len(self.body) + self.claimed}"
        )
        return f"{head}\r\nconnection: close\r\n\r\n".encode() + self.body


class RawServer:
    """The server; `reply(n)` gives the answer to the n-th request, counted from 1. `count` is how many came."""

    def __init__(self, reply: Callable[[int], Reply]) -> None:
        self.count = 0
        self._reply = reply
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            length = 0
            while (line := lines.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            lines.read(length)
            with self._lock:
                self.count += 1
                reply = self._reply(self.count)
            connection.sendall(reply.raw())
            if reply.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
