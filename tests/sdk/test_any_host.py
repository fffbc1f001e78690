"""Hosts that `install` governs: any host for known SDKs, named and private ones for bare clients."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate
from tests.names import named, resolve_to_loopback
from tests.sdk.asking import KINDS, OPENAI_3, ask, failures, http_of, make, mocked, only
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.providers import BASE_URL_VARIABLES
from tidegate.testing import Limit, Scenario, Simulator

http = importlib.import_module("httpx2" if OPENAI_3 else "httpx")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TIGHT = Scenario(limiters=(Limit(limit=5, window=1.0),))


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to_loopback(monkeypatch)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts of calls that were told as not governed."""
    hosts: list[str] = []
    monkeypatch.setattr(hooks, "on_ungoverned", hosts.append)
    return hosts


@pytest.fixture
def installed() -> Iterator[RateLimitRegistry]:
    registry = RateLimitRegistry(tidegate.Settings(max_wait=60.0))
    tidegate.install(registry)
    yield registry
    tidegate.uninstall()


def keys(registry: RateLimitRegistry) -> list[str]:
    return sorted(f"{key.provider} {key.base_url.split('//')[1]}" for key in registry.snapshot().keys)


@pytest.mark.parametrize("kind", KINDS)
def test_install_known_sdk_on_an_unknown_host_is_governed(kind: str, installed: Any, passed: list[str]) -> None:
    with Simulator(TIGHT) as provider:
        client = make(kind, named(provider.url, "api.gateway.test"), max_retries=0)
        assert failures(ask(kind, client, 8)) == []
        assert only(installed).attempts == provider.truth().total.received
    (key,) = installed.snapshot().keys
    assert key.provider == ("compatible" if "openai" in kind else "anthropic-compatible")
    assert key.base_url.startswith("http://api.gateway.test:")
    assert key.credential
    assert passed == []


@pytest.mark.parametrize("kind", KINDS)
def test_install_gateway_with_a_path_prefix_is_a_key_of_its_own(kind: str, installed: Any) -> None:
    """Cloudflare's AI gateway, and whatever else mirrors a provider below a prefix, by account and gateway."""
    with Simulator(Scenario(limiters=(Limit(limit=100),))) as provider:
        for account in ("one", "two"):
            url = f"{named(provider.url, 'gateway.ai.test')}/v1/{account}/gw/{kind.removeprefix('async_')}"
            ask(kind, make(kind, url, max_retries=0), 1)
    prefixes = [key.base_url.partition("/v1/")[2].partition("/")[0] for key in installed.snapshot().keys]
    assert sorted(prefixes) == ["one", "two"]


def test_install_sdk_with_a_users_own_agent_is_governed(installed: Any) -> None:
    """A framework may replace the user agent of its SDK: what Stainless writes beside it stays."""
    with Simulator() as provider:
        for kind in ("openai", "anthropic"):
            client = make(
                kind, named(provider.url, "api.gateway.test"), default_headers={"User-Agent": "pydantic-ai/2.0"}
            )
            assert failures(ask(kind, client)) == []
    assert [key.provider for key in installed.snapshot().keys] == ["compatible", "anthropic-compatible"]


