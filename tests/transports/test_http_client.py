"""Requests through http.client itself, urllib.request and urllib3, against a server that answers as it is told."""

from __future__ import annotations

import gc
import gzip
import http.client
import io
import json
import socket
import subprocess
import sys
import threading
import timeit
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import urllib3

import tidegate
from tests.transports.answering import ANSWER, BODY, EVENTS, Reply, Server, fine, only, refused_at_first, streaming
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Limit, Scenario, Simulator

WRITTEN = json.dumps(BODY).encode()
HEADERS = {"Authorization": "Bearer k", "Content-Type": "application/json"}

Ask = Callable[[str], tuple[int, bytes]]
"""Sends one question; returns the status and the body of its answer."""


def by_urllib(url: str, body: Any = WRITTEN) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, HEADERS), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def by_urllib3(url: str, body: Any = WRITTEN) -> tuple[int, bytes]:
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", url, body=body, headers=HEADERS)
        return answer.status, answer.data


def by_urllib3_stream(url: str, body: Any = WRITTEN) -> tuple[int, bytes]:
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", url, body=body, headers=HEADERS, preload_content=False)
        return answer.status, b"".join(answer.stream(16))


def by_http_client(url: str, body: Any = WRITTEN) -> tuple[int, bytes]:
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.netloc)) as connection:
        connection.request("POST", place.path, body, HEADERS)
        with connection.getresponse() as answer:
            return answer.status, answer.read()


ASKS = [by_urllib, by_urllib3, by_urllib3_stream, by_http_client]
ways = pytest.mark.parametrize("ask", ASKS)


@pytest.fixture
def registry(registry: RateLimitRegistry) -> Iterator[RateLimitRegistry]:
    tidegate.install(registry)
    try:
        yield registry
    finally:
        tidegate.uninstall()


def at_rest(registry: RateLimitRegistry) -> bool:
    snapshot = registry.snapshot()
    return (snapshot.in_flight, snapshot.waiting) == (0, 0)


@ways
def test_every_row_is_answered_at_its_providers_limit(ask: Ask, registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(limiters=(Limit(limit=1200, window=60.0),))) as provider:
        answers = [ask(f"{provider.openai_url}/chat/completions") for _ in range(40)]
        assert {status for status, _ in answers} == {200}
        assert provider.truth().total.refusals == 0
    assert (only(registry).answered, only(registry).quotas[0].limit, at_rest(registry)) == (40, 1200, True)


@ways
def test_a_refusal_is_waited_out(ask: Ask, registry: RateLimitRegistry) -> None:
    with Server(refused_at_first) as server:
        assert ask(server.chat) == (200, ANSWER)
        assert server.bodies == [WRITTEN, WRITTEN]
        assert server.headers[0] == server.headers[1]
    assert (only(registry).refused, only(registry).answered, only(registry).key.scope) == (1, 1, "m")


def pieces() -> Iterator[bytes]:
    yield WRITTEN[:5]
    yield WRITTEN[5:]


@pytest.mark.parametrize("make", [pieces, lambda: io.BytesIO(WRITTEN), lambda: bytearray(WRITTEN)])
@ways
def test_bodies_of_every_form_are_sent_again(
    ask: Callable[..., tuple[int, bytes]], make: Callable[[], Any], registry: RateLimitRegistry
) -> None:
    with Server(refused_at_first) as server:
        assert ask(server.chat, make()) == (200, ANSWER)
        assert server.bodies == [WRITTEN, WRITTEN]
    assert only(registry).key.scope == "m"


STATUSES = (200, 204, 301, 400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 529)


@pytest.mark.parametrize("status", STATUSES)
@ways
def test_a_request_is_sent_again_only_if_it_was_refused(ask: Ask, status: int, registry: RateLimitRegistry) -> None:
    """For a lone caller, a refusal for lack of capacity is the only answer that is not the program's."""

    def reply(number: int, path: str) -> Reply:
        return (status, {"retry-after": "0.01"}, b"" if status == 204 else b"{}") if number == 1 else (200, {}, ANSWER)

    refused = status in (429, 503, 529)
    with Server(reply) as server:
        assert ask(server.chat)[0] == (200 if refused else status)
        assert len(server.seen) == 1 + refused
    assert at_rest(registry)


