"""Ordinary errors whose message echoes the caller's text: no words in it are a limit of the provider's."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import ANTHROPIC, COMPATIBLE, GEMINI, OPENAI, judge, judge_event, named

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_INPUT = (
    "[{'type': 'string_type', 'loc': ('body', 'messages', 0), 'msg': 'Input should be a valid string', 'input': %s}]"
)
_TOOL = (
    "tool call validation failed: parameters for tool get_limits did not match schema: errors: [`/period`: %s]. limit"
)

ECHOES = [
    (COMPATIBLE, 400, _INPUT % "{'text': 'I hit my daily limit. It says try again in 50 minutes'}"),
    (COMPATIBLE, 400, _INPUT % "{'text': \"I've hit my daily limit\"}"),
    (COMPATIBLE, 400, "Input should be a valid string [input_value={'text': 'I have no credits'}]"),
    (COMPATIBLE, 400, "Input should be a valid string [input_value={'text': 'I have no credits, so the text is cut"),
    (COMPATIBLE, 400, "The prompt 'it's over the daily limit, isn't it' is not valid"),
    (OPENAI, 400, "Timeout while downloading https://host/news/today/over-the-hill.jpg"),
    (OPENAI, 400, "Error while downloading https://host/hit/daily-limit/1.png. Upstream status code: 404."),
    (OPENAI, 400, "Invalid 'tools[0].function.name': 'get credit limit'"),
    (OPENAI, 400, "In context=('properties', 'quota exceeded'), 'required' is required to be supplied"),
    (OPENAI, 400, "Error parsing the body: my payment limit"),
    (named("groq"), 400, _TOOL % 'value must be one of "daily", "weekly"'),
    (GEMINI, 400, "Invalid value at 'system_instruction', \"The credit limit is 500.\""),
    (GEMINI, 400, "start_time must be within the last 30 days"),
    (GEMINI, 400, "Cached content is too old: ttl of 7 days exceeds the 5 days limit"),
    (OPENAI, 400, "Audio file is too long: duration of 30 hours exceeds the 25 hours limit"),
    (OPENAI, 400, "Audio file is too long: duration of 30 hours exceeds the 24 hours limit"),
    (COMPATIBLE, 400, "Requests with more than 5 images exceed the usage limit of this endpoint"),
    (ANTHROPIC, 400, "`thinking.budget_tokens` exceeded budget: budget exceeded the max_tokens"),
    (ANTHROPIC, 400, "messages.2.content.0: unexpected `tool_use_id` found: every 5 days"),
    (COMPATIBLE, 400, "messages: a conversation must not have no messages"),
    (named("bedrock"), 400, "#/text: 'too many tokens per day' is not a valid enum value"),
    (COMPATIBLE, 401, "API key expired 30 days ago. Keys last every 90 days"),
    (COMPATIBLE, 401, "Your token has expired. Please sign in again. Limit 24 hours."),
    (COMPATIBLE, 401, "User not found. Session limit"),
    (COMPATIBLE, 403, "Input flagged by moderation: 'I ran out of credits'"),
    (COMPATIBLE, 403, "User: arn:aws:iam::1:user/daily-limit is not authorized to perform this"),
    (COMPATIBLE, 403, "This model is not available on your plan. Models available: limits per month apply"),
    (COMPATIBLE, 403, "Increase your usage tier to get access. Usage limits are per day."),
    (COMPATIBLE, 408, "Request timed out: daily limit 30s exceeded"),
    (COMPATIBLE, 500, "Max retries exceeded with url: /api/daily"),
    (COMPATIBLE, 500, "maximum recursion depth exceeded while processing a daily job"),
    (COMPATIBLE, 500, "Internal error while processing prompt 'My monthly quota'"),
    (COMPATIBLE, 500, "Failed to parse input at pos 20: <tool_call> get_weekly_quota weekly quota"),
    (COMPATIBLE, 500, "sqlalchemy: session limit of size 5 overflow 10 reached, connection timed out"),
    (COMPATIBLE, 502, "context deadline exceeded: the job of every day"),
    (COMPATIBLE, 504, "Timeout: 24h job limit not reached"),
]


@pytest.mark.parametrize(("table", "status", "message"), ECHOES)
def test_an_error_with_the_callers_own_words_stays_what_its_status_says(table, status, message):
    outcome = judge(table, status, [], json.dumps({"error": {"message": message}}).encode(), NOW)
    expected = Kind.PERMANENT if status in (400, 401, 403) else Kind.TRANSIENT
    assert (outcome.kind, outcome.retry_after) == (expected, None)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Your account has insufficient credits for the model 'x'", Kind.QUOTA_EXHAUSTED),
        (400, "Maximum number of requests reached for this month.", Kind.QUOTA_EXHAUSTED),
        (400, "Spending limit of $5.00 was reached", Kind.QUOTA_EXHAUSTED),
        (403, "You've reached your plan's monthly spending cap", Kind.QUOTA_EXHAUSTED),
        (403, "You have hit your 5-hour limit for 'x'", Kind.QUOTA_EXHAUSTED),
        (403, "You've reached your session limit", Kind.QUOTA_EXHAUSTED),
        (403, "Weekly quota depleted", Kind.QUOTA_EXHAUSTED),
        (403, "You've exceeded the limit of 1,000 requests per day", Kind.DAILY_LIMIT),
        (500, "Daily quota of `model` exhausted", Kind.DAILY_LIMIT),
        (502, "You have hit your usage limit. Try again in 2 hours.", Kind.DAILY_LIMIT),
        (403, "本月使用上限已用完", Kind.QUOTA_EXHAUSTED),
        (500, "已超出今日请求上限", Kind.DAILY_LIMIT),
    ],
)
def test_a_refusal_with_the_same_status_is_still_read(status, message, kind):
    outcome = judge(COMPATIBLE, status, [], json.dumps({"error": {"message": message}}).encode(), NOW)
    assert outcome.kind is kind


def test_an_error_in_a_stream_is_read_without_its_echo_too():
    error = {"code": 400, "message": ECHOES[0][2]}
    outcome = judge_event(COMPATIBLE, b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert outcome.retry_after is None
    assert outcome.kind not in (Kind.DAILY_LIMIT, Kind.QUOTA_EXHAUSTED)


def test_an_invalid_requests_message_names_no_wait():
    body = {"error": {"message": "You have used up all requests. Try again in 50 minutes", "code": "daily_limit"}}
    assert judge(COMPATIBLE, 400, [], json.dumps(body).encode(), NOW).retry_after is None
    assert judge(COMPATIBLE, 403, [], json.dumps(body).encode(), NOW).retry_after == 3000
