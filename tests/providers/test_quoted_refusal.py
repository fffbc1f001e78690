"""What a gateway quotes of its upstream's refusal, and what only looks like such a quotation."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, judge, judge_event

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITED = '{"error": {"type": "rate_limit_error", "message": "Rate limit exceeded, try again in 20s"}}'
DAY = '{"error": {"code": 429, "message": "Quota of requests per day exceeded", "status": "RESOURCE_EXHAUSTED"}}'


def answer(status, message):
    return judge(COMPATIBLE, status, [], json.dumps({"error": {"message": message}}).encode(), NOW)


@pytest.mark.parametrize("status", [400, 424, 500, 502])
@pytest.mark.parametrize(
    ("message", "kind", "wait"),
    [
        (f"upstream error 429: {LIMITED}", Kind.RATE_LIMIT, 20),
        (DAY, Kind.DAILY_LIMIT, None),
        (f"Provider answered: {DAY}", Kind.DAILY_LIMIT, None),
        ("[429]: Rate limited. Please retry in 7 seconds", Kind.RATE_LIMIT, 7),
        ("HTTP 402 - payment needed", Kind.QUOTA_EXHAUSTED, None),
        ("Error code: 503 - the model is overloaded", Kind.OVERLOADED, None),
        ("litellm.RateLimitError: AnthropicException - limited", Kind.RATE_LIMIT, None),
        ("429 Too Many Requests", Kind.RATE_LIMIT, None),
    ],
)
def test_the_upstreams_refusal_is_read_in_place_of_the_gateways_status(status, message, kind, wait):
    outcome = answer(status, message)
    assert (outcome.kind, outcome.retry_after, outcome.status) == (kind, wait, status)


@pytest.mark.parametrize(
    "message",
    [
        f"Invalid tool result: {DAY}",
        f"messages.3.content: tool_result is not valid: {DAY}",
        f"Failed to parse function arguments: {LIMITED}",
        "Unexpected role in message: I got HTTP 429 Too Many Requests, what now?",
        f"user said: {DAY}",
        json.dumps({"detail": f"user said: {DAY}"}),
        "Image url returned 429: https://x/y.png could not be downloaded",
        "Error while downloading https://a/b.png. Upstream status code: 429.",
        "MCP server 'stripe' returned error: 402 payment required",
        'Conversation has {"role": "user", "content": "status 429"}',
        f"{DAY} is not of type 'string' - 'messages.3.content'",
        f"{LIMITED} is not valid under any of the given schemas",
        'Extra inputs are not permitted: {"error": {"type": "insufficient_quota"}}',
        "Failed to retrieve https://a/b.png: HTTP 429",
        "Could not load https://a/b.png (status code: 429)",
        "context length of 429 tokens exceeded",
        "error 4290: no such deployment",
        '{"status": 404, "error": "no such route"}',
        "the value " + "{" * 500,
    ],
)
def test_an_invalid_request_that_holds_such_text_stays_one(message):
    outcome = answer(400, message)
    assert (outcome.kind, outcome.retry_after) == (Kind.PERMANENT, None)


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_other_statuses_are_the_gateways_own(status):
    assert answer(status, "upstream returned 429").kind is Kind.PERMANENT


def test_a_quotation_in_a_stream_is_read_too():
    event = {"error": {"message": f"upstream error 429: {LIMITED}", "code": 502}}
    assert judge_event(COMPATIBLE, b"data: " + json.dumps(event).encode() + b"\n\n").kind is Kind.RATE_LIMIT
