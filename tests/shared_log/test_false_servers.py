"""Servers whose answers are none: they announce or send more than any log has. Sharing pauses, in bounded memory."""

from __future__ import annotations

import os
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

import pytest

from tests.shared_log.store_members import StorePeer, until
from tidegate.shared_log.postgres_log import _limited, postgres_carrier
from tidegate.shared_log.redis_log import BoundedSocket, redis_carrier
from tidegate.shared_log.store_carrier import GONE_AFTER_SECONDS, StoreCarrier

MEMORY_BYTES = 64 * 1024 * 1024
"""Bytes that a false answer may take. Derived: eight times the largest answer, and 800 MB less than 1e8 elements."""

SECURED = (struct.pack("!i", 80877103), struct.pack("!i", 80877104))
"""Codes of the requests for TLS and for GSSAPI, which come before a connection (PostgreSQL 17, 53.7)."""

FLOOD = b"x" * 65536


@contextmanager
def serving(answer: Callable[[bytes], Iterator[bytes]]) -> Iterator[int]:
    """Serve what `answer` gives to each part of a request, on the port that the block gets."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(client,), daemon=True).start()

    def talk(client: socket.socket) -> None:
        with client, suppress(OSError):
            while request := client.recv(65536):
                for part in answer(request):
                    client.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def absence(carrier: StoreCarrier) -> str:
    """Return the error of a server that becomes away."""
    peer = StorePeer(carrier, os.urandom(8))
    until(lambda: carrier.error and peer.last is not None and peer.last.away, "the absence", peer)
    carrier.close()
    return carrier.error


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"*100000000\r\n", "announces 100,000 elements"),
        (b"*2\r\n$1\r\na\r\n*100000000\r\n", "announces 100,000 elements"),
        (b"~100000000\r\n", "announces 100,000 elements"),
        (b">100000000\r\n", "announces 100,000 elements"),
        (b"$4000000000\r\n", "larger than"),
        (b"+", "larger than"),
    ],
)
def test_an_answer_of_redis_that_is_too_large_is_an_absence_of_the_server(answer: bytes, error: str) -> None:
    def answers(request: bytes) -> Iterator[bytes]:
        return chain([answer], () if "elements" in error else repeat(FLOOD))

    tracemalloc.start()
    try:
        with serving(answers) as port:
            assert error in absence(redis_carrier(f"redis://127.0.0.1:{port}"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES


class Parts:
    """A socket that gives these parts."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = iter(parts)
        self.fileno = self.sendall

    def recv(self, size: int, flags: int = 0) -> bytes:
        return next(self._parts)

    def recv_into(self, buffer: bytearray) -> int:
        part = next(self._parts)
        buffer[: len(part)] = part
        return len(part)

    def sendall(self, data: bytes) -> None:
        """Take it."""


@pytest.mark.parametrize("at", range(1, 10))
def test_a_large_collection_is_seen_in_two_parts(at: int) -> None:
    answer = b"$1\r\na\r\n*100000\r\n"
    bounded = BoundedSocket(Parts(answer[:-at], answer[-at:]))
    bounded.sendall(b"PING")
    with pytest.raises(ValueError, match="announces"):
        _ = [bounded.recv(1), bounded.recv(1)]


def test_bounds_begin_anew_with_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    bounded = BoundedSocket(Parts(b"+", *[b"a"] * 4))
    for _ in range(3):
        bounded.sendall(b"PING")
        now += GONE_AFTER_SECONDS
        bounded.recv(1)
    now += 1.0
    with pytest.raises(ValueError, match="takes longer"):
        bounded.recv(1)


def test_an_idle_connection_that_the_server_has_closed_gives_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    bounded = BoundedSocket(Parts(b"+", b"", b"", b"", b""))
    assert bounded.recv(1, socket.MSG_PEEK) == b"+"
    assert bounded.recv(1) == b""
    bounded.sendall(b"PING")
    now += 2 * GONE_AFTER_SECONDS
    assert (bounded.recv(1, socket.MSG_PEEK), bounded.recv(1), bounded.recv_into(bytearray(9))) == (b"", b"", 0)


def test_a_look_ahead_is_not_counted_as_read() -> None:
    bounded = BoundedSocket(Parts(*[b"\r\n*100000"] * 2))
    bounded.sendall(b"PING")
    assert bounded.recv(9, socket.MSG_PEEK)
    with pytest.raises(ValueError, match="announces"):
        bounded.recv(9)


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


def binary_arrays(columns: int) -> bytes:
    """Return a result with arrays in the binary format, which announce 100 elements and have none."""
    head = b"array\0" + struct.pack("!ihihih", 0, 0, 1016, -1, -1, 1)
    array = struct.pack("!6i", 20, 1, 0, 20, 100, 1)
    count = struct.pack("!h", columns)
    return b"".join(
        message(*each)
        for each in (
            (b"1", b""),
            (b"2", b""),
            (b"T", count + head * columns),
            (b"D", count + array * columns),
            (b"C", b"SELECT 1\0"),
            (b"Z", b"I"),
        )
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (binary_arrays(4), "not in the format"),
        (b"D\x7f\xff\xff\xff", "cannot allocate memory"),
        (b"D\x3f\xff\xff\xff", "no answer within"),
    ],
)
def test_an_answer_of_postgresql_with_false_lengths_is_an_absence_of_the_server(answer: bytes, error: str) -> None:
    def answers(request: bytes) -> Iterator[bytes]:
        if request[4:8] in SECURED:
            yield b"N"
        elif not request[0]:
            yield message(b"R", bytes(4)) + message(b"Z", b"I")
        else:
            yield answer

    with serving(answers) as port:
        assert error in absence(postgres_carrier(f"postgresql://user@127.0.0.1:{port}/name"))


def test_an_answer_of_postgresql_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def client() -> Iterator[str]:
        while True:
            yield "more"

    running = _limited(client())
    assert next(running) == "more"
    for now in range(int(GONE_AFTER_SECONDS)):  # noqa: B007
        assert running.send(True) == "more"
    now = GONE_AFTER_SECONDS
    with pytest.raises(TimeoutError):
        running.send(True)
