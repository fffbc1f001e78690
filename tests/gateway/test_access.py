"""The gateway answers only requests that have its token, name it in `Host`, and come from no page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from starlette.testclient import TestClient

from tests.gateway.asgi import HOST, TOKEN, asked
from tidegate.server.gateway.proxy import GatewayProxy, Upstreams
from tidegate.transports.gateway_url import real_server

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
PATHS = (
    "/api.openai.com/v1/chat/completions",
    "/api.anthropic.com/v1/messages",
    "/http/llm.example:8000/v1/models",
    "/",
)
REQUESTS = [*((path, "POST") for path in PATHS), *((PATHS[0], method) for method in METHODS if method != "POST")]
FORGED = {
    "rebound name": ({"host": "evil.example"}, 421),
    "rebound name with our port": ({"host": "evil.example:4790"}, 421),
    "our name with a suffix": ({"host": f"{HOST}.evil.example"}, 421),
    "another port": ({"host": "127.0.0.1:80"}, 421),
    "no host": ({"host": ""}, 421),
    "another origin": ({"origin": "https://evil.example"}, 403),
    "our own origin, which has no page": ({"origin": f"http://{HOST}"}, 403),
    "no origin of a sandbox": ({"origin": "null"}, 403),
    "cross-site": ({"sec-fetch-site": "cross-site"}, 403),
    "same site, another port": ({"sec-fetch-site": "same-site"}, 403),
}
NO_TOKEN = ("", "/", "/another-token", f"/{TOKEN}x", f"/{TOKEN[:-1]}", f"/{TOKEN.upper()}", f"/x/{TOKEN}", f"//{TOKEN}")
OUTSIDE = (
    "/evil.example/v1/chat/completions",
    "/http/api.openai.com/v1/chat/completions",
    "/api.openai.com:8443/v1/chat/completions",
    "/api.openai.com.evil.example/v1/chat/completions",
    "/user@api.openai.com/v1",
    "/api.openai.com@evil.example/v1",
    "/evil.example%2f@api.openai.com/v1",
    "/169.254.169.254/latest/meta-data",
    "/http/llm.example/v1",
    "/llm.example:8000/v1",
    "/%61pi.openai.com/v1",
    "/..%2fevil.example/",
    "/http/of-hosts.example/v1",
    "/of-hosts.example:80/v1",
)


class Sent(list[httpx.Request]):
    """The requests that left the gateway."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.append(request)
        return httpx.Response(200, json={"answer": 42}, request=request)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def client(sent: Sent) -> Iterator[TestClient]:
    proxy = GatewayProxy(
        hosts=(HOST, "localhost:4790"),
        token=TOKEN,
        upstreams=Upstreams(["http://llm.example:8000/v1"], ["of-hosts.example"]),
        client=httpx.AsyncClient(transport=httpx.MockTransport(sent)),
    )
    client = TestClient(proxy, base_url=f"http://{HOST}")
    yield client
    client.close()


@pytest.mark.parametrize(("path", "method"), REQUESTS)
def test_forged_requests_are_refused(client: TestClient, sent: Sent, path: str, method: str) -> None:
    for name, (headers, status) in FORGED.items():
        answer = client.request(method, f"/{TOKEN}{path}", headers={"host": HOST, **headers})
        assert answer.status_code == status, name
        assert "refused" in answer.text or method == "HEAD", name
    two = [("host", HOST), ("host", "evil.example")]
    assert client.request(method, f"/{TOKEN}{path}", headers=two).status_code == 421
    assert sent == []


