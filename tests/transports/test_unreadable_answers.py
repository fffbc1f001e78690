"""A good status without a readable answer: handed back as it is, and no answer in any count."""

from __future__ import annotations

import httpx
import pytest

import tidegate
from tests.transports.answering import Server
from tidegate.admission.registry import RateLimitRegistry

JSON = {"content-type": "application/json"}
ANSWER = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


@pytest.mark.parametrize(
    ("headers", "body", "answered"),
    [
        (JSON, ANSWER, 1),
        (JSON, b"", 0),
        ({}, b"", 0),
        ({"content-type": "text/plain"}, b"", 0),
        (JSON, ANSWER[:-9], 0),
        ({"content-type": "text/html"}, b"<html><title>Welcome</title></html>", 0),
    ],
    ids=["whole", "empty", "empty of no type", "empty text", "cut", "page"],
)
def test_only_what_can_be_read_counts_as_answered(headers: dict[str, str], body: bytes, answered: int) -> None:
    registry = RateLimitRegistry()
    server = Server(lambda number, path: (200, headers, body))
    with server, tidegate.wrap(httpx.Client(), registry=registry) as client:
        response = client.post(server.chat, json={"model": "m", "messages": []})
    assert (response.status_code, response.content) == (200, body)
    (key,) = registry.snapshot().keys.values()
    assert (key.answered, key.failed) == (answered, 1 - answered)


def test_answer_whose_status_announces_no_body_counts_as_answered() -> None:
    registry = RateLimitRegistry()
    server = Server(lambda number, path: (204, {}, b""))
    with server, tidegate.wrap(httpx.Client(), registry=registry) as client:
        assert client.post(server.chat, json={"model": "m", "messages": []}).status_code == 204
    (key,) = registry.snapshot().keys.values()
    assert (key.answered, key.failed) == (1, 0)
