"""A process that has tidegate installed, and mocks in place of providers: its tests see what their mocks say."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest
import requests
import respx
import urllib3

import tidegate
from tidegate.admission.registry import RateLimitRegistry

CHAT = "https://api.openai.com/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OVERLOADED = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture
def installed() -> Iterator[RateLimitRegistry]:
    # A call that waits gives up soon, so that a broken promise is a failure and not a test that hangs.
    registry = RateLimitRegistry(tidegate.Settings(max_wait=1.0))
    tidegate.install(registry)
    yield registry
    tidegate.uninstall()


class Script:
    """A mock's answers, each made anew; the last one is repeated."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.calls = 0

    def __call__(self, request: Any) -> Any:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        return answer()


def only(registry: RateLimitRegistry) -> Any:
    (key,) = registry.snapshot().keys.values()
    return key


def test_a_mocks_refusals_are_handed_back_as_they_are(module: ModuleType, installed: Any) -> None:
    script = Script(lambda: module.Response(529), lambda: module.Response(429, headers={"retry-after": "60"}))
    client = module.Client(transport=module.MockTransport(script))
    answers = [client.post(CHAT, json=BODY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [529, 429, 429]
    assert not any("x-should-retry" in answer.headers for answer in answers)
    assert script.calls == 3
    assert only(installed).attempts == 3


def test_a_mocks_refusals_are_handed_back_to_a_task(module: ModuleType, installed: Any) -> None:
    script = Script(lambda: module.Response(429, headers={"retry-after": "60"}))

    async def main() -> list[int]:
        async with module.AsyncClient(transport=module.MockTransport(script)) as client:
            return [(await client.post(CHAT, json=BODY)).status_code for _ in range(3)]

    assert asyncio.run(main()) == [429, 429, 429]
    assert script.calls == 3


def test_respx_refuses_and_is_heard(installed: Any) -> None:
    with respx.mock:
        route = respx.post(CHAT).mock(side_effect=[httpx.Response(429), httpx.Response(200, json={})])
        assert [httpx.post(CHAT, json=BODY).status_code for _ in range(2)] == [429, 200]
    assert route.call_count == 2


def test_pytest_httpx2_refuses_and_is_heard(installed: Any, httpx2_mock: Any) -> None:
    route = httpx2_mock.post(CHAT).mock(side_effect=[httpx.Response(429), httpx.Response(200, json={})])
    assert [httpx2.post(CHAT, json=BODY).status_code for _ in range(2)] == [429, 200]
    assert route.call_count == 2


def test_what_a_mock_says_of_its_limits_teaches_nothing(module: ModuleType, installed: Any) -> None:
    spent = {
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60s",
    }
    script = Script(lambda: module.Response(200, headers=spent, json={}))
    client = module.Client(transport=module.MockTransport(script))
    assert [client.post(CHAT, json=BODY).status_code for _ in range(3)] == [200, 200, 200]
    assert only(installed).quotas == ()


def test_a_mocks_stream_holds_no_slot_and_its_failure_teaches_nothing(module: ModuleType, installed: Any) -> None:
    def chunks() -> Iterator[bytes]:
        yield OVERLOADED

    script = Script(lambda: module.Response(200, content=chunks()))
    client = module.Client(transport=module.MockTransport(script))
    with client.stream("POST", CHAT, json=BODY) as answer:
        assert only(installed).in_flight == 0
        assert answer.read() == OVERLOADED
    limit = only(installed).limit
    assert client.post(CHAT, json=BODY).status_code == 200
    assert only(installed).limit >= limit


def test_a_mocks_failures_open_no_breaker(module: ModuleType, installed: Any) -> None:
    def refuse(request: Any) -> Any:
        calls.append(request)
        raise module.ConnectError("refused")

    calls: list[Any] = []
    client = module.Client(transport=module.MockTransport(refuse))
    for _ in range(8):
        with pytest.raises(module.ConnectError, match="refused"):
            client.post(CHAT, json=BODY)
    assert len(calls) == 8
    assert only(installed).breaker == "closed"


class MemoryAdapter(requests.adapters.BaseAdapter):
    """Answers from memory, as the mocks of requests do, and fails where there is nothing to answer with."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        if not self.statuses:
            raise requests.ConnectionError("refused")
        raw = urllib3.HTTPResponse(io.BytesIO(b"{}"), status=self.statuses.pop(0), preload_content=False)
        return requests.adapters.HTTPAdapter().build_response(request, raw)

    def close(self) -> None: ...


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_mock_of_requests_refuses_is_handed_back_at_once(stream: bool, installed: Any) -> None:
    session = requests.Session()
    session.mount("https://", MemoryAdapter(529, 429, 200))
    answers = [session.post(CHAT, json=BODY, stream=stream) for _ in range(3)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(529, b"{}"), (429, b"{}"), (200, b"{}")]
    assert (only(installed).attempts, only(installed).in_flight) == (3, 0)


def test_the_failures_of_a_mock_of_requests_open_no_breaker(installed: Any) -> None:
    session = requests.Session()
    session.mount("https://", MemoryAdapter())
    for _ in range(8):
        with pytest.raises(requests.ConnectionError, match="refused"):
            session.post(CHAT, json=BODY)
    assert (only(installed).attempts, only(installed).breaker) == (8, "closed")


def test_a_transport_of_another_library_is_no_mock(module: ModuleType, installed: Any) -> None:
    class Body(module.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"{}"

    script = Script(
        lambda: module.Response(429, headers={"retry-after-ms": "1"}, stream=Body()),
        lambda: module.Response(200, stream=Body()),
    )

    class Other(module.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            return script(request)

    assert module.Client(transport=Other()).post(CHAT, json=BODY).status_code == 200
    assert script.calls == 2
