"""Bearer tokens that age in the queue: the SDK's own method writes them again, or the SDK asks once more.

Real SDKs over loopback. Their first request is refused, so the second one has waited.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anthropic
import google.auth.credentials
import httpx
import httpx2
import openai
import pytest
import requests
from google import genai

import tidegate
from tests.sdk.asking import MESSAGES, answer_body
from tests.transports.answering import Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports import bearer

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
"""google-genai derives its session from aiohttp's."""

JSON = {"content-type": "application/json"}
FAMILIES = {
    "openai": "openai",
    "azure": "openai",
    "bedrock": "openai",
    "vertex": "anthropic",
    "foundry": "anthropic",
    "genai": "google",
}
KINDS = [f"{how}{kind}" for kind in FAMILIES for how in ("", "async ")]


class Tokens:
    """A source whose every token is another one."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.fails = False

    def __call__(self) -> str:
        if self.fails:
            raise ValueError("the source is closed")
        self.given.append(f"token-{len(self.given)}")
        return self.given[-1]

    async def later(self) -> str:
        return self()


class Credentials(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Credentials of Google whose token is fetched at each use."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.tokens = tokens

    @property
    def expired(self) -> bool:
        return True

    def refresh(self, request: Any) -> None:
        self.token = self.tokens()

    def with_quota_project(self, quota_project_id: str) -> Credentials:
        return self


def forwarding(cls: Any, url: str) -> Any:
    """A client of httpx2 that sends each request to the server at `url`."""

    def forward(request: httpx2.Request) -> httpx2.Response:
        got = httpx.post(url, content=request.content, headers={"authorization": request.headers["authorization"]})
        kept = {name: value for name, value in got.headers.items() if name in ("content-type", "retry-after")}
        return httpx2.Response(got.status_code, headers=kept, content=got.content, extensions={"network_stream": None})

    return cls(transport=httpx2.MockTransport(forward))


def asker(kind: str, server: Server, tokens: Tokens, registry: RateLimitRegistry) -> Callable[[], Any]:
    """A function that asks once through a client with that source; an exception is its result."""
    how, _, sdk = kind.rpartition(" ")
    url = server.chat.removesuffix("/v1/chat/completions")
    client: Any
    if sdk == "openai":
        key = tokens.later if how else tokens
        client = (openai.AsyncOpenAI if how else openai.OpenAI)(base_url=f"{url}/v1", api_key=key, max_retries=2)
    elif sdk == "azure":
        cls = openai.AsyncAzureOpenAI if how else openai.AzureOpenAI
        client = cls(azure_endpoint=url, api_version="1", azure_ad_token_provider=tokens, max_retries=2)
    elif sdk == "bedrock":
        cls = openai.AsyncBedrockOpenAI if how else openai.BedrockOpenAI
        key = tokens.later if how else tokens
        client = cls(base_url=f"{url}/v1", bedrock_token_provider=key, max_retries=2)
    elif sdk == "foundry":
        cls = anthropic.AsyncAnthropicFoundry if how else anthropic.AnthropicFoundry
        client = cls(base_url=url, azure_ad_token_provider=tokens, max_retries=2)
    elif sdk == "vertex":
        cls = anthropic.AsyncAnthropicVertex if how else anthropic.AnthropicVertex
        # Only its own host is known to be a provider's.
        http = forwarding(httpx2.AsyncClient if how else httpx2.Client, url)
        client = cls(region="r", project_id="p", credentials=Credentials(tokens), max_retries=2, http_client=http)
    else:
        options = {"base_url": url}
        client = genai.Client(
            vertexai=True, project="p", location="l", credentials=Credentials(tokens), http_options=options
        )
    registry.wrap(client)

    def ask() -> Any:
        if sdk in ("vertex", "foundry"):
            return client.messages.create(model="claude", max_tokens=9, messages=MESSAGES)
        if sdk == "genai":
            return (client.aio if how else client).models.generate_content(model="gemini", contents="hi")
        return client.chat.completions.create(model="m", messages=MESSAGES)

    async def awaited() -> Any:
        return await ask()

    def once() -> Any:
        try:
            return asyncio.run(awaited()) if how else ask()
        except Exception as error:
            return error

    return once


@pytest.fixture
def registry() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer, "LOOK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(bearer, "STALE_AFTER_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of anthropic's Vertex client are refreshed over a network: here they refresh themselves."""
    monkeypatch.setattr("anthropic.lib.vertex._client.refresh_auth", lambda credentials: credentials.refresh(None))