class Broken:
    """A server that reads each request, and closes its connection after `answer`."""

    def __init__(self, answer: bytes) -> None:
        self.requests = 0
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.chat = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1/chat/completions"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rb") as file:
                if not file.readline().startswith(b"POST"):
                    return
                while (line := file.readline()).strip():
                    length = int(line.split()[1]) if line.lower().startswith(b"content-length") else 0
                    body_length = length or locals().get("body_length", 0)
                file.read(body_length)
                self.requests += 1
                connection.sendall(self._answer)

    def __enter__(self) -> Broken:
        return self

    def __exit__(self, *exc: object) -> None:
        with socket.create_connection(self._listening.getsockname()) as last:
            last.sendall(b"END\r\n")
        self._thread.join()
        self._listening.close()


CUT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
CUT_CHUNK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{"


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", CUT, CUT_CHUNK], ids=["none", "nonsense", "cut", "chunk"])
@ways
def test_a_request_whose_connection_broke_is_not_sent_again(
    ask: Ask, answer: bytes, registry: RateLimitRegistry
) -> None:
    broken = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
    with Broken(answer) as server:
        with pytest.raises(broken) as governed:
            ask(server.chat)
        assert server.requests == 1
        with tidegate.disabled(), pytest.raises(broken) as plain:
            ask(server.chat)
    assert type(governed.value) is type(plain.value)
    assert at_rest(registry)


@ways
def test_exceptions_of_connecting_are_those_without_tidegate(ask: Ask, registry: RateLimitRegistry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1/chat/completions"
    with pytest.raises((OSError, urllib3.exceptions.HTTPError)) as governed:
        ask(url)
    with tidegate.disabled(), pytest.raises((OSError, urllib3.exceptions.HTTPError)) as plain:
        ask(url)
    assert type(governed.value) is type(plain.value)
    assert at_rest(registry)


def chunked(number: int, path: str) -> Reply:
    return 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}, framed(EVENTS[:24], EVENTS[24:])


def framed(*parts: bytes) -> Iterable[bytes]:
    for part in (*parts, b""):
        yield b"%x;name=value\r\n%b\r\n" % (len(part), part)


def read_whole(answer: Any) -> bytes:
    return bytes(answer.read())


def read_parts(answer: Any) -> bytes:
    return b"".join(iter(lambda: answer.read(7), b""))


def read_lines(answer: Any) -> bytes:
    return b"".join(answer)


def read_one(answer: Any) -> bytes:
    return b"".join(iter(lambda: answer.read1(100), b""))


def read_into(answer: Any) -> bytes:
    buffer, found = bytearray(9), b""
    while number := answer.readinto(buffer):
        found += buffer[:number]
    return found


@pytest.mark.parametrize("reply", [streaming, chunked])
@pytest.mark.parametrize("read", [read_whole, read_parts, read_lines, read_one, read_into])
def test_a_stream_holds_its_permit_until_it_is_read(
    read: Callable[[Any], bytes], reply: Callable[[int, str], Reply], registry: RateLimitRegistry
) -> None:
    with Server(reply) as server:
        answer = urllib.request.urlopen(urllib.request.Request(server.chat, WRITTEN, HEADERS))
        assert only(registry).in_flight == 1
        assert read(answer) == EVENTS
        assert (only(registry).in_flight, only(registry).abandoned) == (0, 0)


@pytest.mark.parametrize("reply", [streaming, chunked])
def test_a_stream_of_urllib3_is_read_by_its_chunks(
    reply: Callable[[int, str], Reply], registry: RateLimitRegistry
) -> None:
    with Server(reply) as server, urllib3.PoolManager() as pool:
        answer = pool.request("POST", server.chat, body=WRITTEN, headers=HEADERS, preload_content=False)
        assert only(registry).in_flight == 1
        assert b"".join(answer.stream()) == EVENTS
        assert (only(registry).in_flight, only(registry).abandoned) == (0, 0)


def test_a_stream_that_is_left_gives_its_permit_back(registry: RateLimitRegistry) -> None:
    with Server(streaming) as server:
        answer = urllib.request.urlopen(urllib.request.Request(server.chat, WRITTEN, HEADERS))
        answer.close()
        assert only(registry).in_flight == 0
        answer = urllib.request.urlopen(urllib.request.Request(server.chat, WRITTEN, HEADERS))
        assert only(registry).in_flight == 1
        del answer
        gc.collect()
    assert (only(registry).in_flight, only(registry).answered) == (0, 2)


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\n'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_usage_of_a_chunked_stream_is_read_whatever_its_chunks(size: int, registry: RateLimitRegistry) -> None:
    parts = [USAGE[start : start + size] for start in range(0, len(USAGE), size)]
    reply = 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}, list(framed(*parts))
    with Server(lambda number, path: reply) as server:
        assert by_urllib3_stream(server.chat) == (200, USAGE)
    assert only(registry).tokens.input_tokens == 9


