"""What each dialect writes, against the forms of real captures."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.testing import (
    Call,
    ContinuousBucket,
    DayQuota,
    FixedWindow,
    Gate,
    Pricing,
)
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts, told

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


def test_the_hint_is_exact_late_absurd_or_absent():
    assert [told(mode, 2.0) for mode in ("exact", "late", "none")] == [2.0, 6.0, None]
    assert (told("absurd", 2.0) or 0.0) > 86_400.0
    assert told("absurd", None) is None
