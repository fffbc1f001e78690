"""Quotas that only the name of a header describes."""

from datetime import UTC, datetime

import pytest

from tidegate.providers import COMPATIBLE, dimensions, judge, named
from tidegate.providers._fields import place_of
from tidegate.providers._schema import CODE, LIMIT, REMAINING, RESET, WAIT

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "place", "unit", "window"),
    [
        ("x-ai-ratelimit-remaining-minute-openai", REMAINING, "tokens", 60),
        ("x-ai-ratelimit-limit-300-llama2", LIMIT, "tokens", 300),
        ("x-rate-limit-remaining-request-per-minute", REMAINING, "requests", 60),
        ("x-ratelimit-reset-10-second", RESET, "requests", 10),
        ("x-ratelimit-limit-tokens-daily", LIMIT, "tokens", 86400),
        ("x-ratelimit-limit-input-tokens-5h", LIMIT, "input_tokens", 18000),
        ("x-ratelimit-limit-gpt-4-minute", LIMIT, "requests", 60),
        ("x-ratelimit-limit-audio-seconds-minute", LIMIT, "audio_seconds", 60),
        ("x-ratelimit-remaining-input-characters-minute", REMAINING, "input_characters", 60),
    ],
)
def test_a_name_describes_its_quota(name, place, unit, window):
    found = place_of(name)
    assert (found.place, found.row.unit, found.row.window) == (place, unit, window)


@pytest.mark.parametrize(
    ("name", "place"),
    [("x-ai-ratelimit-retry-after-minute-x", WAIT), ("x-ratelimit-type", CODE), ("x-ratelimit-exceeded", CODE)],
)
def test_a_name_without_a_quota_holds_a_wait_or_a_reason(name, place):
    assert place_of(name) == (place, None)


@pytest.mark.parametrize(
    "name",
    ["x-ratelimit-limit-gpt-4", "x-ratelimit-policy", "x-ratelimit-used-minute", "x-limit-minute", "content-length",
     "anthropic-ratelimit-unified-5h-reset", "x-ratelimit-limit-cost-minute", "x-ratelimit-limit-remaining-minute"],
)  # fmt: skip
def test_other_names_describe_nothing(name):
    assert place_of(name) is None


def read(headers, status=200, table=COMPATIBLE):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    outcome = judge(table, status, pairs, None, NOW)
    return outcome, dimensions(outcome, table)


def test_headers_of_one_quota_are_one_reading_in_any_case_and_table():
    for table in (COMPATIBLE, named("groq")):
        for prefix in ("X-AI-RateLimit", "x-ai-ratelimit"):
            parts = {"Limit": "500", "Remaining": "20", "Reset": "8"}
            outcome, seen = read({f"{prefix}-{part}-hour-azure": v for part, v in parts.items()}, table=table)
            assert len(outcome.readings) == 1
            assert seen == {
                "limits": {"tokens_per_hour": 500},
                "remaining": {"tokens_per_hour": 20},
                "reset_after_s": {"tokens_per_hour": 8},
            }


@pytest.mark.parametrize("headers", [{"x-ratelimit-reset-weekly": "60"}, {"x-ai-ratelimit-limit-minute-x": "0.00001"}])
def test_a_reset_alone_and_fractions_of_money_are_no_quota(headers):
    assert read(headers)[0].readings == ()


def test_a_wait_in_such_a_name_is_acted_on_after_a_refusal_only():
    headers = {"x-ai-ratelimit-retry-after-minute-x": "8"}
    assert read(headers, 429)[0].retry_after == 8
    assert read(headers)[0].retry_after is None


def test_a_list_of_windows_is_read_by_its_policy():
    headers = {"limit": "1, 2000", "remaining": "0, 1977", "reset": "1, 389223", "policy": "1;w=1, 2000;w=2592000"}
    _, seen = read({f"x-ratelimit-{part}": value for part, value in headers.items()})
    assert seen["remaining"] == {"requests_per_s": 0, "requests_per_month": 1977}
    assert seen["reset_after_s"] == {"requests_per_s": 1, "requests_per_month": 389223}


def test_a_reset_alone_belongs_to_the_only_quota_without_one():
    headers = {"x-ratelimit-limit-minute": "100", "x-ratelimit-remaining-minute": "0", "x-ratelimit-reset": "23"}
    outcome, seen = read(headers, 429)
    assert seen["reset_after_s"] == {"requests_per_minute": 23}
    assert outcome.retry_after == 23
