"""Refusals inside good answers: the caller sees only the answer after them, whatever stack it sends through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest
import requests

import tidegate
from tests.transports.answering import ANSWER, BODY, Reply, Server, only
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Cause, Kind
from tidegate.providers import judge_event
from tidegate.providers.model_makers import MINIMAX

REFUSAL = json.dumps({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}).encode()
JSON = {"content-type": "application/json"}


def refused_at_first(number: int, path: str) -> Reply:
    return 200, JSON, REFUSAL if number == 1 else ANSWER


def streaming_refusal(number: int, path: str) -> Reply:
    return 200, {"content-type": "text/event-stream"}, b"data: " + REFUSAL + b"\n\n"


def by_httpx(registry: RateLimitRegistry, url: str) -> Any:
    with registry.wrap(httpx.Client()) as client:
        return client.post(url, json=BODY).json()


def by_requests(registry: RateLimitRegistry, url: str) -> Any:
    with registry.wrap(requests.Session()) as session:
        return session.post(url, json=BODY).json()


def by_aiohttp(registry: RateLimitRegistry, url: str) -> Any:
    async def ask() -> Any:
        async with registry.wrap(aiohttp.ClientSession()) as session, session.post(url, json=BODY) as response:
            return await response.json()

    return asyncio.run(ask())


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)
@pytest.mark.parametrize("ask", [by_httpx, by_requests, by_aiohttp])
def test_refusal_in_a_good_answer_is_waited_out(ask: Callable[[RateLimitRegistry, str], Any]) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(refused_at_first) as server:
        assert ask(registry, server.chat) == json.loads(ANSWER)
        assert len(server.seen) == 2
    seen = only(registry)
    assert (seen.refused, seen.absorbed, seen.answered, seen.calls) == (1, 1, 1, 1)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)
@pytest.mark.parametrize(
    "refusal",
    [
        {"code": 336501, "msg": "Rate limit reached"},
        {"error_code": 18, "error_msg": "Open api qps request limit reached"},
        {"success": False, "code": 1302, "msg": "rate limit exceeded"},
        {"Response": {"Error": {"Code": "LimitExceeded", "Message": "Rate limit exceeded"}}},
        {"choices": None, "usage": {"total_tokens": 0}, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
        {"error": {"code": 429, "message": "rate limit"}, "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        {"error": {"code": 429, "message": "rate limit"}, "choices": [{"message": {"content": ""}}]},
        {"success": False, "errors": [{"code": 429, "message": "rate limit"}], "result": None},
    ],
    ids=["baidu", "baidu-error-code", "success", "tencent", "minimax", "openrouter", "empty", "cloudflare"],
)
def test_each_form_of_a_refusal_with_200_that_a_stream_may_have_is_one_in_a_whole_answer(refusal: Any) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    replies = {1: json.dumps(refusal).encode()}
    with Server(lambda number, path: (200, JSON, replies.get(number, ANSWER))) as server:
        assert by_httpx(registry, server.chat) == json.loads(ANSWER)
        assert len(server.seen) == 2
    assert (only(registry).refused, only(registry).absorbed, only(registry).answered) == (1, 1, 1)


CHOICES = [{"index": 0, "message": {"role": "assistant", "content": "5"}}]
LIMITED = {"success": False, "code": 1302, "msg": "rate limit exceeded"}
GOOD = [
    {"code": 200, "msg": "success", "data": [{"score": 0.5}]},
    {"code": 20000, "msg": "rate limit exceeded", "choices": CHOICES},
    {"results": [{"text": "error", **LIMITED}]},
    {**LIMITED, "choices": CHOICES},
    {**LIMITED, "message": {"role": "assistant", "content": "5"}},
    {**LIMITED, "answer": "5"},
    {"code": 1302, "msg": "rate limit exceeded", "text": "5"},
    {"code": 1302, "msg": "rate limit exceeded", "task_id": "x"},
    {"code": 200, "msg": "The rate limit of the API is 5 requests per minute", "id": "x"},
    {"success": False, "code": 0, "msg": "rate limit exceeded"},
    {"success": False, "errors": [], "result": {"response": "5"}},
    {"success": False, "errors": [], "result": None},
    {"success": False, "code": "flagged", "output": "5"},
    {"error_code": 18, "error_msg": "qps request limit reached", "result": "5"},
    {"error_code": "SUCCESS", "error_msg": "Open api qps request limit is 5", "id": "x"},
    {"choices": CHOICES, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
    {"Response": {"Error": {"Code": "", "Message": ""}, "RequestId": "x"}},
    {"Response": {"Error": {"Code": "LimitExceeded", "Message": "rate limit"}, "Choices": CHOICES}},
    {"ResponseMetadata": {"Error": {"Code": "LimitExceeded", "Message": "rate limit"}}, "Result": {"Choices": CHOICES}},
    {"error": {"message": "", "code": ""}, "id": "x"},
    {"error": {"message": "success", "code": 0}, "id": "x"},
    {"error": "none", "id": "x"},
    {"error": {"code": 0, "message": "no error"}, "data": [{"embedding": [0.5]}]},
    {"error": {"code": 429, "message": "rate limit"}, "choices": CHOICES},
]
LINE = json.dumps(LIMITED)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)
@pytest.mark.parametrize("ask", [by_httpx, by_aiohttp])
@pytest.mark.parametrize(
    "text",
    [*map(json.dumps, GOOD), f'{{\n"choices": [\n{LINE}\n]\n}}'],
)
def test_good_answer_without_usage_is_an_answer(text: str, ask: Callable[[RateLimitRegistry, str], Any]) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(lambda number, path: (200, JSON, text.encode() if number == 1 else ANSWER)) as server:
        assert ask(registry, server.chat) == json.loads(text)
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (0, 0, 1)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)
@pytest.mark.parametrize(
    "text",
    [
        f'[\n{LINE},\n{{"text": "5"}},\n{LINE}\n]',
        f'{LINE}\n{{"text": "5"}}',
        'data: {"error": {"code": 429, "message": "rate limit"}}\n}',
    ],
)
def test_good_answer_that_is_no_object_is_an_answer(text: str) -> None:
    """It may be a transcript, or hold one result a line."""
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(lambda number, path: (200, JSON, text.encode() if number == 1 else ANSWER)) as server:
        assert registry.wrap(httpx.Client()).post(server.chat, json=BODY).text == text
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (0, 0, 1)


def test_list_of_errors_in_a_good_answer_is_the_callers_to_read() -> None:
    """A service may answer 200 with `errors`, one for each part of a request; only `error` is a refusal's form."""
    body = json.dumps({"errors": [{"message": "x"}], "code": 429, "msg": "rate limited"}).encode()
    registry = RateLimitRegistry(tidegate.Settings(max_wait=1.0))
    with Server(lambda number, path: (200, JSON, body)) as server:
        assert by_httpx(registry, server.chat) == json.loads(body)
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (0, 0, 1)