def refused_first(family: str) -> Callable[[int, str], Any]:
    body = json.dumps({"error": {"message": "Slow down."}}).encode()
    fine = json.dumps(answer_body(family)).encode()
    return lambda number, path: (429, {**JSON, "retry-after": "0.02"}, body) if number == 1 else (200, JSON, fine)


def sent(server: Server) -> list[str]:
    return [each["authorization"].removeprefix("Bearer ") for each in server.headers]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS)
def test_call_that_waited_long_is_sent_with_a_new_token(kind: str, registry: RateLimitRegistry) -> None:
    tokens = Tokens()
    with Server(refused_first(FAMILIES[kind.rpartition(" ")[2]])) as server:
        found = asker(kind, server, tokens, registry)()
    assert not isinstance(found, Exception), found
    assert len(sent(server)) == 2
    assert [key.calls for key in registry.snapshot().keys.values()] == [1]
    assert sent(server)[0] != sent(server)[1]
    assert sent(server)[1] == tokens.given[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_call_that_hardly_waited_keeps_its_token(kind: str, registry: RateLimitRegistry) -> None:
    with Server(refused_first(FAMILIES[kind.rpartition(" ")[2]])) as server:
        found = asker(kind, server, Tokens(), registry)()
    assert not isinstance(found, Exception), found
    assert sent(server)[0] == sent(server)[1]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["openai", "async azure"])
def test_token_is_sent_as_it_was_where_its_source_fails(
    kind: str, registry: RateLimitRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens()
    reply = refused_first("openai")

    def close_the_source(number: int, path: str) -> Any:
        tokens.fails = True
        return reply(number, path)

    with Server(close_the_source) as server, caplog.at_level(logging.WARNING, "tidegate"):
        found = asker(kind, server, tokens, registry)()
    assert not isinstance(found, Exception), found
    assert sent(server)[0] == sent(server)[1]
    assert "ValueError" in caplog.text
    assert tokens.given[0] not in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["openai", "bedrock"])
@pytest.mark.parametrize("how", ["", "async "])
def test_clients_of_both_kinds_with_one_token_ask_their_own_source(
    how: str, kind: str, registry: RateLimitRegistry, recwarn: pytest.WarningsRecorder
) -> None:
    """A source keeps its token, so a client that blocks and one that awaits write the same one."""
    tokens = iter(["shared", "shared", "new"])

    class Shared(Tokens):
        def __call__(self) -> str:
            self.given.append(next(tokens))
            return self.given[-1]

    fine = json.dumps(answer_body("openai")).encode()

    def reply(number: int, path: str) -> Any:
        if number > 1:
            return 200, JSON, fine
        other()
        return 429, {**JSON, "retry-after": "0.02"}, b'{"error": {"message": "Slow down."}}'

    source = Shared()
    with Server(reply) as server:
        one, other = (asker(f"{each}{kind}", server, source, registry) for each in (how, "" if how else "async "))
        found = one()
    assert not isinstance(found, Exception), found
    assert sent(server) == ["shared", "shared", "new"]
    gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