@pytest.mark.parametrize("encode", [gzip.compress, bytes])
def test_a_compressed_answer_is_judged_and_handed_out_as_it_came(
    encode: Callable[[bytes], bytes], registry: RateLimitRegistry
) -> None:
    kind = {"content-type": "application/json", "content-encoding": "gzip"}
    refusal = b'{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'
    answer = gzip.compress(ANSWER) if encode is gzip.compress else ANSWER
    headers = kind if encode is gzip.compress else {"content-type": "application/json"}
    with Server(lambda number, path: (200, headers, answer)) as server:
        assert by_urllib3(server.chat) == (200, ANSWER)
        assert by_urllib(server.chat) == (200, answer)
    assert only(registry).tokens.input_tokens == 18
    with Server(lambda number, path: (429, kind, gzip.compress(refusal))) as server:
        assert by_urllib3(server.chat) == (429, refusal)
        assert len(server.seen) == 1


def test_a_connection_serves_further_requests(registry: RateLimitRegistry) -> None:
    with Simulator(Scenario()) as provider, urllib3.PoolManager(maxsize=1) as pool:
        for _ in range(3):
            url = f"{provider.openai_url}/chat/completions"
            assert pool.request("POST", url, body=WRITTEN, headers=HEADERS).status == 200
            assert pool.request("GET", f"{provider.openai_url}/models").status in (200, 404)
        place = urlsplit(provider.openai_url)
        assert pool.connection_from_host(str(place.hostname), place.port).num_connections == 1


def test_a_request_that_failed_while_it_was_written_leaves_nothing_behind(registry: RateLimitRegistry) -> None:
    def failing() -> Iterator[bytes]:
        yield b"{"
        raise ZeroDivisionError

    with Server(fine) as server:
        place = urlsplit(server.chat)
        with closing(http.client.HTTPConnection(place.netloc)) as connection:
            with pytest.raises(ZeroDivisionError):
                connection.request("POST", place.path, failing(), HEADERS)
            connection.close()
            connection.request("GET", "/v1/models")
            assert connection.getresponse().status == 200
        assert server.seen == ["/v1/models"]


def test_a_proxy_and_its_tunnel_pass_and_are_found_again(registry: RateLimitRegistry) -> None:
    """The proxy answers by itself: a tunnel to a server without TLS, and a request with the whole URL."""
    with Server(refused_at_first) as server:
        place = urlsplit(server.chat)
        with urllib3.ProxyManager(f"http://{place.netloc}") as pool:
            answer = pool.request("POST", "http://api.openai.com/v1/chat/completions", body=WRITTEN, headers=HEADERS)
            assert (answer.status, len(server.seen)) == (200, 2)
    assert only(registry).key.base_url == "http://api.openai.com"


def test_a_tunnel_is_opened_anew_for_a_request_that_is_repeated(registry: RateLimitRegistry) -> None:
    with Server(refused_at_first) as server, Tunnels(urlsplit(server.chat).port or 0) as tunnels:
        with closing(http.client.HTTPConnection("127.0.0.1", tunnels.port)) as connection:
            connection.set_tunnel("api.openai.com", 80, {"Proxy-Authorization": "Basic eA=="})
            connection.request("POST", "/v1/chat/completions", WRITTEN, HEADERS)
            assert connection.getresponse().status == 200
        assert tunnels.seen == [b"CONNECT api.openai.com:80 HTTP/1.0", b"Proxy-Authorization: Basic eA=="] * 2
    assert (only(registry).key.base_url, only(registry).refused) == ("http://api.openai.com", 1)


