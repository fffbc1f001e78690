"""Requests and answers pass the gateway unchanged, piece by piece, and refusals of capacity do not."""

from __future__ import annotations

import concurrent.futures
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.gateway.conftest import LIMIT, Gateway
from tests.gateway.upstream import PATIENCE, STREAM_HEAD, Received, Upstream, answer
from tidegate.launch.runs import live_runs
from tidegate.launch.totals import Totals
from tidegate.testing import SimulatorProcess

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
HOP = "x-tidegate-hop"

OPEN: list[http.client.HTTPConnection | http.client.HTTPResponse] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def asked(
    gateway: Gateway, url: str, method: str = "POST", body: Any = BODY, headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    """The answer to a request for `url` through the gateway, by a client without an SDK; its body is not read yet."""
    parts = urlsplit(gateway.to(url.partition("?")[0]) + "".join(url.partition("?")[1:]))
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    OPEN.append(connection)
    connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, headers or {})
    response = connection.getresponse()
    OPEN.append(response)
    return response


def totals(gateway: Gateway) -> Totals:
    (run,) = live_runs(str(gateway.folder))
    return run.totals


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true; waits for it."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_request_arrives_as_it_was_sent(gateway: Gateway, upstream: Upstream) -> None:
    headers = {
        "authorization": "Bearer sk-1",
        "accept-encoding": "br",
        "content-type": "application/json",
        "x-of-mine": "a, b",
        "user-agent": "mine/1",
        "connection": "close, x-of-this-connection",
        "x-of-this-connection": "1",
        "te": "trailers",
    }
    response = asked(gateway, f"{upstream.url}/v1/m%2Fo%20d/embeddings?key=k%26&b=%C3%A4&b", headers=headers)
    assert (response.status, response.read()) == (200, b"{}")
    (received,) = upstream.received
    assert received.line == "POST /v1/m%2Fo%20d/embeddings?key=k%26&b=%C3%A4&b HTTP/1.1"
    assert received.body == BODY
    kept = {name: value for name, value in headers.items() if name not in ("connection", "x-of-this-connection", "te")}
    got = dict(received.headers)
    assert got.pop(HOP)
    assert got == {"host": upstream.address, "content-length": str(len(BODY)), **kept}


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PATCH", "PUT", "OPTIONS"])
def test_other_methods_pass(gateway: Gateway, upstream: Upstream, method: str) -> None:
    body = BODY if method in ("PATCH", "PUT") else None
    response = asked(gateway, f"{upstream.url}/v1/files/1", method, body)
    assert (response.status, response.read()) == (200, b"" if method == "HEAD" else b"{}")
    (received,) = upstream.received
    assert (received.line, received.body) == (f"{method} /v1/files/1 HTTP/1.1", body or b"")


def test_an_answer_arrives_as_it_was_sent(gateway: Gateway, upstream: Upstream) -> None:
    body = gzip.compress(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}')
    headers = ["content-type: application/json", "content-encoding: gzip", "set-cookie: a=1", "set-cookie: b=2"]
    sent = answer(*headers, "x-empty:", status="207 Of Its Own", body=body)
    upstream.answers[CHAT] = lambda request: request.send(sent)
    response = asked(gateway, upstream.url + CHAT)
    assert response.status == 207
    assert response.read() == body
    expected = [tuple(each.split(": ")) for each in headers]
    got = [(name.lower(), value) for name, value in response.getheaders()]
    assert got == [*expected, ("x-empty", ""), ("content-length", str(len(body)))]


@pytest.mark.parametrize(("path", "status", "shown"), [(CHAT, "200 OK", "1"), (CHAT, "400 Bad Request", "0"),
                                                       ("/v1/models", "200 OK", "0")])  # fmt: skip
def test_a_good_answer_does_not_look_like_a_refusal(
    gateway: Gateway, upstream: Upstream, path: str, status: str, shown: str
) -> None:
    headers = ("x-ratelimit-remaining-requests: 0", "x-ratelimit-remaining-tokens: 10")
    upstream.answers[path] = lambda request: request.send(answer(*headers, status=status, body=b"{}"))
    response = asked(gateway, upstream.url + path, headers={"authorization": "Bearer sk-spent"})
    assert response.getheader("x-ratelimit-remaining-requests") == shown
    assert response.getheader("x-ratelimit-remaining-tokens") == "10"