@pytest.mark.usefixtures("impatient")
def test_call_that_cannot_await_its_source_is_handed_back_as_one_without_a_source(
    registry: RateLimitRegistry, replies: Any, recwarn: pytest.WarningsRecorder
) -> None:
    given = itertools.chain([(200, JSON, json.dumps(answer_body("openai")).encode())], replies)
    with Server(lambda number, path: next(given)) as server:
        asking = asker("async openai", server, Tokens(), registry)
        asking()
        headers = {"authorization": f"Bearer {sent(server)[0]}"}
        answer = registry.wrap(httpx.Client()).post(server.chat, json={"model": "m"}, headers=headers)
        del asking
    assert answer.status_code == 429
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


@pytest.mark.usefixtures("impatient")
def test_header_of_the_caller_is_never_replaced(registry: RateLimitRegistry) -> None:
    with Server(refused_first("openai")) as server:
        client = registry.wrap(openai.OpenAI(base_url=server.chat.removesuffix("/chat/completions"), api_key=Tokens()))
        headers = {"Authorization": "Bearer of-the-caller"}
        client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)  # type: ignore[arg-type]
    assert sent(server) == ["of-the-caller"] * 2


def jwt(ends: float) -> str:
    """An unsigned token that ends at an instant in seconds since 1970."""
    parts = [{"alg": "none"}, {"sub": "someone", "exp": ends}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts) + "."


def test_token_that_ends_in_the_queue_is_handed_back_for_another_try(registry: RateLimitRegistry) -> None:
    """The client of this header is not known. An answer that forbids another try would lose the call."""
    with Server(lambda number, path: (429, {**JSON, "retry-after": "300"}, b'{"error": {}}')) as server:
        client = registry.wrap(httpx.Client())
        headers = {"authorization": f"Bearer {jwt(time.time() + 0.5)}"}
        first = client.post(server.chat, json={"model": "m"}, headers=headers)
        other = client.post(
            server.chat, json={"model": "m"}, headers={"authorization": f"Bearer {jwt(time.time() + 0.5)}"}
        )
    assert (first.status_code, other.status_code) == (429, 429)
    assert "x-should-retry" not in first.headers
    assert "x-should-retry" not in other.headers
    assert other.headers["x-tidegate"] == "queue-deadline"
    assert "retry-after" not in other.headers, "the SDK comes back at once and waits in the queue"
    assert len(server.seen) == 1


def test_token_that_has_ended_before_is_left_to_the_provider(registry: RateLimitRegistry) -> None:
    with Server(lambda number, path: (401, JSON, b'{"error": {"code": "invalid_token"}}')) as server:
        client = registry.wrap(httpx.Client())
        headers = {"authorization": f"Bearer {jwt(time.time() - 60)}"}
        assert client.post(server.chat, json={"model": "m"}, headers=headers).status_code == 401
    assert len(server.seen) == 1


@pytest.mark.usefixtures("impatient")
def test_token_that_has_ended_before_waits_no_longer(registry: RateLimitRegistry) -> None:
    with Server(lambda number, path: (429, {**JSON, "retry-after": "300"}, b'{"error": {}}')) as server:
        client = registry.wrap(httpx.Client())
        for _ in range(2):
            headers = {"authorization": f"Bearer {jwt(time.time() - 60)}"}
            last = client.post(server.chat, json={"model": "m"}, headers=headers)
    assert (last.status_code, last.headers["x-tidegate"]) == (429, "queue-deadline")


def test_end_of_a_token_that_is_no_time_changes_no_answer(registry: RateLimitRegistry) -> None:
    with Server(lambda number, path: (400, JSON, b'{"error": {}}')) as server:
        headers = {"authorization": f"Bearer {jwt(10**400)}"}
        answer = registry.wrap(httpx.Client()).post(server.chat, json={"model": "m"}, headers=headers)
    assert answer.status_code == 400


@pytest.fixture
def replies() -> Iterator[Any]:
    fine = json.dumps(answer_body("openai")).encode()
    told = json.dumps({"error": {"message": "Unknown token.", "code": "invalid_token"}}).encode()
    return itertools.chain(
        [(429, {**JSON, "retry-after": "0.02"}, b'{"error": {}}'), (401, JSON, told)],
        itertools.repeat((200, JSON, fine)),
    )


