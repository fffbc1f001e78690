"""Accounts whose credentials an HTTP client adds only when it sends: two of them never share a key."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
from requests.auth import HTTPDigestAuth

from tests.transports.answering import BODY, Server, fine
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports import request_key as principals

CHAT = "https://provider.test/v1/chat/completions"


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def keys(registry: RateLimitRegistry) -> int:
    return len(registry.snapshot().keys)


def asked(module: ModuleType, registry: Any, *auths: Any, url: str = CHAT, **headers: str) -> list[str]:
    """The Authorization headers that one client of each auth object sends."""
    seen: list[str] = []

    def handler(request: Any) -> Any:
        seen.append(request.headers.get("authorization", ""))
        return module.Response(200, json={})

    for auth in auths:
        with registry.wrap(module.Client(auth=auth, transport=module.MockTransport(handler))) as client:
            client.post(url, json=BODY, headers=headers)
    return seen


def oauth(module: ModuleType) -> Any:
    class OAuth(module.Auth):  # type: ignore[name-defined, misc]
        """Fetches a token when it is first asked for one, and again after each call."""

        def __init__(self, account: str) -> None:
            self.provider = lambda: account
            self.flows = 0

        def auth_flow(self, request: Any) -> Iterator[Any]:
            self.flows += 1
            request.headers["authorization"] = f"Bearer {self.provider()}-{self.flows}"
            yield request

    return OAuth


def bearer(module: ModuleType) -> Any:
    class Bearer(module.Auth):  # type: ignore[name-defined, misc]
        def __init__(self, token: str) -> None:
            self.token = token

        def auth_flow(self, request: Any) -> Iterator[Any]:
            request.headers["authorization"] = f"Bearer {self.token}"
            yield request

    return Bearer


def test_two_auth_objects_never_share_a_key(module: ModuleType, registry: Any) -> None:
    first, second = oauth(module)("one"), oauth(module)("two")
    assert asked(module, registry, first, second) == ["Bearer one-1", "Bearer two-1"]
    assert keys(registry) == 2
    assert (first.flows, second.flows) == (1, 1), "the flow was run by nobody else"


def test_auth_object_keeps_its_key_while_its_token_is_refreshed(module: ModuleType, registry: Any) -> None:
    auth = oauth(module)("one")
    assert asked(module, registry, auth, auth, auth) == ["Bearer one-1", "Bearer one-2", "Bearer one-3"]
    assert keys(registry) == 1


@pytest.mark.parametrize(
    ("pair", "count"),
    [
        ((("user", "a"), ("user", "b")), 2),
        ((("user", "a"), ("user", "a")), 1),
        ((lambda request: request, lambda request: request), 2),
    ],
    ids=["two passwords", "one password", "two functions"],
)
def test_auths_of_the_library_are_known_by_value(
    module: ModuleType, registry: Any, pair: tuple[Any, Any], count: int
) -> None:
    asked(module, registry, *pair)
    assert keys(registry) == count


def test_digest_auths_of_two_accounts_have_two_keys(module: ModuleType, registry: Any) -> None:
    asked(module, registry, module.DigestAuth("user", "a"), module.DigestAuth("user", "b"))
    assert keys(registry) == 2


def test_new_auth_object_with_the_same_token_finds_its_key(module: ModuleType, registry: Any) -> None:
    kind = bearer(module)
    asked(module, registry, kind("a"), kind("a"), kind("b"))
    assert keys(registry) == 2


class Source:
    """Where tokens come from, as the credentials object of a cloud's SDK."""

    def __init__(self, token: str) -> None:
        self.token = token

    def fetch(self) -> str:
        return self.token


def sourced(module: ModuleType) -> Any:
    class Sourced(module.Auth):  # type: ignore[name-defined, misc]
        def __init__(self, source: Source, scope: str = "llm") -> None:
            self.source, self.fetch, self.scope = source, source.fetch, scope
            self.token: str | None = None

        def auth_flow(self, request: Any) -> Iterator[Any]:
            self.token = self.token or self.fetch()
            request.headers["authorization"] = f"Bearer {self.token}"
            yield request

    return Sourced


def test_new_auth_object_of_the_same_source_at_each_call_finds_its_key(module: ModuleType, registry: Any) -> None:
    kind, first, second = sourced(module), Source("one"), Source("two")
    asked(module, registry, *[kind(first) for _ in range(5)])
    assert keys(registry) == 1
    asked(module, registry, kind(second), kind(first, "other"))
    assert keys(registry) == 3


def test_new_auth_function_of_the_same_source_at_each_call_finds_its_key(module: ModuleType, registry: Any) -> None:
    def signing(source: Source) -> Any:
        def sign(request: Any) -> Any:
            request.headers["authorization"] = f"Bearer {source.fetch()}"
            return request

        return sign

    first, second = Source("one"), Source("two")
    assert asked(module, registry, *[signing(each) for each in (first, first, second)])[2] == "Bearer two"
    assert keys(registry) == 2


def test_auth_object_keeps_its_key_when_its_token_changes(module: ModuleType, registry: Any) -> None:
    auth, other = sourced(module)(Source("one")), bearer(module)("two")
    asked(module, registry, auth, auth, auth, other)
    other.token = "two-refreshed"
    asked(module, registry, other)
    assert keys(registry) == 2