@pytest.mark.parametrize(("path", "method"), REQUESTS)
def test_requests_without_the_token_are_refused(client: TestClient, sent: Sent, path: str, method: str) -> None:
    for prefix in NO_TOKEN:
        answer = client.request(method, f"http://{HOST}{prefix}{path}", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 403, prefix
    assert sent == []


@pytest.mark.parametrize("path", OUTSIDE)
def test_other_servers_are_not_reached(client: TestClient, sent: Sent, path: str) -> None:
    assert client.post(f"/{TOKEN}{path}").status_code in (403, 404)
    assert sent == []


@pytest.mark.parametrize(
    ("path", "upstream", "host"),
    [
        ("/http/127.0.0.1:8000/v1/models", "http://127.0.0.1:8000", None),
        ("/llm.example:8443/v1/models", "https://llm.example:8443", None),
        ("/http/of-hosts.example/v1/models", "http://of-hosts.example", None),
        ("/llm.example/v1/models", "https://llm.example", "llm.example"),
        ("/llm.example:443/v1/models", "https://llm.example", "llm.example"),
    ],
)
def test_what_a_refusal_advises_works(client: TestClient, path: str, upstream: str, host: str | None) -> None:
    refused = client.get(f"/{TOKEN}{path}").json()["error"]["message"]
    server = real_server(path)
    assert server is not None
    assert f"`tidegate gateway --upstream {upstream}`" in refused
    assert Upstreams([upstream]).allows(server)
    assert ("TIDEGATE_HOSTS" in refused) == (host is not None)
    if host is not None:
        assert f"TIDEGATE_HOSTS={host};" in refused
        assert Upstreams([], [host]).allows(server)


@pytest.mark.parametrize("path", ["", "/", "/http", "/http/"])
def test_a_path_without_a_server_is_refused(client: TestClient, sent: Sent, path: str) -> None:
    assert client.post(f"/{TOKEN}{path}").status_code in (403, 404)
    assert sent == []


@pytest.mark.parametrize(
    "path",
    ["/api.openai.com/v1/" + "a" * 100_000, "/xn--a.openai.azure.com/openai/x", "/999.1.1.1/v1", "/my.host/v1#/../x"],
)
def test_a_url_that_no_client_sends_is_refused_with_the_reason(path: str) -> None:
    sent = Sent()
    proxy = GatewayProxy(
        hosts=(HOST,),
        token=TOKEN,
        upstreams=Upstreams(["https://999.1.1.1", "https://my.host"]),
        client=httpx.AsyncClient(transport=httpx.MockTransport(sent)),
    )
    status, _, body = asyncio.run(asked(proxy, path.encode()))
    assert status == 400
    assert "URL is invalid" in json.loads(body)["error"]["message"]
    assert sent == []


@pytest.mark.parametrize("first", ["content-length", "transfer-encoding"])
def test_a_body_with_two_lengths_is_refused(client: TestClient, sent: Sent, first: str) -> None:
    headers = {"content-length": "5", "transfer-encoding": "chunked"}
    order = sorted(headers.items(), key=lambda each: each[0] != first)
    answer = client.request("POST", f"/{TOKEN}/api.openai.com/v1/responses", headers=order, content=b"5\r\nhello")
    assert answer.status_code == 400
    assert "Content-Length and Transfer-Encoding" in answer.text
    assert sent == []


@pytest.mark.parametrize("host", [HOST, "localhost:4790"])
def test_requests_of_programs_are_answered(client: TestClient, sent: Sent, host: str) -> None:
    headers = {"host": host, "sec-fetch-mode": "cors", "authorization": "Bearer sk-1"}
    assert client.post(f"/{TOKEN}/api.openai.com/v1/responses?a=b", headers=headers, json={}).json() == {"answer": 42}
    assert str(sent[0].url) == "https://api.openai.com/v1/responses?a=b"
    assert sent[0].headers["host"] == "api.openai.com"
    assert client.get(f"/{TOKEN}/http/llm.example:8000/v1/models", headers=headers).status_code == 200
    assert str(sent[1].url) == "http://llm.example:8000/v1/models"
    assert client.get(f"/{TOKEN}/of-hosts.example/v1/models", headers=headers).status_code == 200


def test_known_providers_get_no_header_of_ours(client: TestClient, sent: Sent) -> None:
    client.post(f"/{TOKEN}/api.openai.com/v1/responses", json={})
    client.post(f"/{TOKEN}/http/llm.example:8000/v1/responses", json={})
    assert [any(name.startswith("x-tidegate") for name in request.headers) for request in sent] == [False, True]


def test_no_header_allows_a_page_to_read(client: TestClient) -> None:
    answer = client.post("/x", headers={"origin": "https://evil.example"})
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_websocket_is_closed(client: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"/{TOKEN}/api.openai.com/v1/realtime"):
        pass
