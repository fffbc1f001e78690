"""A given-up call says how long it waited, for what and why, on the own error of each further SDK."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import replicate
from google import genai
from google.genai import _api_client

import tidegate
from tests.bedrock import ASK, client_of
from tests.other_sdks.giving import RepeatedQuestion, one
from tests.other_sdks.kinds import KINDS
from tests.transports.answering import Reply, Server
from tidegate.admission.registry import RateLimitRegistry

# Of google-genai's own session class.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

WRONG = b'{"error": {"message": "no such model"}}'


def refused(number: int, path: str) -> Reply:
    return (
        429,
        {"retry-after": "600", "content-type": "application/json"},
        b'{"error": {"message": "Rate limit reached", "code": 429}}',
    )


def base(server: Server) -> str:
    return server.chat.removesuffix("/v1/chat/completions")


def notes(wrap: Callable[[Any], Any], make: Callable[[], Any], ask: Callable[[Any], RepeatedQuestion]) -> list[str]:
    """The notes of two calls by a client each: the provider refuses the first one, the second one is never sent."""
    found = []
    for _ in range(2):
        error = one(ask(wrap(make())))
        assert isinstance(error, Exception), error
        found += getattr(error, "__notes__", ["none"])
    return found


def check(found: list[str], server: Server) -> None:
    assert len(server.seen) == 1
    assert len(found) == 2
    for note in found:
        assert note.startswith("tidegate: call to "), found
        assert re.search(r"it waited \d\S* s of max_wait = 5 s; paused: provider asks for 10:00, next try", note), found


@pytest.mark.parametrize("name", KINDS)
def test_own_error_of_each_sdk_has_a_note(name: str, registry: RateLimitRegistry) -> None:
    kind = KINDS[name]
    with Server(refused) as server:
        check(notes(lambda c: registry.wrap(c, max_wait=5.0), lambda: kind.make(base(server)), kind.asking), server)


@pytest.mark.parametrize("name", KINDS)
def test_error_that_the_provider_ended_has_no_note(name: str, registry: RateLimitRegistry) -> None:
    kind = KINDS[name]
    with Server(lambda number, path: (404, {"content-type": "application/json"}, WRONG)) as server:
        error = one(kind.asking(registry.wrap(kind.make(base(server)), max_wait=5.0)))
    assert isinstance(error, Exception)
    assert not hasattr(error, "__notes__")


def gemini(way: str, client: genai.Client) -> RepeatedQuestion:
    question: dict[str, Any] = {"model": "gemini-3", "contents": "How high?"}
    if way == "sync":
        return RepeatedQuestion(lambda: client.models.generate_content(**question), client.close)

    async def ask() -> Any:
        return await client.aio.models.generate_content(**question)

    return RepeatedQuestion(ask, client.aio.aclose)


def interaction(way: str, client: genai.Client) -> RepeatedQuestion:
    question: dict[str, Any] = {"model": "gemini-3", "input": "How high?"}
    if way == "sync":
        return RepeatedQuestion(lambda: client.interactions.create(**question), client.close)

    async def ask() -> Any:
        return await client.aio.interactions.create(**question)

    return RepeatedQuestion(ask, client.aio.aclose)


@pytest.mark.parametrize("ask", [gemini, interaction])
@pytest.mark.parametrize("way", ["sync", "per loop", "aiohttp"])
def test_own_error_of_google_genai_has_a_note(
    way: str, ask: Any, registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_api_client, "has_aiohttp", way == "aiohttp")
    with Server(refused) as server:

        def make() -> genai.Client:
            return genai.Client(api_key="k", http_options={"base_url": base(server)})

        check(notes(lambda c: registry.wrap(c, max_wait=5.0), make, lambda c: ask(way, c)), server)


def test_client_error_of_botocore_has_a_note_and_headers(registry: RateLimitRegistry) -> None:
    with Server(refused) as server, client_of(base(server)) as client:
        asking = RepeatedQuestion(lambda: client.converse(**ASK), lambda: None)
        errors: list[Any] = []
        check(notes(lambda c: registry.wrap(c, max_wait=5.0), lambda: client, lambda c: asking), server)
        errors = [one(asking)]
    metadata = errors[0].response["ResponseMetadata"]
    assert metadata["HTTPHeaders"]["x-tidegate-reason"] == errors[0].__notes__[0].replace(" · ", ", ")
    assert type(errors[0]).__name__ == "ThrottlingException"


def test_error_of_replicate_has_a_note(registry: RateLimitRegistry) -> None:
    def ask(client: Any) -> RepeatedQuestion:
        return RepeatedQuestion(lambda: client.predictions.create(version="v", input={}), client._client.close)

    with Server(refused) as server:
        make = lambda: replicate.Client(api_token="k", base_url=base(server))  # noqa: E731
        check(notes(lambda c: registry.wrap(c, max_wait=5.0), make, ask), server)


def test_uninstalling_restores_the_constructors_of_errors() -> None:
    import botocore.exceptions
    import cohere.core.api_error

    classes: list[Any] = [cohere.core.api_error.ApiError, botocore.exceptions.ClientError]
    tidegate.install()
    assert all(hasattr(cls.__init__, "__wrapped__") for cls in classes)
    tidegate.uninstall()
    assert not any(hasattr(cls.__init__, "__wrapped__") for cls in classes)