@pytest.mark.usefixtures("impatient")
def test_rejection_of_a_call_that_waited_long_is_tried_again_by_the_sdk(
    registry: RateLimitRegistry, replies: Any
) -> None:
    """A token in a form of its own may have ended in the queue; the SDK writes what it has by then."""
    with Server(lambda number, path: next(replies)) as server:
        client = registry.wrap(openai.OpenAI(base_url=server.chat.removesuffix("/chat/completions"), api_key="opaque"))
        client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
    assert len(server.seen) == 3
    assert [key.rejected for key in registry.snapshot().keys.values()] == [""]


def opaque_call(kind: str, server: Server, registry: RateLimitRegistry) -> Callable[[], Any]:
    """Return a function that makes one call with a token in a form of its own."""
    url, how = server.chat.removesuffix("/v1/chat/completions"), kind.startswith("async ")
    client: Any = {
        "openai": partial(openai.OpenAI, api_key="opaque", base_url=f"{url}/v1", max_retries=5),
        "async openai": partial(openai.AsyncOpenAI, api_key="opaque", base_url=f"{url}/v1", max_retries=5),
        "anthropic": partial(anthropic.Anthropic, auth_token="opaque", base_url=url, max_retries=5),
        "async anthropic": partial(anthropic.AsyncAnthropic, auth_token="opaque", base_url=url, max_retries=5),
    }[kind]()
    # The SDK's own pauses are no part of this.
    client._calculate_retry_timeout = lambda *args: 0.0
    registry.wrap(client)

    async def awaited() -> Any:
        return await ask()

    def ask() -> Any:
        if kind.endswith("openai"):
            return client.chat.completions.create(model="m", messages=MESSAGES)
        return client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    return lambda: asyncio.run(awaited()) if how else ask()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["openai", "async openai", "anthropic", "async anthropic"])
def test_rejection_goes_back_for_another_try_once_a_call(kind: str, registry: RateLimitRegistry) -> None:
    slow, told = {**JSON, "retry-after": "0.02"}, b'{"error": {"message": "Unknown.", "code": "invalid_token"}}'
    replies = [(429, slow, b"{}"), (401, JSON, told)] * 4

    def reply(number: int, path: str) -> Any:
        # More requests than the right ones are told so at once, as each refusal makes the next wait longer.
        return replies[number - 1] if number <= len(replies) else (400, JSON, b"{}")

    with Server(reply) as server:
        ask = opaque_call(kind, server, registry)
        for _ in range(2):
            with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
                ask()
    assert [each["x-stainless-retry-count"] for each in server.headers] == ["0", "0", "1", "1"] * 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["openai", "async anthropic"])
def test_rejection_of_a_later_try_goes_back_once_too(kind: str, registry: RateLimitRegistry) -> None:
    """The SDK repeated the call for another reason before, so its token had no chance yet."""
    told = b'{"error": {"message": "Unknown.", "code": "invalid_token"}}'
    fine = json.dumps(answer_body("openai" if kind == "openai" else "anthropic")).encode()
    slow = (429, {**JSON, "retry-after": "0.02"}, b"{}")
    replies = itertools.chain([(500, JSON, b"{}"), slow, (401, JSON, told)], itertools.repeat((200, JSON, fine)))
    with Server(lambda number, path: next(replies)) as server:
        opaque_call(kind, server, registry)()
    assert len(server.seen) == 4


