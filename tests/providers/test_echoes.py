"""Ordinary errors whose message echoes the caller's text: no words in it are a limit of the provider's."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, judge, judge_event, named
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.google import GEMINI
from tidegate.providers.openai import OPENAI

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
    (COMPATIBLE, 400, "The following content was flagged: my account has insufficient funds and the bank returned 402"),
    (COMPATIBLE, 400, "Content policy violation: user asked how to exceed the daily quota"),
    (
        COMPATIBLE,
        400,
        "Your prompt was rejected by the safety system: I hit my weekly limit and my balance is negative",
    ),
    (
        COMPATIBLE,
        400,
        "This model's maximum context length is 8192 tokens. However, you requested 9000.",
    ),
    (COMPATIBLE, 400, "max_tokens is too large: 100000. This model supports at most 4096 completion tokens."),
    (COMPATIBLE, 400, "Rate must be between 0 and 1; limit exceeded"),
    (COMPATIBLE, 400, "Request payload size exceeds the limit: 20971520 bytes."),
    (COMPATIBLE, 400, "Number of images exceeds the limit of 10 per request"),
    (COMPATIBLE, 400, "The input token count (2500000) exceeds the maximum number of tokens allowed (1048576)."),
    (COMPATIBLE, 400, "Total characters per day field is missing"),
    (COMPATIBLE, 400, "Tool 'get_rate_limit' not found. rate limit reached"),
    (COMPATIBLE, 400, "function name 'check_balance_insufficient' does not exist"),
    (COMPATIBLE, 400, "Too many tools: 200. Limit is 128"),
    (COMPATIBLE, 400, "Too many messages in conversation"),
    (COMPATIBLE, 400, "There are no models available for your account"),
    (COMPATIBLE, 400, "No keys available for this provider"),
    (COMPATIBLE, 400, "No allowed providers are available for the selected model."),
    (COMPATIBLE, 400, "Index capacity exceeded"),
    (COMPATIBLE, 400, "Batch size limit exceeded: 2048"),
    (COMPATIBLE, 400, "Embedding request: too many requests in batch, maximum 100 inputs"),
    (COMPATIBLE, 400, "Parameter schedule: 'every 5 hours' unsupported; quota exceeded"),
    (COMPATIBLE, 400, "The document mentions 余额不足 每日上限 but image is required"),
    (COMPATIBLE, 400, "用户输入无效: 今日额度已用完"),
    (COMPATIBLE, 400, "Неверный параметр: превышен дневной лимит"),
    (
        COMPATIBLE,
        401,
        "Incorrect API key provided: sk-dail***mit. You can find your API key at https://platform.openai.com.",
    ),
    (COMPATIBLE, 401, "Invalid token: monthly plan"),
    (COMPATIBLE, 401, "Your API key has expired. Please renew it in 30 days"),
    (COMPATIBLE, 403, "You do not have access to model gpt-5 on the free plan; upgrade your plan"),
    (COMPATIBLE, 403, "Country, region, or territory not supported"),
    (COMPATIBLE, 403, "This organization has been disabled."),
    (COMPATIBLE, 403, "Content blocked: the text 'rate limited for 24 hours' violates policy"),
    (COMPATIBLE, 403, "Quota management requires the role billing.admin"),
    (COMPATIBLE, 403, "Billing is not enabled for this project"),
    (COMPATIBLE, 404, "The model `daily-limit-1` does not exist"),
    (COMPATIBLE, 422, "body.limit: Input should be less than or equal to 100; daily limit exceeded, retry in 2 hours"),
    (COMPATIBLE, 500, "TypeError: cannot read property 'daily_limit' of undefined"),
    (COMPATIBLE, 500, "Traceback: File quota.py line 20 in check_daily_limit: KeyError 'limit'"),
    (COMPATIBLE, 500, "Internal error: failed to render template daily_quota_exceeded.html"),
    (COMPATIBLE, 500, "assertion failed: queue.len() < max"),
    (COMPATIBLE, 500, "sample rate exceeded 48000 Hz"),
    (COMPATIBLE, 401, "The speech rate is too high"),
    (COMPATIBLE, 500, "worker crashed: out of memory (limit reached)"),
    (
        COMPATIBLE,
        500,
        "CUDA out of memory. Tried to allocate 2 GiB (GPU 0; 24 GiB total capacity; 23 GiB already allocated)",
    ),
    (COMPATIBLE, 502, "upstream connect error or disconnect/reset before headers. reset reason: connection failure"),
    (COMPATIBLE, 504, "The upstream server is timing out; try again after the 24 hour maintenance"),
    (COMPATIBLE, 400, "Could not fetch https://example.org/a.png: HTTP 429 Too Many Requests"),
    (COMPATIBLE, 400, "Function call failed: RateLimitError: quota exceeded for today"),
    (COMPATIBLE, 400, "Web search failed with status 429"),
    (COMPATIBLE, 502, "Search tool returned 429 Too Many Requests"),
    (
        COMPATIBLE,
        400,
        "The assistant message cannot be empty; previous: you have been rate limited. Try again in 5 hours",
    ),
]


@pytest.mark.parametrize(("table", "status", "message"), ECHOES)
def test_an_error_with_the_callers_own_words_stays_what_its_status_says(table, status, message):
    outcome = judge(table, status, [], json.dumps({"error": {"message": message}}).encode(), NOW)
    expected = Kind.PERMANENT if status < 500 and status != 408 else Kind.TRANSIENT
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


def test_an_invalid_requests_message_names_no_wait_unless_it_is_a_refusal():
    body = {"error": {"message": "You have used up all requests. Try again in 50 minutes", "code": "daily_limit"}}
    for status in (400, 403):
        assert judge(COMPATIBLE, status, [], json.dumps(body).encode(), NOW).retry_after == 3000
    body = {"error": {"message": "Invalid value: Rate limited, try again in 50 minutes"}}
    outcome = judge(COMPATIBLE, 400, [], json.dumps(body).encode(), NOW)
    assert (outcome.kind, outcome.retry_after) == (Kind.PERMANENT, None)
