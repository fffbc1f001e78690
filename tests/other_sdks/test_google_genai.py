"""google-genai's clients: over httpx2, with one HTTP client a loop, and over aiohttp; Gemini, Vertex, interactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google import genai
from google.genai import _api_client, errors
from google.genai._gaos.utils import retries

import tidegate
from tests.other_sdks.giving import (
    ONCE,
    TIGHT,
    RepeatedQuestion,
    at_rest,
    giving_up,
    hurried,
    one,
    refusals,
    spend,
    tallied,
    together,
)
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Fault, Limit, Scenario, Simulator

EAGER = {"attempts": 5, "initial_delay": 0.001, "max_delay": 0.001, "jitter": 0.0}
"""Retry options that ask for five attempts at once."""

# Of google-genai's own session class.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
    pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.2),
]

WAYS = ("sync", "per loop", "aiohttp")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a client sends: by httpx2, by httpx2 with a client for each loop, by aiohttp."""
    monkeypatch.setattr(_api_client, "has_aiohttp", request.param == "aiohttp")
    return request.param


@pytest.fixture(params=["wrapped", "installed"])
def govern(request: pytest.FixtureRequest) -> Iterator[Callable[[RateLimitRegistry, Any], None]]:

    def apply(registry: RateLimitRegistry, client: Any) -> None:
        if request.param == "wrapped":
            assert registry.wrap(client) is client
        else:
            tidegate.install(registry)

    yield apply
    tidegate.uninstall()


def make(provider: Simulator, **options: Any) -> genai.Client:
    return genai.Client(api_key="k-a-secret", http_options={"base_url": provider.gemini_url, **options})


def asking(way: str, client: genai.Client, **config: Any) -> RepeatedQuestion:
    """A question about the tide to a client that sends this way."""
    question: dict[str, Any] = {"model": "gemini-3", "contents": "How high?", "config": config or None}
    if way == "sync":
        return RepeatedQuestion(lambda: client.models.generate_content(**question).text, client.close)

    async def ask() -> Any:
        return (await client.aio.models.generate_content(**question)).text

    return RepeatedQuestion(ask, client.aio.aclose)


def interacting(way: str, client: genai.Client) -> RepeatedQuestion:
    question = {"model": "gemini-3", "input": "How high?"}
    if way == "sync":
        return RepeatedQuestion(lambda: client.interactions.create(**question).output_text, client.close)

    async def ask() -> Any:
        return (await client.aio.interactions.create(**question)).output_text

    return RepeatedQuestion(ask, client.aio.aclose)


def test_refused_calls_are_answered_after_all_each_attempt_under_one_permit(way: str, govern: Any) -> None:
    registry = hurried()
    with Simulator(TIGHT) as provider:
        client = make(provider)
        govern(registry, client)
        assert together(asking(way, client), 8) == ["You said: How high?"] * 8
        assert provider.truth().total.answered == 8
        assert provider.truth().total.received == 11
        attempts, received = tallied(registry, provider)
    assert attempts == received
    assert at_rest(registry)


@pytest.mark.parametrize("options", ["of the client", "of the request", "none"])
def test_a_call_that_was_given_up_on_is_one_request_and_googles_own_error(way: str, govern: Any, options: str) -> None:
    with Simulator(ONCE) as provider:
        spend(provider)
        client = make(provider, **({"retry_options": EAGER} if options == "of the client" else {}))
        config = {"http_options": {"retry_options": EAGER}} if options == "of the request" else {}
        registry = giving_up()
        govern(registry, client)
        error = one(asking(way, client, **config))
        assert (registry.snapshot().attempts, refusals(provider)) == (1, 1)
    assert type(error) is errors.ClientError
    assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED")
    assert "You exceeded your current quota" in error.message
    assert [" given up: it waited " in each for each in error.__notes__] == [True]