def test_a_stream_arrives_piece_by_piece(gateway: Gateway, upstream: Upstream) -> None:
    seen = threading.Event()

    def reply(request: Received) -> None:
        request.send(STREAM_HEAD + b"9\r\ndata: 1\n\n\r\n")
        assert seen.wait(PATIENCE)
        request.send(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    upstream.answers[CHAT] = reply
    response = asked(gateway, upstream.url + CHAT)
    assert response.read(9) == b"data: 1\n\n"
    seen.set()
    assert response.read() == b"data: 2\n\n"


def test_an_answer_that_breaks_off_breaks_off(gateway: Gateway, upstream: Upstream) -> None:
    def reply(request: Received) -> None:
        request.send(STREAM_HEAD + b"9\r\ndata: 1\n\n\r\n")

    upstream.answers[CHAT] = reply
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        asked(gateway, upstream.url + CHAT).read()


def test_a_client_that_leaves_ends_its_call(gateway: Gateway, upstream: Upstream) -> None:
    closed, begun = threading.Event(), threading.Event()

    def reply(request: Received) -> None:
        begun.set()
        if request.is_closed_by_client():
            closed.set()

    upstream.answers[CHAT] = reply
    parts = urlsplit(gateway.to(upstream.url + CHAT))
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    connection.request("POST", parts.path, BODY, {"authorization": "Bearer sk-leaving"})
    assert begun.wait(PATIENCE)
    connection.close()
    assert closed.wait(PATIENCE)
    assert eventually(lambda: sum(key.in_flight for key in totals(gateway).keys.values()) == 0)
    assert sum(key.abandoned for key in totals(gateway).keys.values()) >= 1


def test_a_client_that_leaves_the_queue_frees_its_place(gateway: Gateway, upstream: Upstream) -> None:
    def waiting() -> int:
        # The folder of counts comes with the first key.
        return sum(key.waiting for run in live_runs(str(gateway.folder)) for key in run.totals.keys.values())

    upstream.answers[CHAT] = lambda request: request.send(answer("retry-after: 60", body=b"{}", status="429 Busy"))
    parts = urlsplit(gateway.to(upstream.url + CHAT))
    connections = [http.client.HTTPConnection(parts.netloc, timeout=PATIENCE) for _ in range(3)]
    try:
        for connection in connections:
            connection.request("POST", parts.path, BODY, {"authorization": "Bearer sk-queue"})
        assert eventually(lambda: waiting() == 3)
        connections.pop().close()
        assert eventually(lambda: waiting() == 2)
    finally:
        for connection in connections:
            connection.close()


def test_refusals_do_not_reach_the_client(gateway: Gateway, provider: SimulatorProcess) -> None:
    calls = 3 * LIMIT

    def ask(_: int) -> int:
        response = asked(gateway, provider.url + CHAT, headers={"authorization": "Bearer sk-many"})
        response.read()
        return response.status

    with concurrent.futures.ThreadPoolExecutor(calls) as threads:
        assert list(threads.map(ask, range(calls))) == [200] * calls


def test_paths_that_are_no_inference_pass_ungoverned(gateway: Gateway, upstream: Upstream) -> None:
    before = totals(gateway).calls if list(live_runs(str(gateway.folder))) else 0
    assert asked(gateway, f"{upstream.url}/v1/models", "GET", None).read() == b"{}"
    assert asked(gateway, f"{upstream.url}/v1/vector_stores").read() == b"{}"
    assert asked(gateway, f"{upstream.url}/v1/embeddings", headers={"authorization": "Bearer sk-2"}).read() == b"{}"
    assert totals(gateway).calls == before + 1


def test_a_server_that_is_down_is_named(gateway: Gateway, silent: str) -> None:
    for path in (CHAT, "/v1/models"):
        response = asked(gateway, silent + path)
        assert response.status == 502
        assert "the connection to 127.0.0.1 failed" in json.loads(response.read())["error"]["message"]


def test_a_request_that_comes_back_is_refused(gateway: Gateway, upstream: Upstream) -> None:
    asked(gateway, upstream.url + CHAT).read()
    mark = dict(upstream.received[0].headers)[HOP]
    response = asked(gateway, upstream.url + CHAT, headers={HOP: mark})
    assert response.status == 508
    assert len(upstream.received) == 1


def test_a_request_of_another_gateway_is_governed_there(gateway: Gateway, upstream: Upstream) -> None:
    asked(gateway, upstream.url + CHAT).read()
    before = totals(gateway).calls
    asked(gateway, upstream.url + CHAT, headers={HOP: "another"}).read()
    assert totals(gateway).calls == before
    assert dict(upstream.received[1].headers)[HOP].startswith("another,")


def test_a_long_body_passes_in_pieces(gateway: Gateway, upstream: Upstream) -> None:
    body = b"x" * ((33 << 20) + 1)
    for given in (body, iter([body[: 1 << 20], body[1 << 20 :]])):
        response = asked(gateway, upstream.url + CHAT, body=given)
        assert response.status == 200
        response.read()
        assert upstream.received.pop().body == body


def test_an_early_path_of_the_vercel_sdk_gets_its_version() -> None:
    from tidegate.server.gateway.proxy import Upstreams
    from tidegate.transports.gateway_url import real_server

    server = real_server("/api.anthropic.com/messages")
    assert server is not None
    assert Upstreams().allows(server)
    assert Upstreams.path_at(server) == "/v1/messages"
