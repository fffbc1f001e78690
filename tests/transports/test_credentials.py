"""Credentials of a failed call are known by value, whatever HTTP stack has sent it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from tests import bedrock as aws
from tests.transports.answering import BODY, Server
from tidegate.admission import redaction
from tidegate.admission.registry import RateLimitRegistry
from tidegate.settings import Settings

BASIC = base64.b64encode(b"joe:harbour-of-basic").decode()
HEADERS = {
    "authorization": "Bearer harbour-of-bearer",
    "x-my-token": "harbour-of-header",
    "cookie": "a=harbour-of-cookie",
}
QUERY = "?access_token=harbour-of-query"


@pytest.fixture
def registry() -> RateLimitRegistry:
    return RateLimitRegistry(Settings(telemetry=False, max_wait=0.0))


def refuse(number: int, path: str) -> Any:
    return 401, {}, b'{"error": {"message": "no"}}'


def with_httpx(registry: Any, url: str, headers: dict[str, str], auth: Any) -> None:
    with registry.wrap(httpx.Client()) as client:
        assert client.post(url, json=BODY, headers=headers, auth=auth).status_code == 401


def with_async_httpx(registry: Any, url: str, headers: dict[str, str], auth: Any) -> None:
    async def ask() -> None:
        async with registry.wrap(httpx.AsyncClient()) as client:
            assert (await client.post(url, json=BODY, headers=headers, auth=auth)).status_code == 401

    asyncio.run(ask())


def with_requests(registry: Any, url: str, headers: dict[str, str], auth: Any) -> None:
    with registry.wrap(requests.Session()) as session:
        assert session.post(url, json=BODY, headers=headers, auth=auth).status_code == 401


def with_aiohttp(registry: Any, url: str, headers: dict[str, str], auth: Any) -> None:
    async def ask() -> None:
        given = aiohttp.BasicAuth(*auth) if auth else None
        session = registry.wrap(aiohttp.ClientSession())
        async with session, session.post(url, json=BODY, headers=headers, auth=given) as response:
            assert response.status == 401

    asyncio.run(ask())


STACKS = [with_httpx, with_async_httpx, with_requests, with_aiohttp]


@pytest.mark.parametrize("ask", STACKS)
def test_failed_call_tells_what_it_was_sent_with(registry: Any, ask: Any) -> None:
    with Server(refuse) as server:
        ask(registry, server.chat + QUERY, HEADERS, None)
    for place in ("bearer", "header", "cookie", "query"):
        assert redaction.STORE.knows(f"harbour-of-{place}"), place


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("ask", STACKS)
def test_failed_call_tells_the_password_of_its_auth_object(registry: Any, ask: Any) -> None:
    with Server(refuse) as server:
        ask(registry, server.chat, {}, ("joe", "harbour-of-basic"))
    assert redaction.STORE.knows("harbour-of-basic")
    assert redaction.STORE.knows(BASIC)


@pytest.mark.parametrize("ask", STACKS)
def test_failed_call_tells_the_password_in_its_address(registry: Any, ask: Any) -> None:
    with Server(refuse) as server:
        ask(registry, server.chat.replace("//", "//joe:harbour-of-address@"), {}, None)
    assert redaction.STORE.knows("harbour-of-address")


def test_call_that_cannot_connect_tells_its_credential(registry: Any) -> None:
    with registry.wrap(httpx.Client()) as client, pytest.raises(httpx.ConnectError):
        client.post(f"http://joe:harbour-of-address@127.0.0.1:1/v1/chat/completions{QUERY}", json=BODY, headers=HEADERS)
    for place in ("bearer", "address", "query"):
        assert redaction.STORE.knows(f"harbour-of-{place}"), place


def test_good_call_tells_its_credential_once(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[set[str]] = []
    monkeypatch.setattr(redaction, "remember", lambda values: told.append(set(values)))
    answer = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
    with Server(lambda number, path: (200, {}, answer)) as server, registry.wrap(httpx.Client()) as client:
        for _ in range(20):
            client.post(server.chat, json=BODY, headers=HEADERS)
    assert len(told) == 2, "when the client was wrapped, and when its key was made"
    assert "harbour-of-bearer" in told[1]


def test_failed_call_of_botocore_tells_secret_key_and_session_token(registry: Any) -> None:
    import boto3

    client = boto3.client(
        "bedrock-runtime",
        region_name=aws.REGION,
        aws_access_key_id=aws.KEY,
        aws_secret_access_key="harbour/of+the/secret/key",
        aws_session_token="harbour-of-the-session",
        endpoint_url="http://127.0.0.1:1",
    )
    client.meta.config.retries = {"max_attempts": 0}
    registry.wrap(client)
    with pytest.raises(Exception, match="connect"):
        client.converse(**aws.ASK)
    client.close()
    assert redaction.STORE.knows("harbour/of+the/secret/key")
    assert redaction.STORE.knows("harbour-of-the-session")


def test_wrapped_client_tells_its_key_before_any_call(registry: Any) -> None:
    import openai

    with registry.wrap(openai.OpenAI(api_key="harbour-of-the-client")):
        assert redaction.STORE.knows("harbour-of-the-client")
