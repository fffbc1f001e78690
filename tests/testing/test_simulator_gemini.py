"""What the simulator says as Gemini, as the table of Gemini reads it, and as its SDK asks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

import pytest

from tidegate.core.values import Cause, Kind
from tidegate.providers import GEMINI, VERTEX, judge
from tidegate.testing import Call, ContinuousBucket, Credit, DayQuota, Gate, Outage, Pricing, Simulator, Slots
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts

NOW = datetime(2026, 11, 21, tzinfo=UTC)
GENERATE = {"contents": [{"role": "user", "parts": [{"text": "How high?"}]}]}


def judged(*limiters: Any, call: Call | None = None, times: int = 1, seconds: float | None = None) -> Any:
    gate = Gate(limiters, Pricing())
    for _ in range(times):
        refusal: Any = gate.admit(call or Call(), 0.0)
    answer = DIALECT_TABLE["gemini"].refuse(refusal, RefusalFacts("gemini-3", seconds, prose=True))
    assert answer.headers == []
    return judge(GEMINI, answer.status, (), json.dumps(answer.body).encode(), NOW)


def ask(provider: Simulator, path: str, body: dict[str, Any], **headers: str) -> tuple[int, str, bytes]:
    request = urllib.request.Request(provider.gemini_url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers["content-type"], response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read()


def test_a_minutes_quota_is_named_with_its_size_and_its_time() -> None:
    outcome = judged(ContinuousBucket("requests", "requests", limit=5, window=60.0), times=6, seconds=11.25)
    assert (outcome.kind, outcome.cause) == (Kind.RATE_LIMIT, Cause.RATE)
    assert outcome.retry_after == pytest.approx(11.25, abs=1.0)
    (reading,) = outcome.readings
    assert (reading.unit, reading.limit, reading.window) == ("requests", 5.0, 60.0)


def test_a_minutes_tokens_are_input_tokens() -> None:
    tokens = ContinuousBucket("tokens", "tokens", limit=100, window=60.0)
    (reading,) = judged(tokens, call=Call(60), times=2, seconds=12.0).readings
    assert (reading.unit, reading.limit) == ("input_tokens", 100.0)


@pytest.mark.parametrize(
    ("limiter", "call", "times", "kind"),
    [
        (DayQuota("day", "requests", limit=1), Call(), 2, Kind.DAILY_LIMIT),
        (Credit("money", limit=0), Call(), 1, Kind.PERMANENT),
        (ContinuousBucket("tokens", "tokens", limit=10, window=60.0), Call(11), 1, Kind.PERMANENT),
        (Slots("slots", limit=1, status=429), Call(), 2, Kind.OVERLOADED),
        (Slots("slots", limit=1, status=503), Call(), 2, Kind.OVERLOADED),
        (Outage("outage", start=0.0, end=1.0, status=503), Call(), 1, Kind.OVERLOADED),
        (Outage("outage", start=0.0, end=1.0, status=500), Call(), 1, Kind.TRANSIENT),
        (Outage("outage", start=0.0, end=1.0, status=502), Call(), 1, Kind.TRANSIENT),
    ],
)
def test_every_refusal_is_what_the_table_takes_it_for(limiter: Any, call: Call, times: int, kind: Kind) -> None:
    assert judged(limiter, call=call, times=times, seconds=3.0).kind is kind


def test_a_window_that_google_does_not_have_is_not_named() -> None:
    assert judged(ContinuousBucket("requests", "requests", limit=5, window=7.0), times=6, seconds=1.0).readings == ()


def test_a_whole_answer_says_what_was_used() -> None:
    with Simulator() as provider:
        status, _, body = ask(provider, "/v1beta/models/gemini-3:generateContent", GENERATE)
    answer = json.loads(body)
    assert status == 200
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "You said: How high?"}]
    assert answer["usageMetadata"]["promptTokenCount"] == 3
    assert judge(GEMINI, 200, (), body, NOW).usage is not None


def test_the_path_says_that_an_answer_streams_and_which_model_it_is_of() -> None:
    with Simulator() as provider:
        path = "/v1beta1/projects/p/locations/l/publishers/google/models/gemini-3:streamGenerateContent?alt=sse"
        _, kind, body = ask(provider, path, GENERATE)
        (name,) = provider.truth().keys
    events = [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n") if line]
    assert kind.startswith("text/event-stream")
    assert "".join(event["candidates"][0]["content"]["parts"][0]["text"] for event in events) == "You said: How high?"
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"
    assert name.startswith("gemini-3 ")
    assert judge(VERTEX, 200, (), body, NOW).usage is not None


def test_googles_key_is_a_credential() -> None:
    with Simulator() as provider:
        for key in ("one", "two", "two"):
            ask(provider, "/v1/models/m:generateContent", GENERATE, **{"x-goog-api-key": key})
        assert sorted(counts.received for counts in provider.truth().keys.values()) == [1, 2]


@pytest.mark.parametrize("path", ["/v1/models/m:generateContent", "/v1/models/m:countTokens"])
def test_a_body_that_cannot_be_read_is_a_bad_request(path: str) -> None:
    with Simulator() as provider:
        assert ask(provider, path, {"contents": "How high?"})[0] == 400
        assert provider.truth().total.received == 0


def test_an_unknown_method_is_not_found() -> None:
    with Simulator() as provider:
        assert ask(provider, "/v1/models/m:dream", GENERATE)[0] == 404
