"""A given-up call says how long it waited, for what and why, on the SDK's own error and in its answer's headers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

import tidegate
from tests.transports.answering import BODY, Reply, Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.patches import Patches
from tidegate.transports.sdk_hooks import noted

WHY = re.compile(r"it waited \d\S* s of max_wait = 5 s; paused: provider asks for 10:00, next try in (2:00|1:\d\d)$")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def refused(number: int, path: str) -> Reply:
    return (
        429,
        {"retry-after": "600", "content-type": "application/json"},
        b'{"error": {"message": "Rate limit reached"}}',
    )


def ask_openai(url: str) -> Any:
    client = tidegate.wrap(openai.OpenAI(base_url=url, api_key="k"), max_wait=5.0)
    return client.chat.completions.create(model="m", messages=MESSAGES)


def ask_anthropic(url: str) -> Any:
    client = tidegate.wrap(anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="k"), max_wait=5.0)
    return client.messages.create(model="m", messages=MESSAGES, max_tokens=9)


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_sdks_own_error_has_a_note_also_where_an_answer_was_received(ask: Callable[[str], Any]) -> None:
    with Server(refused) as server:
        url = server.chat.removesuffix("/chat/completions")
        notes = []
        for _ in range(2):
            with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as caught:
                ask(url)
            (note,) = caught.value.__notes__
            notes.append(note)
            assert caught.value.response.headers["x-tidegate-reason"] == note
    assert len(server.seen) == 1
    # The first one was refused by the provider; the second one was never sent.
    assert all(note.startswith("tidegate: call to ") for note in notes), notes
    assert WHY.search(notes[0]), notes
    assert "provider asks for 10:00, next try in" in notes[1]


def test_error_of_a_call_that_the_provider_ended_has_no_note() -> None:
    wrong = b'{"error": {"message": "no such model"}}'
    with Server(lambda number, path: (400, {}, wrong)) as server, pytest.raises(openai.BadRequestError) as caught:
        ask_openai(server.chat.removesuffix("/chat/completions"))
    assert not hasattr(caught.value, "__notes__")
    assert "x-tidegate-reason" not in caught.value.response.headers


@pytest.mark.parametrize("make", [httpx.Client, requests.Session])
def test_answer_of_a_bare_client_has_headers(make: Callable[[], Any]) -> None:
    with Server(refused) as server, tidegate.wrap(make(), max_wait=5.0) as client:
        answers = [client.post(server.chat, json=BODY) for _ in range(2)]
    assert answers[0].json()["error"]["message"] == "Rate limit reached"
    for answer in answers:
        assert answer.status_code == 429
        assert float(answer.headers["x-tidegate-waited"]) >= 0.0
        assert answer.headers["x-tidegate-gate"] == "pause"
        assert "provider asks for 10:00" in answer.headers["x-tidegate-reason"]


@pytest.mark.parametrize("max_wait", [0.0, 5.0])
@pytest.mark.parametrize("make", [httpx.Client, requests.Session])
def test_own_answer_of_a_call_that_is_not_sent_says_when_to_come_back(make: Callable[[], Any], max_wait: float) -> None:
    with Server(refused) as server, tidegate.wrap(make(), max_wait=max_wait) as client:
        first, second = [client.post(server.chat, json=BODY) for _ in range(2)]
        assert len(server.seen) == 1
    assert first.json()["error"]["message"] == "Rate limit reached"
    assert (second.status_code, second.headers["x-tidegate"]) == (429, "queue-deadline")
    assert 1 <= int(second.headers["retry-after"]) <= 600


class Refused(Exception):
    """A refusal of a function's own."""


def test_exception_of_a_function_has_a_note(registry: RateLimitRegistry) -> None:
    def call() -> None:
        raise Refused

    with pytest.raises(Refused) as caught:
        registry.execute(
            "service",
            call,
            is_rate_limited=lambda result, error: isinstance(error, Refused),
            get_retry_after=lambda result, error: 600.0,
            max_wait=5.0,
        )
    (note,) = caught.value.__notes__
    assert WHY.search(note), note


@dataclass(frozen=True)
class Unchangeable(Exception):
    """An error that takes no note."""

    status: int = 429


def test_exception_that_takes_no_note_is_raised_as_it_is(registry: RateLimitRegistry) -> None:
    refusal = Unchangeable()

    def call() -> None:
        raise refusal

    with pytest.raises(Unchangeable) as caught:
        registry.execute(
            "service",
            call,
            is_rate_limited=lambda result, error: error is not None,
            get_retry_after=lambda result, error: 600.0,
            max_wait=5.0,
        )
    assert caught.value is refusal


def test_hook_of_a_version_without_the_error_does_nothing() -> None:
    patches = Patches()
    noted("ResponseError", "__init__")(patches, ModuleType("ollama._types"))
    assert not patches.on


def test_error_that_is_raised_while_another_sdk_fails_has_no_note_of_that_call() -> None:
    class ResponseError(Exception):
        def __init__(self, error: str) -> None:
            super().__init__(error)

    module = ModuleType("ollama._types")
    module.ResponseError = ResponseError  # type: ignore[attr-defined]
    patches = Patches()
    noted("ResponseError", "__init__")(patches, module)
    answer = httpx.Response(
        429, request=httpx.Request("POST", "http://p.test"), headers={"x-tidegate-reason": "waited"}
    )
    for handled, notes in (
        (openai.RateLimitError("refused", response=answer, body=None), []),
        (httpx.HTTPStatusError("refused", request=answer.request, response=answer), ["waited"]),
    ):
        try:
            raise handled
        except (openai.RateLimitError, httpx.HTTPStatusError):
            error = ResponseError("no such model")
        assert getattr(error, "__notes__", []) == notes
    patches.remove()