def test_auth_of_one_request_separates_its_account(module: ModuleType, registry: Any) -> None:
    handler = module.MockTransport(lambda request: module.Response(200, json={}))
    with registry.wrap(module.Client(transport=handler)) as client:
        for password in ("a", "b", "a"):
            client.post(CHAT, json=BODY, auth=("user", password))
        client.post("https://user:c@provider.test/v1/chat/completions", json=BODY)
        client.post("https://user:d@provider.test/v1/chat/completions", json=BODY)
    assert keys(registry) == 4


def test_async_clients_with_auth_objects_have_a_key_each(module: ModuleType, registry: Any) -> None:
    async def main() -> None:
        handler = module.MockTransport(lambda request: module.Response(200, json={}))
        for name in ("one", "two"):
            async with registry.wrap(module.AsyncClient(auth=oauth(module)(name), transport=handler)) as client:
                await client.post(CHAT, json=BODY)
                await client.post(CHAT, json=BODY)

    asyncio.run(main())
    assert keys(registry) == 2


def test_sdk_over_clients_with_auth_objects_has_a_key_each(registry: Any) -> None:
    http: Any = httpx2 if int(openai.__version__.partition(".")[0]) >= 3 else httpx
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    handler = http.MockTransport(lambda request: http.Response(200, json=answer))
    for name in ("one", "two"):
        inner = http.Client(auth=oauth(http)(name), transport=handler)
        with registry.wrap(openai.OpenAI(api_key="unused", base_url=CHAT[:-17], http_client=inner)) as client:
            client.chat.completions.create(model="m", messages=[])
    assert keys(registry) == 2


def test_auth_object_is_not_kept_alive(module: ModuleType, registry: Any) -> None:
    before = len(principals._names)
    asked(module, registry, *(oauth(module)(str(number)) for number in range(20)))
    gc.collect()
    assert len(principals._names) <= before


def test_objects_without_weak_references_have_an_account_each() -> None:
    class Slotted:
        __slots__ = ("token",)

    held = [Slotted() for _ in range(20)]
    assert len({principals.account_of(each) for each in held * 2}) == len(held)


def test_requests_digest_auths_of_two_accounts_have_two_keys(registry: Any) -> None:
    with Server(fine) as server, registry.wrap(requests.Session()) as session:
        session.trust_env = False
        first, second = HTTPDigestAuth("user", "a"), HTTPDigestAuth("user", "b")
        for auth in (first, second, first):
            session.post(server.chat, json=BODY, auth=auth)
        for password in ("a", "b"):
            session.post(server.chat, json=BODY, auth=("user", password))
    assert keys(registry) == 4


def test_requests_session_of_google_keeps_its_key_over_a_refresh(registry: Any) -> None:
    class Credentials:
        def __init__(self, token: str) -> None:
            self.token, self.lock = token, object()

    class Authorized(requests.Session):
        """As `google.auth.transport.requests.AuthorizedSession`: a header from credentials that refresh themselves."""

        def __init__(self, credentials: Credentials) -> None:
            super().__init__()
            self.credentials, self.trust_env = credentials, False

        def ask(self, url: str) -> None:
            self.post(url, json=BODY, headers={"authorization": f"Bearer {self.credentials.token}"})

    with Server(fine) as server:
        for name in ("one", "two"):
            with registry.wrap(Authorized(Credentials(name))) as session:
                session.ask(server.chat)
                session.credentials.token = f"{name}-refreshed"
                session.ask(server.chat)
    assert keys(registry) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_aiohttp_credentials_of_two_accounts_have_two_keys(registry: Any) -> None:
    async def middleware(request: Any, handler: Any) -> Any:
        return await handler(request)

    async def another(request: Any, handler: Any) -> Any:
        return await handler(request)

    async def main(url: str) -> None:
        for options in (
            {"auth": aiohttp.BasicAuth("user", "a")},
            {"auth": aiohttp.BasicAuth("user", "b")},
            {"middlewares": (middleware,)},
            {"middlewares": (another,)},
        ):
            async with registry.wrap(aiohttp.ClientSession(**options)) as session:
                for _ in range(2):
                    async with session.post(url, json=BODY) as response:
                        assert response.status == 200
        async with registry.wrap(aiohttp.ClientSession()) as session:
            for name in ("c", "d", "c"):
                async with session.post(url.replace("//", f"//user:{name}@"), json=BODY) as response:
                    assert response.status == 200

    with Server(fine) as server:
        asyncio.run(main(server.chat))
    assert keys(registry) == 6


def token(**claims: Any) -> str:
    parts = [{"alg": "RS256"}, claims]
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "x"]
    )


def test_refreshed_web_token_keeps_its_key_and_another_subject_has_its_own(module: ModuleType, registry: Any) -> None:
    tokens = [
        token(iss="i", sub="one", exp=1, iat=0, jti="a"),
        token(iss="i", sub="one", exp=2, iat=1, jti="b"),
        token(iss="i", sub="two", exp=2, iat=1, jti="b"),
        token(iss="i", sub="one", exp=2, iat=1, org="other"),
        token(iss="i", exp=1),
        token(iss="i", exp=2),
        "eyJ.not.base64",
    ]
    for each in tokens:
        asked(module, registry, None, authorization=f"Bearer {each}")
    assert keys(registry) == 6