def test_refusal_in_an_event_is_a_failed_call_and_no_answer_without_time_to_wait() -> None:
    registry = RateLimitRegistry()
    with (
        Server(streaming_refusal) as server,
        registry.wrap(httpx.Client(), max_wait=0) as client,
        client.stream("POST", server.chat, json={**BODY, "stream": True}) as response,
    ):
        assert b"rate limit" in response.read()
    seen = only(registry)
    assert (seen.refused, seen.answered, seen.given_up, seen.calls) == (1, 0, 1, 1)


@pytest.mark.parametrize(
    ("code", "kind", "cause"),
    [
        (1039, Kind.RATE_LIMIT, Cause.RATE),
        (1041, Kind.RATE_LIMIT, Cause.CONCURRENCY),
        (2045, Kind.RATE_LIMIT, Cause.SLOPE),
        (2056, Kind.QUOTA_EXHAUSTED, Cause.MONEY),
        (2049, Kind.PERMANENT, Cause.AUTH),
        (1033, Kind.TRANSIENT, Cause.NONE),
    ],
)
def test_codes_of_minimax_are_read_by_its_own_list(code: int, kind: Kind, cause: Cause) -> None:
    body = json.dumps({"base_resp": {"status_code": code, "status_msg": "refused"}}).encode()
    told = judge_event(MINIMAX, body)
    assert told is not None
    assert (told.kind, told.cause) == (kind, cause)
