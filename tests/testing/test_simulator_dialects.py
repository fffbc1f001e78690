"""What each dialect writes, against the forms of real captures."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tidegate import providers
from tidegate.core.values import Cause, Kind
from tidegate.testing import (
    Call,
    ContinuousBucket,
    Credit,
    DayQuota,
    FixedWindow,
    Gate,
    Outage,
    Pricing,
    Slope,
    Slots,
)
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts, go_duration, told

WALL = datetime(2026, 4, 23, 20, 50, 36, 900_000, tzinfo=UTC).timestamp()


def levels(*limiters, taken=0, now=0.0):
    for limiter in limiters:
        limiter.charge(taken, now)
    return [limiter.level(now) for limiter in limiters]


def refused(*limiters, call=None, times=1, pricing=None):
    gate = Gate(limiters, pricing or Pricing())
    for _ in range(times):
        refusal = gate.admit(call or Call(), 0.0)
    return refusal


def answer(dialect, refusal, seconds=None, prose=True):
    return DIALECT_TABLE[dialect].refuse(refusal, RefusalFacts("gpt-5-mini", seconds, prose))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "0s"),
        (0.006, "6ms"),
        (0.01714, "17ms"),
        (1.2, "1.2s"),
        (8.64, "8.64s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (432, "7m12s"),
        (5011.2, "1h23m31.2s"),
        (10_068.417, "2h47m48.417s"),
        (86_400, "24h0m0s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds, text):
    assert go_duration(seconds) == text


def test_openai_tells_the_floor_of_what_is_left_and_the_time_until_full():
    requests = ContinuousBucket("requests", limit=10_000, window=60)
    tokens = ContinuousBucket("tokens", "tokens", limit=90_000, window=60)
    requests.charge(1, 0.0)
    tokens.charge(17.5, 0.0)
    assert dict(DIALECT_TABLE["openai"].headers(levels(requests, tokens), WALL)) == {
        "x-ratelimit-limit-requests": "10000",
        "x-ratelimit-remaining-requests": "9999",
        "x-ratelimit-reset-requests": "6ms",
        "x-ratelimit-limit-tokens": "90000",
        "x-ratelimit-remaining-tokens": "89982",
        "x-ratelimit-reset-tokens": "11ms",
    }


def test_openai_names_the_limit_of_a_refusal_and_when_to_come_again():
    refusal = refused(ContinuousBucket("tokens", "tokens", limit=600, window=60), call=Call(input_tokens=400), times=2)
    said = answer("openai", refusal, refusal.retry_after)
    assert said.status == 429
    assert said.headers == [("retry-after", "20"), ("retry-after-ms", "20000")]
    error = said.body["error"]
    assert (error["type"], error["code"], error["param"]) == ("tokens", "rate_limit_exceeded", None)
    assert error["message"].startswith(
        "Rate limit reached for gpt-5-mini in organization org-tidegate on tokens per min (TPM): "
        "Limit 600, Used 400, Requested 400. Please try again in 20s."
    )


def test_openai_keeps_the_time_out_of_the_text_where_prose_is_off():
    refusal = refused(ContinuousBucket("requests", limit=1, window=60), times=2)
    assert "try again" not in answer("openai", refusal, 60.0, prose=False).body["error"]["message"]


def test_a_request_that_never_fits_says_what_it_asked_for_and_names_no_time():
    refusal = refused(ContinuousBucket("tokens", "tokens", limit=30_000, window=60), call=Call(input_tokens=32_042))
    said = answer("openai", refusal)
    assert said.status == 429
    assert said.headers == []
    assert "Request too large for gpt-5-mini" in said.body["error"]["message"]
    assert "Limit 30000, Requested 32042" in said.body["error"]["message"]


def test_a_day_quota_says_per_day():
    refusal = refused(DayQuota("day", limit=1), times=2)
    assert "requests per day (RPD): Limit 1, Used 1, Requested 1" in answer("openai", refusal).body["error"]["message"]
    assert "of 1 requests per day" in answer("anthropic", refusal).body["error"]["message"]
    assert "per day" in answer("azure", refusal, refusal.retry_after).body["error"]["message"]
    assert "per day" in answer("none", refusal).body["error"]["message"]
    assert "retry after 86400 seconds" in answer("azure", refusal, refusal.retry_after).body["error"]["message"]


def test_a_scaled_minute_is_named_by_its_seconds():
    refusal = refused(ContinuousBucket("requests", limit=1, window=6), times=2)
    assert "on requests per 6s: Limit 1" in answer("openai", refusal).body["error"]["message"]


def test_no_money_is_insufficient_quota_and_anthropics_credit_balance():
    refusal = refused(Credit())
    error = answer("openai", refusal).body["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    said = answer("anthropic", refusal)
    assert said.status == 400
    assert "credit balance is too low" in said.body["error"]["message"]


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "ietf", "none"])
@pytest.mark.parametrize("status", [429, 503, 529])
def test_slots_answer_with_their_own_status_and_no_time(dialect, status):
    said = answer(dialect, refused(Slots(limit=1, status=status), times=2))
    assert said.status == status
    assert said.headers == []


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic", "ietf", "none"])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_an_outage_answers_with_its_status_and_a_proxys_page_for_502_and_504(dialect, status):
    said = answer(dialect, refused(Outage(start=0, end=1, status=status)))
    assert said.status == status
    assert isinstance(said.body, str) is (status in (502, 504))


@pytest.mark.parametrize(
    ("dialect", "provider", "cause"),
    [
        ("openai", providers.COMPATIBLE, Cause.SLOPE),
        ("azure", providers.COMPATIBLE, Cause.SLOPE),
        ("anthropic", providers.ANTHROPIC, Cause.SLOPE),
        ("none", providers.COMPATIBLE, Cause.RATE),
        ("bedrock", providers.BEDROCK, Cause.RATE),
    ],
)
def test_a_spike_is_refused_in_words_that_our_tables_know(dialect, provider, cause):
    refusal = refused(Slope(limit=2, window=1.0), times=3)
    said = answer(dialect, refusal)
    assert said.status == 429
    headers = [(name.encode(), value.encode()) for name, value in said.headers]
    outcome = providers.judge(provider, 429, headers, json.dumps(said.body).encode(), datetime.now(UTC))
    assert (outcome.kind, outcome.cause) == (Kind.RATE_LIMIT, cause)


def test_anthropic_overload_is_an_overloaded_error():
    said = answer("anthropic", refused(Outage(start=0, end=1, status=529)))
    assert said.body["error"] == {"type": "overloaded_error", "message": "Overloaded"}


def test_azure_2025_tells_no_time_and_2026_tells_the_period():
    window = FixedWindow("tokens", "tokens", limit=120_000, window=60)
    window.charge(14, 29.5)
    (level,) = [window.level(29.5)]
    assert dict(DIALECT_TABLE["azure"].headers([level], WALL)) == {
        "x-ratelimit-limit-tokens": "120000",
        "x-ratelimit-remaining-tokens": "119986",
    }
    renewal = dict(DIALECT_TABLE["azure-renewal"].headers([level], WALL))
    assert renewal["x-ratelimit-renewalperiod-tokens"] == "60"
    assert renewal["x-ratelimit-reset-tokens"] == "30"


def test_azure_names_whole_seconds_in_its_text_and_header():
    refusal = refused(FixedWindow("tokens", "tokens", limit=10, window=6), call=Call(input_tokens=8), times=2)
    said = answer("azure", refusal, 5.2)
    assert ("retry-after", "6") in said.headers
    assert said.body["error"]["code"] == "429"
    assert "have exceeded token rate limit of your current OpenAI S0" in said.body["error"]["message"]
    assert said.body["error"]["message"].endswith("Please retry after 6 seconds.")


def test_anthropic_rounds_tokens_to_thousands_and_resets_to_whole_seconds():
    into = ContinuousBucket("in", "input_tokens", limit=20_000_000, window=60)
    out = ContinuousBucket("out", "output_tokens", limit=4_000_000, window=60)
    requests = ContinuousBucket("requests", limit=20_000, window=60)
    into.charge(700, 0.0)
    requests.charge(2, 0.0)
    headers = dict(DIALECT_TABLE["anthropic"].headers(levels(requests, into, out), WALL))
    assert headers["anthropic-ratelimit-input-tokens-remaining"] == "19999000"
    assert headers["anthropic-ratelimit-output-tokens-remaining"] == "4000000"
    assert headers["anthropic-ratelimit-tokens-limit"] == "24000000"
    assert headers["anthropic-ratelimit-tokens-remaining"] == "23999000"
    assert headers["anthropic-ratelimit-requests-remaining"] == "19998"
    assert headers["anthropic-ratelimit-requests-reset"] == "2026-04-23T20:50:36Z"


def test_anthropic_does_not_round_small_limits():
    (level,) = levels(ContinuousBucket("in", "input_tokens", limit=9000, window=60), taken=123)
    assert ("anthropic-ratelimit-input-tokens-remaining", "8877") in DIALECT_TABLE["anthropic"].headers([level], WALL)


def test_anthropic_writes_the_limit_with_a_comma_and_retry_after_in_seconds_only():
    refusal = refused(
        ContinuousBucket("in", "input_tokens", limit=40_000, window=60), call=Call(input_tokens=40_000), times=2
    )
    said = answer("anthropic", refusal, refusal.retry_after)
    assert said.headers == [("retry-after", "60")]
    assert said.body["error"]["type"] == "rate_limit_error"
    assert "of 40,000 input tokens per minute" in said.body["error"]["message"]


def test_the_ietf_triplet_tells_of_the_limit_nearest_to_its_end():
    minute, day = FixedWindow("minute", limit=100, window=10), DayQuota("day", limit=1000)
    minute.charge(50, 5.0)
    day.charge(50, 5.0)
    headers = dict(DIALECT_TABLE["ietf"].headers([minute.level(5.0), day.level(5.0)], WALL))
    assert headers == {
        "ratelimit-limit": "100, 100;w=10, 1000;w=86400",
        "ratelimit-remaining": "50",
        "ratelimit-reset": "5",
    }


def test_no_dialect_tells_nothing_but_the_status():
    refusal = refused(ContinuousBucket("requests", limit=1, window=60), times=2)
    said = answer("none", refusal, 60.0)
    assert (said.status, said.headers, said.body) == (429, [], {"error": {"message": "Too Many Requests"}})
    assert DIALECT_TABLE["none"].headers([refusal.level], WALL) == []


def test_a_debt_is_announced_as_nothing_left():
    (level,) = levels(ContinuousBucket("tokens", "tokens", limit=100, window=60), taken=150)
    assert ("x-ratelimit-remaining-tokens", "0") in DIALECT_TABLE["openai"].headers([level], WALL)
    assert ("x-ratelimit-reset-tokens", "1m30s") in DIALECT_TABLE["openai"].headers([level], WALL)


def test_the_hint_is_exact_late_absurd_or_absent():
    assert [told(mode, 2.0) for mode in ("exact", "late", "none")] == [2.0, 6.0, None]
    assert (told("absurd", 2.0) or 0.0) > 86_400.0
    assert told("absurd", None) is None