@pytest.mark.parametrize(
    "path", ["/v2/messages", "/messages", "/v1/conversations/7/messages", "/v1/forms/7/responses", "/v1/complete"]
)
def test_install_other_services_of_stainless_sdks_are_not_governed(
    path: str, installed: Any, passed: list[str]
) -> None:
    """Stainless generates the SDKs of many services that are no LLM, as Telnyx's, which sends an SMS so."""
    headers = {"user-agent": "Telnyx/Python 4.0.0", "x-stainless-lang": "python", "authorization": "Bearer k"}
    with Simulator() as provider, http.Client(headers=headers) as client:
        client.post(f"{named(provider.url, 'api.telnyx.test')}{path}", json={"to": "+15550100", "text": "hi"})
        assert installed.snapshot().keys == {}
        answer = client.post(f"{named(provider.url, 'api.cerebras.test')}/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200
    assert [key.provider for key in installed.snapshot().keys] == ["compatible"]
    assert passed == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/forms/7/responses"])
def test_install_other_services_on_private_names_are_not_governed(path: str, installed: Any, passed: list[str]) -> None:
    """Services of a user's own cluster: chats, mails and surveys."""
    with Simulator() as provider, http.Client() as client:
        client.post(f"{named(provider.url, 'mailer')}{path}", json={"to": "a", "text": "hi"})
    assert installed.snapshot().keys == {}
    assert passed == []


def test_install_bare_client_on_an_unknown_host_passes_and_is_told(installed: Any, passed: list[str]) -> None:
    with Simulator() as provider:
        url = named(provider.url, "api.gateway.test")
        with http.Client() as client:
            assert client.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 200
            client.post(f"{url}/v1/things", json=CHAT)
            client.post(f"{url}/channels/7/messages", json=CHAT)
            client.post(f"{url}/v1/messages", json=CHAT)
            client.post(f"{url}/surveys/responses", json=CHAT)
            client.get(f"{url}/v1/models")
    assert installed.snapshot().keys == {}
    assert passed == ["api.gateway.test"]


@pytest.mark.parametrize(
    "host",
    [
        "vllm",
        "gpu01.local",
        "llm.corp.internal",
        "host.docker.internal",
        "vllm.models.svc",
        "vllm.models.svc.cluster.local",
        "nas.lan",
        "nas.home.arpa",
        "VLLM",
    ],
)
def test_install_private_name_is_governed_for_bare_clients(host: str, installed: Any, passed: list[str]) -> None:
    with Simulator() as provider:
        url = named(provider.url, host)
        with http.Client() as client:
            assert client.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 200
            # Services of other kinds have such paths, on names as private.
            for path in ("surveys/responses", "chat/7/messages", "embed", "generate", "v1/models"):
                client.post(f"{url}/{path}", json=CHAT)
    assert only(installed).attempts == 1
    assert passed == []


@pytest.mark.parametrize("host", ["example.com", "llm.example.test", "local", "internal.example.org", "8.8.8.8"])
def test_install_public_name_is_not_governed_for_bare_clients(host: str, installed: Any) -> None:
    with Simulator() as provider, http.Client() as client:
        client.post(f"{named(provider.url, host)}/v1/chat/completions", json=CHAT)
    assert len(installed.snapshot().keys) == (host == "local")


class Application:
    """An ASGI application under test that refuses everything, and has an HTTP client of its own."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        self.upstream = http.HTTPTransport()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.answered.append(429)
        await send({"type": "http.response.start", "status": 429, "headers": [(b"retry-after", b"30")]})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize("url", ["http://testserver", "http://test", "http://api.gateway.test", "http://app.local"])
def test_install_applications_under_test_are_not_governed_by_name(url: str, installed: Any, passed: list[str]) -> None:
    """The test of a user's own server sees each of its refusals, through a bare client and through an SDK."""
    application = Application()

    async def main() -> list[int]:
        transport = http.ASGITransport(app=application)
        async with http.AsyncClient(transport=transport) as client:
            bare = [(await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code for _ in range(3)]
            sdk = make("async_openai", url, http_client=client, max_retries=0)
            with pytest.raises(Exception, match="429"):
                await sdk.chat.completions.create(**CHAT)
        return bare

    assert asyncio.run(main()) == [429, 429, 429]
    assert application.answered == [429] * 4
    assert installed.snapshot().keys == {}
    assert passed == []


@pytest.mark.parametrize("kind", KINDS)
def test_install_sdk_over_a_mock_transport_is_not_governed_by_its_mark(kind: str, installed: Any) -> None:
    module = http_of(kind)
    calls: list[Any] = []

    def handler(request: Any) -> Any:
        calls.append(request)
        return module.Response(429, headers={"retry-after": "0"}, json={"error": {"message": "slow"}})

    results = ask(kind, mocked(kind, handler, max_retries=1), 3)
    assert len(failures(results)) == 3
    assert len(calls) == 6
    assert installed.snapshot().keys == {}


def test_install_sdk_over_a_hand_written_transport_is_not_governed_by_its_mark(installed: Any) -> None:
    module = http_of("openai")

    class Fake(module.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            return module.Response(429, json={})

    client = make("openai", "http://vllm", http_client=module.Client(transport=Fake()), max_retries=0)
    assert len(failures(ask("openai", client))) == 1
    assert installed.snapshot().keys == {}


def test_install_sdk_over_a_transport_around_the_network_is_governed(installed: Any) -> None:
    module = http_of("openai")

    class Logging(module.BaseTransport):
        def __init__(self) -> None:
            self.wrapped = module.HTTPTransport()

        def handle_request(self, request: Any) -> Any:
            return self.wrapped.handle_request(request)

        def close(self) -> None:
            self.wrapped.close()

    with Simulator() as provider:
        url = named(provider.url, "api.gateway.test")
        client = make("openai", url, http_client=module.Client(transport=Logging()), max_retries=0)
        assert failures(ask("openai", client)) == []
    assert only(installed).attempts == 1


@pytest.mark.parametrize("url", ["http://testserver", "https://api.gateway.test"])
def test_install_respx_on_any_host_is_not_governed(url: str, installed: Any) -> None:
    httpx = importlib.import_module("httpx")
    respx = importlib.import_module("respx")
    headers = {"x-stainless-lang": "python", "user-agent": "OpenAI/Python 2.54.0"}
    for using in ("httpcore", "httpx"):
        with respx.mock(using=using) as router:
            route = router.post(f"{url}/v1/chat/completions").respond(429, headers={"retry-after": "30"})
            answers = [httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [429] * 3
        assert route.call_count == 3
    assert installed.snapshot().keys == {}


@pytest.mark.parametrize("row", BASE_URL_VARIABLES, ids=lambda row: row.name)
def test_install_host_of_each_base_url_variable_is_governed(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before or after `install`, and after a first call that it would have governed."""
    path = PATHS.get(row.family, "/v1/chat/completions")
    for when in ("before", "after", "late"):
        monkeypatch.delenv(row.name, raising=False)
        registry = RateLimitRegistry(tidegate.Settings())
        client = http.Client(transport=http.MockTransport(lambda request: http.Response(200, json={})))
        if when == "before":
            monkeypatch.setenv(row.name, "https://gateway.test/v1")
        tidegate.install(registry)
        if when == "late":
            client.post(f"https://gateway.test{path}", json=CHAT)
            assert registry.snapshot().keys == {}
        monkeypatch.setenv(row.name, "https://gateway.test/v1")
        client.post(f"https://gateway.test{path}", json=CHAT)
        assert len(registry.snapshot().keys) == 1, when
        tidegate.uninstall()


PATHS = {
    "bedrock": "/model/m/converse",
    "gemini": "/v1beta/models/m:generateContent",
    "cohere": "/v2/chat",
    "ollama": "/api/chat",
    "replicate": "/v1/predictions",
}


def test_install_requests_mocks_on_private_names_are_not_governed(installed: Any, passed: list[str]) -> None:
    """requests-mock and the test clients of old frameworks: an adapter that answers by itself."""
    requests = importlib.import_module("requests")

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, request: Any, **options: Any) -> Any:
            response = requests.Response()
            response.status_code, response.request, response.url = 429, request, request.url
            response.headers["retry-after"] = "30"
            response.raw = importlib.import_module("io").BytesIO(b"{}")
            return response

    with requests.Session() as session:
        session.mount("http://testserver", Adapter())
        for agent in ("python-requests/2", "azsdk-python-ai-inference/1"):
            answer = session.post("http://testserver/v1/chat/completions", json=CHAT, headers={"user-agent": agent})
            assert answer.status_code == 429
    assert installed.snapshot().keys == {}
    assert passed == []


def test_install_requests_and_aiohttp_govern_private_names_and_marks(installed: Any, passed: list[str]) -> None:
    requests, aiohttp = importlib.import_module("requests"), importlib.import_module("aiohttp")

    async def main(url: str) -> int:
        async with aiohttp.ClientSession() as session:
            for host, agent in (("vllm", "bare"), ("api.gateway.test", "litellm/1.0"), ("api.gateway.test", "bare")):
                headers = {"User-Agent": agent}
                async with session.post(f"{named(url, host)}/v1/chat/completions", json=CHAT, headers=headers) as sent:
                    assert sent.status == 200
        return 3

    with Simulator() as provider:
        for host, agent in (("vllm", "bare"), ("api.gateway.test", "litellm/1.0"), ("api.gateway.test", "bare")):
            url = f"{named(provider.url, host)}/v1/chat/completions"
            assert requests.post(url, json=CHAT, headers={"User-Agent": agent}).status_code == 200
        assert asyncio.run(main(provider.url)) == 3
    assert installed.snapshot().attempts == 4
    assert passed == ["api.gateway.test"] * 2
