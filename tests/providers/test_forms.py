"""Forms that no collected answer has: what their words mean is expected of the families, not of a list."""

import json
from datetime import UTC, datetime

import pytest

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)

CODES = {
    Kind.QUOTA_EXHAUSTED: (
        "credit_exhausted out_of_credits no_credits credits_depleted insufficient_points trial_expired "
        "subscription_required subscription_expired plan_limit_exceeded plan_limit_reached usage_cap_reached "
        "over_quota OverQuota QuotaLimitExceeded monthly_cap_reached weekly_cap_reached MonthlyLimitReached "
        "tokens_exhausted balance_insufficient insufficient_funds payment_failed unpaid_invoice account_overdue "
        "wallet_empty no_balance low_balance budget_limit_exceeded spending_cap_reached hard_limit_reached "
        "quota_limit_reached CREDIT_BALANCE_TOO_LOW not_enough_credits NotEnoughCredits NOT_ENOUGH_BALANCE "
        "budget_blocked "
    ),
    Kind.DAILY_LIMIT: (
        "daily_limit_reached daily_quota_exceeded DAILY_CAP requests_per_day_exceeded RPD_EXCEEDED day_limit "
        "DailyQuotaExceeded free_daily_limit tokens_per_day "
    ),
    Kind.RATE_LIMIT: (
        "rate_limit throttled slow_down TooManyRequests request_limit rpm_exceeded tpm_exceeded RATE_EXCEEDED "
        "rate_limit_exceeded RateLimitReached QPS_LIMIT "
    ),
}

