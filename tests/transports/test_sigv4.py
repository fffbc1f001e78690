"""The Bedrock clients of anthropic and openai: governed, under boto3's key, and signed anew after a long wait."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import anthropic
import botocore.auth
import httpx2
import openai
import pytest
from openai.providers.bedrock import bedrock

import tidegate
from tests import bedrock as aws
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Limit, Scenario, Simulator
from tidegate.transports import bearer, sigv4

MESSAGES = [{"role": "user", "content": "How high is the tide?"}]
CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": "end_turn"}
AWS = {"aws_access_key": aws.KEY, "aws_secret_key": aws.SECRET, "aws_region": aws.REGION}

KINDS = ("anthropic", "async anthropic", "anthropic mantle", "anthropic aws", "openai", "async openai")
SERVICES = {
    "anthropic mantle": "bedrock-mantle",
    "anthropic aws": "aws-external-anthropic",
    "openai": "bedrock-mantle",
    "async openai": "bedrock-mantle",
}


class Server:
    """Refuses the first request and answers the others, as over a network; the requests are kept as they were."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.seen: list[tuple[str, str, httpx2.Headers, bytes]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append((request.method, str(request.url), httpx2.Headers(request.headers), request.content))
        if len(self.seen) == 1:
            error = {"x-amzn-errortype": "ThrottlingException", "retry-after": "0.02"}
            told = {"message": "Too many tokens, please wait."}
            return httpx2.Response(429, headers=error, json=told, extensions={"network_stream": None})
        return httpx2.Response(200, json=self.answer)


