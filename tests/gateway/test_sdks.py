"""Real SDKs in an ungoverned process, whose calls the gateway governs; and the answer of a call that is given up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.testclient import TestClient

import tidegate
from tests.gateway.conftest import LIMIT, Gateway
from tidegate.admission.registry import RateLimitRegistry
from tidegate.server.gateway.proxy import GatewayProxy, Upstreams
from tidegate.testing import SimulatorProcess

MESSAGES: Any = [{"role": "user", "content": "How high is the tide?"}]
CALLS = 2 * LIMIT + 1


def at_once(ask: Any) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(CALLS) as threads:
        return list(threads.map(lambda _: ask(), range(CALLS)))


@pytest.mark.parametrize("streams", [False, True])
def test_openai(gateway: Gateway, provider: SimulatorProcess, streams: bool) -> None:
    url = gateway.to(provider.openai_url)
    with openai.OpenAI(base_url=url, api_key=f"sk-openai-{streams}", max_retries=0) as client:

        def ask() -> str:
            answer = client.chat.completions.create(model="gpt-4o-mini", messages=MESSAGES, stream=streams)
            if not streams:
                return str(answer.choices[0].message.content)
            return "".join(each.choices[0].delta.content or "" for each in answer if each.choices)

        assert all(at_once(ask))


@pytest.mark.parametrize("streams", [False, True])
def test_anthropic(gateway: Gateway, provider: SimulatorProcess, streams: bool) -> None:
    url = gateway.to(provider.url)
    with anthropic.Anthropic(base_url=url, api_key=f"sk-ant-{streams}", max_retries=0) as client:

        def ask() -> str:
            options: Any = {"model": "claude-opus-4-5", "max_tokens": 64, "messages": MESSAGES}
            if streams:
                with client.messages.stream(**options) as stream:
                    return str(stream.get_final_text())
            return str(client.messages.create(**options).content[0].text)

        assert all(at_once(ask))


def test_gemini(gateway: Gateway, provider: SimulatorProcess) -> None:
    genai = importlib.import_module("google.genai")
    options = {"base_url": gateway.to(provider.gemini_url)}
    with genai.Client(api_key="gemini-key", http_options=options) as client:
        answers = at_once(lambda: client.models.generate_content(model="gemini-2.5-flash", contents="hi").text)
        assert all(answers)
        streamed = client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi")
        assert "".join(piece.text or "" for piece in streamed)


def test_a_call_that_is_given_up_gets_the_answer_of_a_governed_client() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        error = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
        return httpx.Response(429, json=error, headers={"retry-after": "30"}, request=request)

    def client() -> httpx.AsyncClient:
        registry = RateLimitRegistry(tidegate.Settings(max_wait=0.0))
        return tidegate.wrap(httpx.AsyncClient(transport=httpx.MockTransport(refuse)), registry=registry)

    proxy = GatewayProxy(hosts=("testserver",), token="t", upstreams=Upstreams(), client=client())
    path, body = "api.openai.com/v1/chat/completions", {"model": "m", "messages": MESSAGES}
    asking = TestClient(proxy)
    answers = [asking.post(f"/t/{path}", json=body) for _ in range(2)]
    asking.close()

    async def directly() -> list[httpx.Response]:
        async with client() as direct:
            return [await direct.post(f"https://{path}", json=body) for _ in range(2)]

    expected = asyncio.run(directly())
    for got, wanted in zip(answers, expected, strict=True):
        assert got.status_code == wanted.status_code == 429
        assert set(got.headers) == set(wanted.headers)
        assert got.headers["x-should-retry"] == "false"
        assert got.json()["error"]["code"] == wanted.json()["error"]["code"]
    assert [each.json()["error"]["code"] for each in answers] == ["rate_limit_exceeded", "queue_deadline"]