MESSAGES = [
    (429, "You have reached the maximum number of requests allowed for your plan this month", Kind.QUOTA_EXHAUSTED),
    (429, "Monthly credit limit reached", Kind.QUOTA_EXHAUSTED),
    (429, "You've run out of free messages. Upgrade to continue", Kind.QUOTA_EXHAUSTED),
    (429, "Your free trial has ended", Kind.QUOTA_EXHAUSTED),
    (403, "Your subscription is inactive", Kind.QUOTA_EXHAUSTED),
    (403, "Please upgrade your plan to continue, you have used 100% of your monthly quota", Kind.QUOTA_EXHAUSTED),
    (429, "Account credits are depleted. Please recharge", Kind.QUOTA_EXHAUSTED),
    (402, "Weekly limit reached", Kind.QUOTA_EXHAUSTED),
    (429, "You have used up your quota. Please upgrade", Kind.QUOTA_EXHAUSTED),
    (429, "Usage limit exceeded for this billing period", Kind.QUOTA_EXHAUSTED),
    (429, "Your organization has reached its spending cap", Kind.QUOTA_EXHAUSTED),
    (403, "The account has no remaining credits", Kind.QUOTA_EXHAUSTED),
    (403, "credits: 0 remaining", Kind.QUOTA_EXHAUSTED),
    (429, "Insufficient tokens balance", Kind.QUOTA_EXHAUSTED),
    (401, "Payment method required", Kind.QUOTA_EXHAUSTED),
    (403, "Your API key has exceeded its budget", Kind.QUOTA_EXHAUSTED),
    (429, "token plan exhausted", Kind.QUOTA_EXHAUSTED),
    (400, "You have no remaining credits", Kind.QUOTA_EXHAUSTED),
    (500, "insufficient funds in wallet", Kind.QUOTA_EXHAUSTED),
    (429, "Your package has expired or been used up", Kind.QUOTA_EXHAUSTED),
    (403, "Quota limit reached", Kind.QUOTA_EXHAUSTED),
    (429, "You have reached your daily quota", Kind.DAILY_LIMIT),
    (429, "Limit of 50 requests per day reached", Kind.DAILY_LIMIT),
    (429, "Please come back tomorrow", Kind.DAILY_LIMIT),
    (403, "daily token budget exceeded", Kind.DAILY_LIMIT),
    (429, "RPD limit exceeded", Kind.DAILY_LIMIT),
    (429, "You've used all 25 requests for today", Kind.DAILY_LIMIT),
    (429, "Max 200 calls/day", Kind.DAILY_LIMIT),
    (500, "Free daily limit hit", Kind.DAILY_LIMIT),
    (429, "max requests per 24 hours reached", Kind.DAILY_LIMIT),
    (429, "quota resets at midnight UTC", Kind.DAILY_LIMIT),
    (429, "You have hit your 24h limit", Kind.DAILY_LIMIT),
    (400, "Daily limit of 100 requests exceeded", Kind.DAILY_LIMIT),
    (429, "Limit exceeded. Retry after 4 hours", Kind.DAILY_LIMIT),
    (429, "5-hour limit reached, resets in 2h 10m", Kind.DAILY_LIMIT),
    (429, "Your weekly limit resets in 3 days", Kind.DAILY_LIMIT),
    (429, "Please slow down", Kind.RATE_LIMIT),
    (429, "Request rate too high", Kind.RATE_LIMIT),
    (403, "rate exceeded", Kind.RATE_LIMIT),
    (503, "Rate limit exceeded, slow down", Kind.RATE_LIMIT),
    (503, "Too many requests", Kind.RATE_LIMIT),
    (500, "ThrottlingException: Rate exceeded", Kind.RATE_LIMIT),
    (403, "You're sending requests too quickly", Kind.RATE_LIMIT),
    (429, "too many tokens in the last minute", Kind.RATE_LIMIT),
    (429, "Only one request at a time is allowed", Kind.RATE_LIMIT),
    (429, "You already have an active generation in progress", Kind.RATE_LIMIT),
    (429, "Max 2 simultaneous jobs", Kind.RATE_LIMIT),
    (429, "tokens per hour limit reached, retry in 40 minutes", Kind.RATE_LIMIT),
    (403, "Too many concurrent sessions", Kind.RATE_LIMIT),
    (429, "maximum concurrent jobs reached", Kind.RATE_LIMIT),
    (503, "All workers are busy", Kind.OVERLOADED),
    (429, "Model is at capacity, try later", Kind.OVERLOADED),
    (503, "Service temporarily overloaded", Kind.OVERLOADED),
    (500, "No GPUs available", Kind.OVERLOADED),
    (429, "Server overloaded", Kind.OVERLOADED),
    (503, "no healthy upstream", Kind.OVERLOADED),
    (503, "Insufficient resources to process request", Kind.OVERLOADED),
    (429, "The system is experiencing high demand", Kind.OVERLOADED),
    (503, "Engine is busy", Kind.OVERLOADED),
    (503, "max queue length exceeded", Kind.OVERLOADED),
    (503, "Waiting queue is full", Kind.OVERLOADED),
    (429, "Peak hours: capacity reached", Kind.OVERLOADED),
    (500, "model overloaded, please retry", Kind.OVERLOADED),
    (503, "Cluster at full capacity", Kind.OVERLOADED),
    (504, "queue timeout: no worker picked up the request", Kind.TRANSIENT),
    (503, "Loading model", Kind.OVERLOADED),
    (503, "Model is warming up", Kind.OVERLOADED),
    (500, "Internal Server Error", Kind.TRANSIENT),
    (502, "Bad Gateway", Kind.TRANSIENT),
    (403, "Access to this model requires a paid plan", Kind.PERMANENT),
    (403, "forbidden", Kind.PERMANENT),
    (401, "invalid x-api-key", Kind.PERMANENT),
    (400, "context length exceeded", Kind.PERMANENT),
    (403, "This feature is not available in your subscription tier", Kind.PERMANENT),
    (403, "IP not whitelisted", Kind.PERMANENT),
    (400, "prompt too long: token limit exceeded", Kind.PERMANENT),
    (403, "Your account has been suspended for violating our terms", Kind.PERMANENT),
    (400, "n exceeds limit", Kind.PERMANENT),
    (400, "stop sequences limit reached", Kind.PERMANENT),
]


def kind_of(status, error):
    return judge(COMPATIBLE, status, [], json.dumps({"error": error}).encode(), NOW).kind


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(("code", "kind"), [(code, kind) for kind, codes in CODES.items() for code in codes.split()])
def test_a_code_says_what_its_words_say(code, kind, status):
    assert kind_of(status, {"code": code, "message": ""}) is kind


@pytest.mark.parametrize(("status", "message", "kind"), MESSAGES)
def test_the_words_of_a_message_name_its_meaning(status, message, kind):
    assert kind_of(status, {"message": message}) is kind