def make(kind: str, handler: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> Any:
    transport = httpx2.MockTransport(handler)
    http = httpx2.AsyncClient(transport=transport) if "async" in kind else httpx2.Client(transport=transport)
    if "openai" in kind:
        provider = bedrock(region=aws.REGION, access_key_id=aws.KEY, secret_access_key=aws.SECRET)
        return (openai.AsyncOpenAI if "async" in kind else openai.OpenAI)(
            provider=provider, http_client=http, **options
        )
    if kind == "anthropic aws":
        return anthropic.AnthropicAWS(**AWS, workspace_id="w", http_client=http, **options)
    if kind == "anthropic mantle":
        return anthropic.AnthropicBedrockMantle(**AWS, http_client=http, **options)
    cls = anthropic.AsyncAnthropicBedrock if "async" in kind else anthropic.AnthropicBedrock
    return cls(**AWS, http_client=http, **options)


def ask(kind: str, client: Any) -> Any:
    if "openai" in kind:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
    else:
        answer = client.messages.create(model=aws.MODEL, max_tokens=64, messages=MESSAGES)
    return asyncio.run(_wait_for(answer)) if "async" in kind else answer


async def _wait_for(answer: Any) -> Any:
    return await answer


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes pass between one signature and the next."""
    instants = (datetime(2026, 11, 21, 12, 0) + timedelta(minutes=10 * step) for step in range(99))
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: next(instants))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sigv4, "STALE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(bearer, "LOOK_AFTER_SECONDS", 0.0)
    return


def dates(server: Server) -> list[str]:
    return [headers["x-amz-date"] for _, _, headers, _ in server.seen]


@pytest.mark.usefixtures("later", "impatient")
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_signed_anew_after_a_long_wait(kind: str, registry: RateLimitRegistry) -> None:
    server = Server(CHAT if "openai" in kind else MESSAGE)
    client = registry.wrap(make(kind, server, max_retries=0))
    ask(kind, client)
    assert dates(server) == ["20261121T120000Z", "20261121T121000Z"]
    for method, url, headers, body in server.seen:
        for name in sigv4.SIGNATURE[:2]:
            assert len(headers.get_list(name)) == 1
        assert aws.is_signed_rightly(method, url, headers, body, SERVICES.get(kind, "bedrock"))
    first, second = (headers["authorization"] for _, _, headers, _ in server.seen)
    assert first != second


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_short_wait_the_signature_stands(kind: str, registry: RateLimitRegistry) -> None:
    server = Server(CHAT if "openai" in kind else MESSAGE)
    ask(kind, registry.wrap(make(kind, server, max_retries=0)))
    assert dates(server) == ["20261121T120000Z"] * 2


@pytest.mark.usefixtures("later", "impatient")
@pytest.mark.parametrize("kind", KINDS)
def test_under_install_clients_made_before_are_signed_anew_as_well(kind: str, registry: RateLimitRegistry) -> None:
    server = Server(CHAT if "openai" in kind else MESSAGE)
    client = make(
        kind, server, max_retries=0, **({"base_url": "http://127.0.0.1:9"} if kind == "anthropic aws" else {})
    )
    tidegate.install(registry)
    ask(kind, client)
    assert dates(server) == ["20261121T120000Z", "20261121T121000Z"]


@pytest.mark.usefixtures("impatient")
def test_a_bearer_token_is_left_alone(registry: RateLimitRegistry) -> None:
    server = Server(MESSAGE)

    def turn_the_key(request: httpx2.Request) -> httpx2.Response:
        client.api_key = "another"
        return server(request)

    http = httpx2.Client(transport=httpx2.MockTransport(turn_the_key))
    client = anthropic.AnthropicBedrock(api_key="token", aws_region=aws.REGION, http_client=http)
    ask("anthropic", registry.wrap(client))
    assert [headers["authorization"] for _, _, headers, _ in server.seen] == ["Bearer token"] * 2


@pytest.mark.usefixtures("impatient")
def test_what_a_signer_raises_is_the_sdks_own_affair(
    registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(MESSAGE)
    client = registry.wrap(make("anthropic", server, max_retries=1))

    def expire(*facts: Any, **more: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("the credentials have expired")

    def refuse_then_expire(request: httpx2.Request) -> httpx2.Response:
        if not server.seen:
            monkeypatch.setattr(botocore.auth.SigV4Auth, "add_auth", expire)
        return server(request)

    client._client._transport.handler = refuse_then_expire
    ask("anthropic", client)
    # The repeated request is of the SDK's own making: it was built, and signed, anew.
    assert [headers["x-stainless-retry-count"] for _, _, headers, _ in server.seen] == ["0", "1"]
    assert registry.snapshot().in_flight == 0


def test_a_request_does_not_keep_its_client_alive(registry: RateLimitRegistry) -> None:
    kept: list[httpx2.Request] = []
    server = Server(MESSAGE)

    def keep(request: httpx2.Request) -> httpx2.Response:
        kept.append(request)
        return server(request)

    client = registry.wrap(make("anthropic", keep))
    ask("anthropic", client)
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    sigv4.renew(kept[0], None)
    assert kept[0].headers["authorization"].startswith("AWS4-")


def test_uninstall_restores_the_methods_that_sign(registry: RateLimitRegistry) -> None:
    original = vars(anthropic.AnthropicBedrock)["_prepare_request"]
    tidegate.install(registry)
    assert vars(anthropic.AnthropicBedrock)["_prepare_request"] is not original
    tidegate.uninstall()
    assert vars(anthropic.AnthropicBedrock)["_prepare_request"] is original


def test_boto3_and_anthropics_client_have_one_key(registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(limiters=(Limit(limit=600),))) as provider:
        with aws.client_of(provider.bedrock_url) as client:
            registry.wrap(client).converse(**{**aws.ASK, "modelId": aws.PROFILE})
        with registry.wrap(anthropic.AnthropicBedrock(**AWS, base_url=provider.bedrock_url)) as other:
            other.messages.create(model=aws.PROFILE, max_tokens=64, messages=MESSAGES)
            with other.messages.stream(model=aws.PROFILE, max_tokens=64, messages=MESSAGES) as stream:
                assert stream.get_final_text()
    (key,) = registry.snapshot().keys.values()
    assert (key.key.provider, key.key.scope, key.answered) == ("bedrock", aws.PROFILE, 3)


def test_a_bedrock_client_behind_a_gateway_is_governed(registry: RateLimitRegistry) -> None:
    server = Server(MESSAGE)
    ask("anthropic", registry.wrap(make("anthropic", server, base_url="https://gateway.test/aws")))
    (key,) = registry.snapshot().keys.values()
    assert (key.key.provider, key.key.scope, key.answered) == ("bedrock", aws.MODEL, 1)
    assert json.loads(server.seen[0][3])["messages"] == MESSAGES
