"""A key that the provider rejects as a whole, under real SDKs over loopback: each raises its own normal error.

The registries run in virtual time, so that what is asked and what is repeated does not depend on a machine's speed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import anthropic
import botocore.exceptions
import httpx
import openai
import pytest
import requests
import respx
from google import genai
from google.genai import errors as google_errors

import tidegate
from tests import bedrock
from tests.effort import some
from tests.sdk.asking import MESSAGES, answer_body, make, request
from tests.transports.answering import Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import VirtualClock

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
"""google-genai derives its session from aiohttp's."""

PRIVATE = {
    "content-type": "application/json",
    "x-request-id": "req_of_the_first_call",
    "request-id": "req_of_the_first_call",
    "x-amzn-requestid": "req_of_the_first_call",
    "set-cookie": "session=of-the-first-call",
    "x-ratelimit-remaining-requests": "7",
}
"""Headers of the first call's answer: none of it may reach another."""


def error_of(family: str, what: str) -> tuple[int, dict[str, str], bytes]:
    """A provider's answer to a key without money, a wrong key, a key whose day is over, or a forbidden call."""
    status = {"money": 429, "auth": 401, "day": 429, "forbidden": 403}[what]
    words = {
        "money": "You exceeded your current quota, please check your plan and billing details.",
        "auth": "Incorrect API key provided (req_of_the_first_call)",
        "day": "Rate limit reached on requests per day (RPD): Limit 200, Used 200",
        "forbidden": "This text was moderated.",
    }[what]
    extra: dict[str, str] = {}
    body: dict[str, Any]
    if family == "anthropic":
        kind = {"money": "billing_error", "auth": "authentication_error", "day": "rate_limit_error"}.get(what, "x")
        extra = {"anthropic-ratelimit-unified-status": "rejected"} if what == "day" else {}
        body = {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_of_the_first_call"}
    elif family == "google":
        name = "UNAUTHENTICATED" if what == "auth" else "RESOURCE_EXHAUSTED"
        info = {"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": "req_of_the_first_call"}
        body = {"error": {"code": status, "message": words, "status": name, "details": [info]}}
    elif family == "bedrock":
        extra = {"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/coral/"}
        body = {"message": "Too many tokens per day, please wait before trying again."}
    else:
        code = {"money": "insufficient_quota", "auth": "invalid_api_key", "day": "rate_limit_exceeded"}.get(what, "x")
        body = {"error": {"message": words, "type": code, "param": None, "code": code}}
    return status, {**PRIVATE, **extra}, json.dumps(body).encode()


class Stack:
    """One SDK or HTTP library: how it asks, and what it raises or returns."""

    def __init__(self, family: str, open: Callable[..., Any], whats: str, check: Callable[[Any, str], Any]) -> None:
        self.family = family
        self.open = open
        self.whats = whats.split()
        self.check = check


def openai_error(error: Any, what: str) -> Any:
    kind = {"money": openai.RateLimitError, "auth": openai.AuthenticationError, "day": openai.RateLimitError}[what]
    assert type(error) is kind, error
    assert error.status_code == kind.status_code if hasattr(kind, "status_code") else True
    codes = {"money": "insufficient_quota", "auth": "invalid_api_key", "day": "rate_limit_exceeded"}
    assert error.code == codes[what]
    assert error.body["code"] == codes[what]
    assert error.body["message"]
    return error.response


def anthropic_error(error: Any, what: str) -> Any:
    kinds = {"money": anthropic.RateLimitError, "auth": anthropic.AuthenticationError, "day": anthropic.RateLimitError}
    assert type(error) is kinds[what], error
    assert error.status_code == (401 if what == "auth" else 429)
    assert error.body["type"] == "error"
    assert error.body["error"]["message"]
    return error.response


def google_error(error: Any, what: str) -> Any:
    assert type(error) is google_errors.ClientError, error
    assert error.code == (401 if what == "auth" else 429)
    assert error.message
    # Its asynchronous client holds aiohttp's response, whose body is read already: `details` is all of it.
    return httpx.Response(error.code, headers=dict(error.response.headers), json=error.details)


def bedrock_error(error: Any, what: str) -> Any:
    assert isinstance(error, botocore.exceptions.ClientError), error
    assert type(error).__name__ == "ThrottlingException"
    assert error.response["Error"]["Code"] == "ThrottlingException"
    assert error.response["Error"]["Message"].startswith("Too many tokens per day")
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    headers = error.response["ResponseMetadata"]["HTTPHeaders"]
    return httpx.Response(429, headers=headers, json=error.response["Error"])


def plain(response: Any, what: str) -> Any:
    status = response.status_code if hasattr(response, "status_code") else response.status
    assert status == (401 if what == "auth" else 429)
    return response


def sdk(kind: str) -> Callable[..., Any]:
    def ask(url: str, registry: RateLimitRegistry) -> Callable[[], Any]:
        client = registry.wrap(make(kind, url.removesuffix("/v1"), max_retries=0))
        return lambda: request(kind, client)

    return ask


def google(url: str, registry: RateLimitRegistry, awaited: bool = False) -> Callable[[], Any]:
    client = registry.wrap(genai.Client(api_key="a-secret", http_options={"base_url": url.removesuffix("/v1")}))
    face = client.aio if awaited else client

    def ask() -> Any:  # It holds the client, which closes when nobody does.
        assert client is not None
        return face.models.generate_content(model="gemini-test", contents="How high is the tide?")

    return ask


def boto(url: str, registry: RateLimitRegistry) -> Callable[[], Any]:
    client = registry.wrap(bedrock.client_of(url.removesuffix("/v1")).thing)  # type: ignore[attr-defined]
    return lambda: client.converse(**bedrock.ASK)


def session(url: str, registry: RateLimitRegistry) -> Callable[[], Any]:
    client = registry.wrap(requests.Session())
    body = {"model": "m", "messages": MESSAGES}
    return lambda: client.post(f"{url}/chat/completions", json=body, headers={"authorization": "Bearer a-secret"})


def aio_session(url: str, registry: RateLimitRegistry) -> Callable[[], Any]:
    async def ask() -> Any:
        async with aiohttp.ClientSession() as client:
            registry.wrap(client)
            body = {"model": "m", "messages": MESSAGES}
            async with client.post(f"{url}/chat/completions", json=body, headers={"authorization": "Bearer a"}) as got:
                return httpx.Response(got.status, headers=dict(got.headers), content=await got.read())

    return ask


STACKS = {
    "openai": Stack("openai", sdk("openai"), "money auth day", openai_error),
    "async_openai": Stack("openai", sdk("async_openai"), "money auth day", openai_error),
    "anthropic": Stack("anthropic", sdk("anthropic"), "money auth day", anthropic_error),
    "async_anthropic": Stack("anthropic", sdk("async_anthropic"), "money auth day", anthropic_error),
    "google": Stack("google", google, "auth day", google_error),
    "async_google": Stack("google", lambda *given: google(*given, awaited=True), "auth day", google_error),
    "boto3": Stack("bedrock", boto, "day", bedrock_error),
    "requests": Stack("openai", session, "money auth day", plain),
    "aiohttp": Stack("openai", aio_session, "money auth day", plain),
}
ALL = [(name, what) for name, stack in STACKS.items() for what in stack.whats]
CASES = some(ALL[::3], [case for number, case in enumerate(ALL) if number % 3])
"""Each stack with one of its answers, or with all of them."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(), clock=clock)


def play(ask: Callable[[], Any], steps: Iterator[float] | list[float], clock: VirtualClock) -> list[Any]:
    """Asks once for each step, after that many seconds of virtual time; results are answers or exceptions."""

    async def one() -> Any:
        try:
            found = ask()
            return await found if asyncio.iscoroutine(found) else found
        except Exception as error:
            return error

    async def all_of_them() -> list[Any]:
        found = []
        for step in steps:
            clock.advance(step)
            found.append(await one())
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(("name", "what"), CASES)
def test_each_call_gets_its_own_answer_of_a_rejected_key(
    name: str, what: str, registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    stack = STACKS[name]
    with Server(lambda number, path: error_of(stack.family, what)) as server:
        url = server.chat.removesuffix("/chat/completions")
        results = play(stack.open(url, registry), [0.02, 0.02, 6.0], clock)
        assert len(server.seen) >= 3
    (seen,) = registry.snapshot().keys.values()
    assert seen.attempts == len(server.seen)
    for result in results:
        stack.check(result, what)


@pytest.mark.parametrize("name", ["openai", "requests", "aiohttp"])
def test_one_forbidden_call_of_sixty_costs_no_other(
    name: str, registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    stack = STACKS[name]
    fine = 200, {"content-type": "application/json"}, json.dumps(answer_body(stack.family)).encode()
    with Server(lambda number, path: error_of(stack.family, "forbidden") if number == 7 else fine) as server:
        results = play(stack.open(server.chat.removesuffix("/chat/completions"), registry), [0.02] * 60, clock)
        assert len(server.seen) == 60
    refused = [each for each in results if isinstance(each, Exception) or getattr(each, "status_code", 200) != 200]
    assert len(refused) == 1


def test_success_ends_the_rejection_of_a_key(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    fine = 200, {"content-type": "application/json"}, json.dumps(answer_body("openai")).encode()
    with Server(lambda number, path: error_of("openai", "auth") if number <= 2 else fine) as server:
        ask = STACKS["openai"].open(server.chat.removesuffix("/chat/completions"), registry)
        results = play(ask, [0.0, 0.0, 0.1, 0.0], clock)
    assert [isinstance(each, Exception) for each in results] == [True, True, False, False]
    assert [key.rejected for key in registry.snapshot().keys.values()] == [""]


@pytest.mark.parametrize(
    "words",
    [
        "This request requires more credits, or fewer max_tokens. You can only afford 12.",
        "Prompt tokens limit exceeded: 230799 > 91442. To increase, visit https://openrouter.ai/settings/keys",
    ],
)
def test_key_refused_for_one_request_s_credits_is_not_remembered(
    words: str, registry: RateLimitRegistry, clock: VirtualClock
) -> None:
    """OpenRouter: a smaller request would be answered."""
    body = json.dumps({"error": {"message": words, "code": 402}}).encode()
    with Server(lambda number, path: (402, {"content-type": "application/json"}, body)) as server:
        play(STACKS["openai"].open(server.chat.removesuffix("/chat/completions"), registry), [0.0] * 5, clock)
        assert len(server.seen) == 5


def test_rejection_is_hidden_from_scripted_transports(registry: RateLimitRegistry, clock: VirtualClock) -> None:
    """A rejected key of a real server, and mocks in its place at the same address: they see every request."""
    headers = {"authorization": "Bearer a-secret"}
    body = {"model": "m", "messages": MESSAGES}
    with Server(lambda number, path: error_of("openai", "auth")) as server:
        real = registry.wrap(httpx.Client())
        play(lambda: real.post(server.chat, json=body, headers=headers), [0.0, 6.0], clock)
        assert [key.rejected for key in registry.snapshot().keys.values()] == ["auth"]
        mock = httpx.MockTransport(lambda asked: httpx.Response(200, json=answer_body("openai")))
        scripted = registry.wrap(httpx.Client(transport=mock))
        assert scripted.post(server.chat, json=body, headers=headers).status_code == 200
        play(lambda: real.post(server.chat, json=body, headers=headers), [0.0, 6.0], clock)
        with respx.mock:
            respx.post(server.chat).mock(return_value=httpx.Response(200, json=answer_body("openai")))
            assert real.post(server.chat, json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("awaited", [False, True])
def test_refusals_of_a_mock_reject_no_key(registry: RateLimitRegistry, awaited: bool) -> None:
    status, headers, body = error_of("openai", "auth")
    transport = httpx.MockTransport(lambda asked: httpx.Response(status, headers=headers, content=body))
    asked = {"url": "https://provider.test/v1/chat/completions", "json": {"model": "m", "messages": MESSAGES}}

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(transport=transport) as client:
            registry.wrap(client)
            return [await client.post(**asked) for _ in range(5)]

    with httpx.Client(transport=transport) as client:
        registry.wrap(client)
        found = asyncio.run(ask()) if awaited else [client.post(**asked) for _ in range(5)]
    assert all(each.headers["x-request-id"] == "req_of_the_first_call" for each in found)
    assert [key.rejected for key in registry.snapshot().keys.values()] == [""]


def bearer(url: str, registry: RateLimitRegistry, headers: dict[str, str]) -> Callable[[str], httpx.Response]:
    """A client that sends one request with a token."""
    client = registry.wrap(httpx.Client())
    body = {"model": "m", "messages": MESSAGES}
    return lambda token: client.post(url, json=body, headers={**headers, "authorization": f"Bearer {token}"})


def jwt(ends: float, subject: str = "someone") -> str:
    """An unsigned token that ends at an instant in seconds since 1970."""
    parts = [{"alg": "none"}, {"sub": subject, "exp": ends}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts) + "."


def test_refreshed_token_is_sent_where_the_one_before_is_rejected(registry: RateLimitRegistry) -> None:
    """Both are of one account, and count on one key."""
    valid, revoked = jwt(time.time() + 3600), jwt(time.time() + 1800)
    fine = 200, {"content-type": "application/json"}, json.dumps(answer_body("openai")).encode()
    with Server(lambda number, path: error_of("openai", "auth") if number <= 2 else fine) as server:
        send = bearer(server.chat, registry, {})
        assert [send(revoked).status_code for _ in range(2)] == [401, 401]
        assert [key.rejected for key in registry.snapshot().keys.values()] == ["auth"]
        assert send(valid).status_code == 200
        assert len(registry.snapshot().keys) == 1
        assert send(revoked).status_code == 200
        assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (jwt(time.time() - 5), "Incorrect API key provided"),
        (jwt(time.time() + 5), "Incorrect API key provided"),
        ("opaque-token", "Provided authentication token is expired."),
    ],
    ids=["expired", "expires soon", "says expired"],
)
def test_rejection_of_an_expired_token_is_not_remembered(token: str, words: str, registry: RateLimitRegistry) -> None:
    body = json.dumps({"error": {"message": words, "code": "invalid_api_key"}}).encode()
    with Server(lambda number, path: (401, {"content-type": "application/json"}, body)) as server:
        send = bearer(server.chat, registry, {})
        for _ in range(5):
            send(token)
        assert len(server.seen) == 5
    assert [key.rejected for key in registry.snapshot().keys.values()] == [""]