class Tunnels:
    """A proxy that leads every tunnel to one port of this machine."""

    def __init__(self, port: int) -> None:
        self.seen: list[bytes] = []
        self._to = port
        self._pumps: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            head = client.recv(65536).split(b"\r\n")
            self.seen += [line for line in head if line.startswith((b"CONNECT", b"Proxy-"))]
            client.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            server = socket.create_connection(("127.0.0.1", self._to))
            pumps = [threading.Thread(target=_pump, args=pair) for pair in ((client, server), (server, client))]
            for pump in pumps:
                pump.start()
            self._pumps += pumps
            self._sockets += [client, server]

    def __enter__(self) -> Tunnels:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in (self._thread, *self._pumps):
            thread.join()
        for each in self._sockets:
            each.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def test_without_an_answer_before_the_deadline_there_is_a_429_of_its_own_kind() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1, max_wait=0.01))
    tidegate.install(registry)
    try:
        with Server(fine) as server:
            by_urllib(server.chat)
            assert registry.try_admit(only(registry).key)
            for ask in ASKS:
                status, body = ask(server.chat)
                assert (status, json.loads(body)["error"]["code"]) == (429, "queue_deadline")
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(urllib.request.Request(server.chat, WRITTEN, HEADERS))
            assert (raised.value.headers["x-tidegate"], raised.value.reason) == ("queue-deadline", "Too Many Requests")
            raised.value.close()
            assert len(server.seen) == 1
    finally:
        tidegate.uninstall()


def test_stacks_above_take_the_permit(registry: RateLimitRegistry) -> None:
    with Server(refused_at_first) as server:
        assert requests.post(server.chat, json=BODY).status_code == 200
        assert len(server.seen) == 2
    assert (only(registry).attempts, only(registry).refused) == (2, 1)


def test_other_requests_pass_through(registry: RateLimitRegistry) -> None:
    with Server(fine) as server:
        by_urllib(server.chat.replace("chat/completions", "files"))
        with tidegate.disabled():
            by_urllib(server.chat)
        urllib.request.urlopen(server.chat).close()
    assert registry.snapshot().keys == {}


class Scripted:
    """A socket of a mock."""

    def __init__(self) -> None:
        self.written = b""

    def sendall(self, data: bytes) -> None:
        self.written += data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")

    def close(self) -> None: ...


def test_a_mock_of_the_socket_answers_unchanged(registry: RateLimitRegistry) -> None:
    connection = http.client.HTTPConnection("api.openai.com")
    connection.sock = scripted = Scripted()  # type: ignore[assignment]
    connection.request("POST", "/v1/chat/completions", WRITTEN, HEADERS)
    assert connection.getresponse().status == 429
    assert scripted.written.endswith(WRITTEN)
    assert registry.snapshot().keys == {}


def test_a_file_given_to_send_itself_passes_through(registry: RateLimitRegistry) -> None:
    with Server(fine) as server:
        place = urlsplit(server.chat)
        with closing(http.client.HTTPConnection(place.netloc)) as connection:
            connection.putrequest("POST", place.path)
            connection.putheader("Content-Length", str(len(WRITTEN)))
            connection.endheaders()
            connection.send(io.BytesIO(WRITTEN))
            assert connection.getresponse().status == 200
        assert server.bodies == [WRITTEN]


def test_uninstall_restores(registry: RateLimitRegistry) -> None:
    assert hasattr(http.client.HTTPConnection.putrequest, "__wrapped__")
    tidegate.uninstall()
    assert not hasattr(http.client.HTTPConnection.putrequest, "__wrapped__")
    with Server(fine) as server:
        by_urllib(server.chat)
    assert registry.snapshot().keys == {}


def test_import_and_install_load_no_stack() -> None:
    code = (
        "import sys, tidegate; tidegate.install();"
        "print([name for name in ('http.client', 'urllib.request', 'urllib3', 'requests') if name in sys.modules]);"
        "import http.client; print(hasattr(http.client.HTTPConnection.putrequest, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\nTrue\n"


class Memory(http.client.HTTPConnection):
    """A connection without a network."""

    def __init__(self) -> None:
        super().__init__("unknown.example")
        self.sock = Scripted()  # type: ignore[assignment]


MAX_PASSING_SECONDS = 3e-6
"""Most seconds that a request takes longer which passes through. Source: issue 41."""


@pytest.mark.parametrize("disabled", [False, True])
def test_a_request_that_passes_costs_little(disabled: bool, registry: RateLimitRegistry) -> None:
    def ask(path: str) -> None:
        connection.request("POST", path, b"{}")
        connection.getresponse().read()

    connection = Memory()

    def seconds(path: str) -> float:
        return min(timeit.repeat(lambda: ask(path), number=50, repeat=40)) / 50

    path = "/v1/chat/completions" if disabled else "/v1/files"
    with tidegate.disabled() if disabled else closing(io.BytesIO()):
        governed = seconds(path)
    tidegate.uninstall()
    # Other programs share this machine's processors.
    assert governed - seconds(path) < 3 * MAX_PASSING_SECONDS
