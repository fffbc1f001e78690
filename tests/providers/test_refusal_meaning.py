"""What codes, words, quotas and waits mean together, where a table's row reads no more than the status."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, judge, named
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.google import GEMINI
from tidegate.providers.openai import OPENAI
from tidegate.providers.refusal_meaning import CAUSES, LONG_WAIT, LONGEST_WAIT

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer(status, message, code=None, headers=None, table=COMPATIBLE):
    error = {"message": message} if code is None else {"message": message, "code": code}
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return judge(table, status, pairs, json.dumps({"error": error}).encode(), NOW)


FOUND = [
    (429, "Rate limit exceeded. Limit: 0 per minute.", "limit_of_zero"),
    (403, "This model is disabled: a rate limit of 0 is set", "limit_of_zero"),
    (400, "Your account has insufficient credits for this model", "money"),
    (429, "You have run out of credits", "money"),
    (500, "insufficient account balance", "money"),
    (403, "Your team does not have any credits", "money"),
    (400, "Billing hard limit has been reached", "money"),
    (403, "账户余额不足", "money"),
    (429, "You've reached your weekly usage limit", "plan_used_up"),
    (403, "7-day message quota exceeded, upgrade your plan", "plan_used_up"),
    (429, "Session limit reached. Resets in 4 hours 20 minutes", "plan_until"),
    (403, "Monthly quota exceeded, resets at 2026-01-20T00:00:00Z", "plan_until"),
    (429, "Daily request limit reached", "day_used_up"),
    (402, "You exceeded 1000 requests a day", "day_used_up"),
    (500, "Quota of 50 calls per day exceeded", "day_used_up"),
    (429, "Too many requests, try again in 3 hours", "long_wait"),
    (503, "The model is still loading", "not_ready"),
    (500, "Cold start: scaling up from zero", "not_ready"),
    (402, "This prompt needs 900 credits, you have 100 left", "one_request"),
    (402, "Too many requests in flight for your credits", "concurrency_words"),
    (429, "The model is very busy, try again", "others_capacity_words"),
    (429, "We are experiencing heavy load", "others_capacity_words"),
    (500, "The engine is overloaded", "overload_words"),
    (429, "Too many parallel requests", "concurrency_words"),
    (403, "Free credits are restricted, please purchase credits", "money"),
    (403, "user quota is not enough", "plan_used_up"),
    (429, "Usage limit reached. Access resets at 10:57 pm", "plan_until"),
    (429, "Free usage exceeded", "day_used_up"),
    (403, "You are being rate limited", "rate_words"),
    (500, "Upstream answered: too many requests", "rate_words"),
    (429, "Requests to this model are limited: the quota is 0", "limit_of_zero"),
    (401, "令牌额度已用尽", "money"),
    (403, "Inference prohibited, please enter a payment method", "money"),
    (403, "Your subscription has expired", "money"),
    (403, "Out of call volume quota", "plan_used_up"),
    (432, "This request exceeds your plan's set usage limit", "plan_used_up"),
    (429, "You used all of your monthly requests", "plan_used_up"),
    (429, "100 messages per 3 hours, you are over the limit", "plan_used_up"),
    (403, "Quota was exceeded", "plan_used_up"),
    (403, "Out of call volume quota. Quota will be replenished in 5.03:23:11", "plan_until"),
    (402, "You've reached your 5-hour standard usage limit (resets in 3h 21min)", "plan_until"),
    (429, "You have reached your limit of 500 generations this month. Upgrade for more.", "plan_used_up"),
    (429, "You've hit your free requests limit. It resets when your monthly cycle ends.", "plan_used_up"),
    (429, "Your account has exhausted the free trial quota", "plan_used_up"),
    (429, "Your account has reached the set inference limit", "plan_used_up"),
    (403, "Key limit exceeded (total limit)", "plan_used_up"),
    (403, "Key limit exceeded (daily limit)", "day_used_up"),
    (429, "You have reached your limit of 10 scans today", "day_used_up"),
    (429, "已超出今日请求上限", "day_used_up"),
    (403, "You've used all the included free usage for this model", "day_used_up"),
    (429, "The model is rate-limited upstream", "others_capacity_words"),
    (500, "Upstream rate limit exceeded", "others_capacity_words"),
    (429, "No token was generated before the given deadline", "others_capacity_words"),
    (503, "disconnect before headers. reset reason: overflow", "overload_words"),
    (402, "Queue full: 1 requests already queued (max: 1)", "concurrency_words"),
    (429, "You exceeded your concurrent session limit", "concurrency_words"),
    (403, "请求过于频繁", "rate_words"),
    (403, "User is locked. Reason: TOP_UP.", "money"),
    (403, "Your balance is -0.18", "money"),
    (401, "Unpaid invoice", "money"),
    (429, "Your weekly quota resets on April 20, 2026 at 2:00 AM", "plan_until"),
    (403, "Rate limit quota violation. Quota limit exceeded", "rate_words"),
    (400, "You are being throttled", "rate_words"),
    (400, "tokens per min exceeded", "rate_words"),
    (400, "concurrency limit reached, retry", "concurrency_words"),
    (503, "exceeds maximum queue size", "overload_words"),
    (500, "Request dropped due to backpressure", "overload_words"),
    (429, "No available accounts", "others_capacity_words"),
    (429, "No healthy upstream servers available", "others_capacity_words"),
    (429, "All 3 providers are currently cooling down", "others_capacity_words"),
    (502, "There is a surge in traffic", "overload_words"),
    (429, "All credentials for model gpt-5 are cooling down via provider x", "others_capacity_words"),
    (429, "insufficient_balance: please add billing credits", "money"),
    (400, "ServiceQuotaExceededException MONTHLY_REQUEST_COUNT You have reached the limit", "plan_used_up"),
]


@pytest.mark.parametrize(("status", "message", "rule"), FOUND)
def test_the_words_of_a_family_name_its_meaning(status, message, rule):
    outcome = answer(status, message)
    assert outcome.row == f"common:{rule}"
    assert outcome.cause is CAUSES[rule]


def test_a_quota_of_minutes_that_names_its_end_is_no_rate():
    assert answer(403, "Out of call volume quota. Quota will be replenished in 00:30:02").row == "common:plan_until"
    assert answer(429, "You've exceeded your weekly rate limit. Try again in 30 seconds").row == "common:plan_until"


def test_a_day_that_only_a_field_names_is_a_days_quota():
    body = {"error": "too many requests", "limit": 100, "limit_type": "daily"}
    assert judge(COMPATIBLE, 429, [], json.dumps(body).encode(), NOW).row == "common:day_used_up"


def test_a_reset_without_a_quota_is_that_of_the_window_it_fits():
    windows = {"minute": "30", "day": "0", "month": "0"}
    headers = {"ratelimit-reset": "2396808"}
    headers |= {f"x-ratelimit-remaining-{window}": left for window, left in windows.items()}
    outcome = answer(429, "slow down", headers=headers)
    assert (outcome.kind, outcome.retry_after) == (Kind.DAILY_LIMIT, 2396808)
    assert [r.name for r in outcome.readings if r.reset_after] == ["month"]
    short = answer(429, "slow down", headers={**headers, "ratelimit-reset": "100"})
    assert [r.name for r in short.readings if r.reset_after] == ["day"]


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("AccountOverdueError", "money"),
        ("personal-team-blocked:spending-limit", "money"),
        ("user_weekly_rate_limited", "plan_used_up"),
        ("token_quota_reached", "plan_used_up"),
        ("hosted_ai_allowance_exceeded", "plan_used_up"),
        ("budget_exhausted", "money"),
        ("UserByModelByDay", "day_used_up"),
        ("dailyLimitExceeded", "day_used_up"),
        ("rateLimitExceeded", "rate_words"),
        ("usage_not_included", "plan_used_up"),
        ("account_stream_cap", "concurrency_words"),
    ],
)
def test_a_code_alone_names_its_meaning(code, rule):
    assert answer(403, "", code).row == f"common:{rule}"


def test_a_denied_call_whose_only_quota_is_at_zero_is_refused_for_the_rate():
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}
    outcome = answer(403, "Forbidden", headers=headers)
    assert (outcome.row, outcome.retry_after) == ("common:rate_words", 30)
    assert answer(403, "Forbidden", headers={**headers, "x-ratelimit-remaining": "5"}).row == "common:auth"


def test_a_quota_at_zero_of_an_unstated_window_is_a_days_if_its_reset_is_hours_away():
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "18000"}
    assert answer(429, "slow down", headers=headers).kind is Kind.DAILY_LIMIT


def test_a_days_quota_at_zero_that_is_back_within_seconds_is_no_spent_day():
    """Another server behind the client of a provider whose headers count a day: what it resets shows its window."""
    headers = {"x-ratelimit-limit-requests": "240", "x-ratelimit-remaining-requests": "0"}
    text = "Rate limit reached for m on requests per min (RPM). Please try again in 0.19s."
    soon = answer(429, text, "limited", {**headers, "x-ratelimit-reset-requests": "1.452s"}, named("groq"))
    assert soon.kind is Kind.RATE_LIMIT
    late = answer(429, "slow down", "limited", {**headers, "x-ratelimit-reset-requests": "1h23m"}, named("groq"))
    assert late.kind is Kind.DAILY_LIMIT


def test_a_limit_of_zero_in_the_headers_alone_is_a_limit_of_zero():
    headers = {"x-ratelimit-limit-minute": "0", "x-ratelimit-remaining-minute": "0"}
    assert answer(429, "slow down", headers=headers).row == "common:limit_of_zero"
    unlimited = {**headers, "x-ratelimit-reset-minute": "0"}
    assert answer(429, "slow down", headers=unlimited).kind is Kind.RATE_LIMIT
    other = {"x-ratelimit-limit-hour": "5", "x-ratelimit-remaining-hour": "0"}
    assert answer(429, "slow down", headers={**headers, **other}).kind is Kind.RATE_LIMIT


def test_a_value_that_names_the_limit_is_a_witness():
    assert answer(429, "Too many requests", headers={"x-ratelimit-type": "UserByModelByDay"}).kind is Kind.DAILY_LIMIT


def test_a_row_for_a_plans_window_yields_to_a_named_end():
    table = named("zai")
    assert answer(429, "Limit Exhausted.", "1310", table=table).row == "zai:plan_window"
    ended = answer(429, "Weekly limit exhausted, it will reset at 2026-01-02 08:00:00", "1310", table=table)
    assert (ended.kind, ended.retry_after) == (Kind.DAILY_LIMIT, 86400)


def test_a_limit_below_one_is_no_limit_of_zero():
    assert answer(429, "rate limit: 0.5 requests per second", table=GEMINI).kind is Kind.RATE_LIMIT
    assert answer(429, "Quota exceeded, limit: 0, model: x", table=GEMINI).row == "common:limit_of_zero"


def test_every_meaning_has_an_example():
    assert {rule for _, _, rule in FOUND} == set(CAUSES)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Rate limit exceeded"),
        (429, "Too many requests, please wait before trying again."),
        (429, "You exceeded your current quota, please check your plan and billing details."),
        (429, "Rate limit of 5 per 0s exceeded"),
        (429, "Rate limit exceeded: 20 requests per minute. Buy a plan for 1000 requests per day."),
        (429, "Limit: 60 / min. Remaining limit: 0"),
        (429, "60 requests per hour exceeded, retry in 50 minutes"),
        (429, "Rate limit exceeded. Your credit limit is $500, tokens per minute: 100"),
        (429, "Limit: 60 per minute. Remaining: 0. Limit: 0 burst"),
        (429, "Limit 0 remaining; rate limit 60 rpm, retry in 1s"),
        (429, "Your plan has a limit of 3 requests per minute, try again in 20s"),
        (429, "User hourly token limit of 100000 exceeded, retry in 1800 s"),
        (429, "Requests per minute exceeded. Daily quota remaining: 49. Retry in 20 seconds."),
        (429, "You have exhausted your capacity on this model. Your quota will reset after 5s."),
    ],
)
def test_a_rate_stays_a_rate(status, message):
    assert answer(status, message).kind is Kind.RATE_LIMIT


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens must be below 4096"),
        (400, "This model's maximum context length is 8192 tokens, requested 9000"),
        (400, "the tool 'capacity' is overloaded with high traffic"),
        (400, "Missing parameter: date of the day"),
        (404, "no such model"),
        (401, "invalid key"),
        (403, "Your region is not supported"),
        (403, "Access denied for this model"),
        (400, "rate limited is no valid value of 'mode'"),
        (422, "limit must be at most 100 per day of month"),
    ],
)
def test_an_invalid_request_stays_one(status, message):
    assert answer(status, message).kind is Kind.PERMANENT


@pytest.mark.parametrize("message", ["Internal server error", "Bad gateway", "upstream timed out after 300 s"])
def test_an_outage_stays_one(message):
    assert answer(500, message).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("wait", "kind"),
    [
        (LONG_WAIT - 1, Kind.RATE_LIMIT),
        (LONG_WAIT, Kind.DAILY_LIMIT),
        (LONGEST_WAIT, Kind.DAILY_LIMIT),
        (LONGEST_WAIT + 1, Kind.RATE_LIMIT),
    ],
)
def test_a_wait_of_hours_is_a_used_up_quota_and_keeps_its_real_end(wait, kind):
    outcome = answer(429, "slow", headers={"retry-after": f"{wait:.0f}"}, table=OPENAI)
    assert (outcome.kind, outcome.retry_after) == (kind, wait)


def test_a_day_that_only_a_header_names_is_known_to_its_reset():
    headers = {"x-ratelimit-limit-day": "50", "x-ratelimit-remaining-day": "0", "x-ratelimit-reset-day": "7200"}
    outcome = answer(429, "Too Many Requests", headers=headers)
    assert (outcome.kind, outcome.retry_after) == (Kind.DAILY_LIMIT, 7200)
    empty = {**headers, "x-ratelimit-limit-minute": "5", "x-ratelimit-remaining-minute": "0"}
    assert answer(429, "Too Many Requests", headers=empty).kind is Kind.RATE_LIMIT


def test_a_rejected_plan_is_known_to_the_reset_in_its_header():
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": "1767243600",
        "date": "Thu, 01 Jan 2026 00:00:00 GMT",
    }
    outcome = answer(429, "Error", headers=headers, table=ANTHROPIC)
    assert (outcome.kind, outcome.retry_after) == (Kind.DAILY_LIMIT, 18000)
    half = {"x-codex-primary-used-percent": "99.5", "x-codex-primary-reset-after-seconds": "9000"}
    assert answer(429, "Too Many Requests", headers=half).kind is Kind.RATE_LIMIT


def test_a_plans_reset_beyond_a_hundred_years_is_no_wait():
    headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": "99999999999"}
    outcome = answer(429, "Error", headers=headers, table=ANTHROPIC)
    assert (outcome.kind, outcome.retry_after) == (Kind.DAILY_LIMIT, None)


@pytest.mark.parametrize(
    ("message", "wait"),
    [
        ("try again in 5 days 22 hours 11 minutes", 511860),
        ("Please retry in 1 hour and 30 minutes.", 5400),
        ("It resets in 2 weeks", 1209600),
        ("Come back in 3h 47m.", 13620),
        ("Resets in: 30m0s", 1800),
        ("Your limit will reset at 2026-01-01 10:00:00", 7200),
        ("It will reset at 2026-01-01 10:00:00 +0800 CST", 7200),
        ("resets at 2026-01-01T02:00:00Z", 7200),
        ("resets at 2026-13-01T02:00:00Z", None),
        ("resets at 9999-12-31 23:59:59 -2359", None),
        ("resets at 9999999999", None),
    ],
)
def test_a_named_end_is_read_as_a_span_or_an_instant(message, wait):
    assert answer(429, f"Usage limit reached. {message}").retry_after == wait


def test_a_row_that_reads_words_or_an_unambiguous_code_is_not_overruled():
    assert answer(429, "session limit", "rate_limit_exceeded", table=OPENAI).row == "common:plan_used_up"
    assert answer(429, "no credits, model is overloaded", "queue_exceeded").row == "compatible:queue_code"
    body = {"error": {"status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, limit: 5"}}
    assert judge(GEMINI, 429, [], json.dumps(body).encode(), NOW).kind is Kind.RATE_LIMIT


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("insufficient_quota", "The upstream is at capacity, try later", Kind.OVERLOADED),
        ("insufficient_quota", "当前分组上游负载已饱和，请稍后再试", Kind.OVERLOADED),
        ("billing_not_active", "The server is busy", Kind.OVERLOADED),
        ("credit_limit", "You have been rate limited. Your rate limit is 60 queries per minute.", Kind.RATE_LIMIT),
        ("credit_limit", "You have no credits left", Kind.QUOTA_EXHAUSTED),
        ("credit_limit", "The rate of your spending is too high", Kind.QUOTA_EXHAUSTED),
        ("insufficient_quota", "You exceeded your current quota, please check your plan", Kind.QUOTA_EXHAUSTED),
        ("insufficient_quota", "Too many requests", Kind.QUOTA_EXHAUSTED),
        ("insufficient_quota", "No quota: limit: 0", Kind.QUOTA_EXHAUSTED),
        ("insufficient_quota", "The server is busy and your credits are used up", Kind.QUOTA_EXHAUSTED),
    ],
)
def test_words_that_state_a_load_or_a_rates_window_outweigh_a_code_of_money(code, message, kind):
    assert answer(429, message, code).kind is kind


def test_a_code_of_money_holds_where_the_status_denies():
    assert answer(402, "The server is busy", "billing_not_active").kind is Kind.QUOTA_EXHAUSTED
    assert answer(403, "The server is busy", "insufficient_quota").kind is Kind.QUOTA_EXHAUSTED


def test_an_upstreams_rate_in_a_gateways_words_is_anothers_capacity():
    found = answer(429, "Upstream request failed: [rate_limit_exceeded] Rate limit exceeded")
    assert (found.kind, found.row) == (Kind.OVERLOADED, "common:others_capacity_words")
    assert answer(429, "Request failed: rate limit exceeded").kind is Kind.RATE_LIMIT


def test_the_first_of_two_windows_decides_with_a_number_before_it_too():
    assert answer(429, "Maximum 100 calls per 1 hour or 400 per day").kind is Kind.RATE_LIMIT
    assert answer(429, "Maximum 400 calls per day or 100 per 1 hour").kind is Kind.DAILY_LIMIT


@pytest.mark.parametrize(
    ("value", "quota", "rule"),
    [("50", "RequestsPerDayPerModel", "day_used_up"), ("0", "RequestsPerMinutePerModel", "limit_of_zero")],
)
def test_a_quota_that_a_body_lists_counts_whoever_passes_it_on(value, quota, rule):
    violations = [{"quotaId": quota, "quotaValue": value}, {"quotaId": "TokensPerMinute", "quotaValue": "1000"}]
    body = {"error": {"message": "Quota exceeded", "details": [{"violations": violations}]}}
    assert judge(COMPATIBLE, 429, [], json.dumps(body).encode(), NOW).row == f"common:{rule}"


def test_a_money_row_gives_way_to_a_day_whose_end_is_named():
    error = {"message": "You exceeded your current quota of requests per day. Please retry in 36.1s."}
    assert judge(OPENAI, 429, [], json.dumps({"error": error}).encode(), NOW).kind is Kind.DAILY_LIMIT