def test_a_call_that_was_never_sent_is_googles_own_error_too(way: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    with Simulator() as provider:
        assert one(asking(way, registry.wrap(make(provider)))) == "You said: How high?"
        (key,) = registry.snapshot().keys
        assert registry.try_admit(key)
        error = one(asking(way, registry.wrap(make(provider, retry_options=EAGER), max_wait=0.05)))
        assert provider.truth().total.received == 1
    assert type(error) is errors.ClientError
    assert "max_wait" in error.message


def test_a_transient_failure_stays_googles_to_repeat_each_time_through_the_queue(way: str, govern: Any) -> None:
    registry = hurried()
    with Simulator(Scenario(faults=(Fault(kind="status", nth=(1, 2), status=500),))) as provider:
        client = make(provider, retry_options=EAGER)
        govern(registry, client)
        assert one(asking(way, client)) == "You said: How high?"
        assert tallied(registry, provider) == (3, 3)


def test_a_stream_holds_its_slot_to_its_end(way: str, govern: Any) -> None:
    registry = hurried()
    question = {"model": "gemini-3", "contents": "How high?"}
    held: list[int] = []

    def seen(chunk: Any) -> str:
        held.append(registry.snapshot().in_flight)
        return chunk.text

    def sync(client: genai.Client) -> list[str]:
        return [seen(chunk) for chunk in client.models.generate_content_stream(**question)]

    async def on_loop(client: genai.Client) -> list[str]:
        async with client.aio as aio:
            return [seen(chunk) async for chunk in await aio.models.generate_content_stream(**question)]

    with Simulator(Scenario(token_pace=0.02)) as provider:
        client = make(provider)
        govern(registry, client)
        texts = sync(client) if way == "sync" else asyncio.run(on_loop(client))
        assert tallied(registry, provider) == (1, 1)
    assert "".join(texts) == "You said: How high?"
    assert held[0] == 1
    assert at_rest(registry)


def test_an_error_in_the_middle_of_a_stream_counts_as_a_refusal(way: str, govern: Any) -> None:
    registry = hurried()
    question = {"model": "gemini-3", "contents": "How high?"}

    def sync(client: genai.Client) -> None:
        list(client.models.generate_content_stream(**question))

    async def on_loop(client: genai.Client) -> None:
        async with client.aio as aio:
            async for _ in await aio.models.generate_content_stream(**question):
                pass

    with Simulator(Scenario(faults=(Fault(kind="stream-error", nth=(1,)),), token_pace=0.02)) as provider:
        client = make(provider)
        govern(registry, client)
        read = (lambda: sync(client)) if way == "sync" else (lambda: asyncio.run(on_loop(client)))
        with pytest.raises(errors.APIError, match="overloaded"):
            read()
    (key,) = registry.snapshot().keys.values()
    assert (key.answered, key.refused) == (0, 1)


@pytest.mark.parametrize("way", ["sync", "per loop"])
def test_an_interaction_is_governed_and_given_up_on_with_one_request(
    way: str, govern: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1")
    with Simulator(ONCE) as provider:
        spend(provider)
        client = make(provider, retry_options=EAGER)
        registry = giving_up()
        govern(registry, client)
        error = one(interacting(way, client))
        assert (registry.snapshot().attempts, refusals(provider)) == (1, 1)
    assert "You exceeded your current quota" in str(error)


@pytest.mark.parametrize("way", ["sync", "per loop"])
def test_refused_interactions_are_answered_after_all(way: str) -> None:
    registry = hurried()
    with Simulator(TIGHT) as provider:
        client = registry.wrap(make(provider))
        assert together(interacting(way, client), 6) == ["You said: How high?"] * 6
        attempts, received = tallied(registry, provider)
    assert attempts == received


def test_interactions_and_generations_of_a_model_share_its_key() -> None:
    registry = hurried()
    with Simulator() as provider:
        assert one(asking("sync", registry.wrap(make(provider)))) == "You said: How high?"
        assert one(interacting("sync", registry.wrap(make(provider)))) == "You said: How high?"
    (key,) = registry.snapshot().keys
    assert (key.provider, key.scope) == ("gemini-compatible", "gemini-3")


def test_embeddings_are_governed_and_counting_tokens_is_not() -> None:
    registry = hurried()
    with Simulator() as provider:
        client = registry.wrap(make(provider))
        embedded = client.models.embed_content(model="gemini-embedding-001", contents=["ebb", "flow"])
        assert client.models.count_tokens(model="gemini-3", contents="How high?").total_tokens == 3
    assert len(embedded.embeddings) == 2
    (key,) = registry.snapshot().keys.values()
    assert (key.key.scope, key.attempts) == ("gemini-embedding-001", 1)


def test_a_client_of_vertex_is_governed_by_vertexs_table() -> None:
    registry = hurried()
    with Simulator(Scenario(limiters=(Limit(limit=3, window=0.3),), headers=False)) as provider:
        options = {"base_url": provider.gemini_url}
        client = registry.wrap(genai.Client(vertexai=True, api_key="k", http_options=options))
        assert together(asking("sync", client), 6) == ["You said: How high?"] * 6
    (key,) = registry.snapshot().keys
    assert (key.provider, key.scope) == ("vertex-compatible", "gemini-3")


def test_a_client_that_was_not_wrapped_passes_beside_one_that_was(way: str) -> None:
    registry = hurried()
    with Simulator() as provider:
        registry.wrap(make(provider))
        assert one(asking(way, make(provider))) == "You said: How high?"
    assert registry.snapshot().attempts == 0


def test_the_asynchronous_side_of_a_client_can_be_wrapped_too(way: str) -> None:
    registry = hurried()
    with Simulator() as provider:
        client = make(provider)
        assert registry.wrap(client.aio) is client.aio
        assert one(asking(way, client)) == "You said: How high?"
        assert tallied(registry, provider) == (1, 1)


def test_a_key_of_google_without_a_free_tier_is_told_at_once(registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(limiters=(Limit(kind="credit", limit=0),))) as provider:
        error = one(asking("sync", registry.wrap(make(provider, retry_options=EAGER))))
        assert tallied(registry, provider) == (1, 1)
    assert type(error) is errors.ClientError


def test_uninstalling_takes_every_function_of_googles_back() -> None:
    names = ("_request", "_request_once", "_async_request", "_async_request_once")
    loops = ("retry_with_backoff", "retry_with_attempt_count_backoff_async")

    def wrapped() -> list[bool]:
        functions = [_api_client.BaseApiClient.__dict__[name] for name in names]
        functions += [_api_client._PerLoopAsyncClientMixin.__dict__["send"]]
        functions += [getattr(retries, name) for name in loops]
        return [hasattr(function, "__wrapped__") for function in functions]

    tidegate.install()
    assert all(wrapped())
    tidegate.uninstall()
    assert not any(wrapped())