def own_loop(kind: str, server: Server, registry: RateLimitRegistry, rounds: int = 9) -> list[int]:
    """Ask with a new token each time until no 429 comes, as a program with its own loop; return the statuses."""
    statuses: list[int] = []
    client: Any
    while len(statuses) < rounds and statuses[-1:] in ([], [429]):
        token = f"token-{len(statuses)}"
        if kind == "openai":
            client = openai.OpenAI(base_url=server.chat.removesuffix("/chat/completions"), api_key=token, max_retries=0)
            registry.wrap(client)
            try:
                client.chat.completions.create(model="m", messages=MESSAGES)
                statuses.append(200)
            except openai.APIStatusError as error:
                statuses.append(error.status_code)
        else:
            client = registry.wrap(requests.Session() if kind == "requests" else httpx.Client())
            headers = {"authorization": f"Bearer {token}"}
            statuses.append(client.post(server.chat, json={"model": "m"}, headers=headers).status_code)
    return statuses


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["requests", "httpx", "openai"])
def test_rejection_after_a_long_wait_goes_back_as_a_429_to_a_program_that_repeats_those(
    kind: str, registry: RateLimitRegistry, replies: Any
) -> None:
    with Server(lambda number, path: next(replies)) as server:
        assert own_loop(kind, server, registry) == [429, 200]
    assert sent(server) == ["token-0", "token-0", "token-1"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["requests", "httpx"])
def test_second_rejection_of_one_token_reaches_the_program(kind: str, registry: RateLimitRegistry) -> None:
    slow, told = {**JSON, "retry-after": "0.02"}, b'{"error": {"message": "Unknown.", "code": "invalid_token"}}'
    replies = itertools.cycle([(429, slow, b"{}"), (401, JSON, told)])
    with Server(lambda number, path: next(replies)) as server:
        client: Any = registry.wrap(requests.Session() if kind == "requests" else httpx.Client())
        headers = {"authorization": "Bearer opaque"}
        answers = [client.post(server.chat, json={"model": "m"}, headers=headers) for _ in range(4)]
    assert [each.status_code for each in answers] == [429, 401] * 2
    assert "x-should-retry" not in answers[0].headers
    assert "401" in answers[0].json()["error"]["message"]
    assert answers[1].json() == json.loads(told)


@pytest.mark.usefixtures("impatient")
def test_streams_of_a_token_that_aged_get_a_429_and_keep_no_connection(
    registry: RateLimitRegistry, replies: Any
) -> None:
    """The rest of a body that nobody will read would occupy the only connection."""
    long = b'{"error": {"code": "invalid_token", "message": "' + b"x" * 300_000 + b'"}}'
    given = [next(replies), (next(replies)[0], JSON, long)]
    with Server(lambda number, path: given[number - 1] if number < 3 else next(replies)) as server:
        client = registry.wrap(httpx.Client(limits=httpx.Limits(max_connections=1), timeout=5.0))
        headers = {"authorization": "Bearer opaque"}
        request = client.build_request("POST", server.chat, json={"model": "m", "stream": True}, headers=headers)
        assert client.send(request, stream=True).status_code == 429
        assert client.post(server.chat, json={"model": "m"}, headers=headers).status_code == 200


def test_rejection_of_a_call_that_hardly_waited_is_final(registry: RateLimitRegistry, replies: Any) -> None:
    with Server(lambda number, path: next(replies)) as server:
        client = registry.wrap(openai.OpenAI(base_url=server.chat.removesuffix("/chat/completions"), api_key="opaque"))
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
    assert len(server.seen) == 2


def test_body_that_cannot_be_read_twice_is_refused_where_its_token_ends(registry: RateLimitRegistry) -> None:
    refused = (429, {**JSON, "retry-after": "1"}, b'{"error": {"code": "rate_limit_exceeded"}}')
    with Server(lambda number, path: refused) as server:
        client = registry.wrap(httpx.Client())
        url = server.chat.replace("chat/completions", "audio/transcriptions")
        headers = {"authorization": f"Bearer {jwt(time.time() + 3)}"}
        for _ in range(2):
            answer = client.post(url, files={"file": ("a.wav", b"x")}, data={"model": "whisper"}, headers=headers)
            assert answer.status_code == 429
