"""What the simulator says as Gemini, as the table of Gemini reads it, and as its SDK asks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tidegate.core.values import Cause, Kind
from tidegate.providers import judge
from tidegate.providers.google import GEMINI
from tidegate.testing import Call, ContinuousBucket, Credit, DayQuota, Gate, Outage, Pricing, Slots
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def judged(*limiters: Any, call: Call | None = None, times: int = 1, seconds: float | None = None) -> Any:
    gate = Gate(limiters, Pricing())
    for _ in range(times):
        refusal: Any = gate.admit(call or Call(), 0.0)
    answer = DIALECT_TABLE["gemini"].refuse(refusal, RefusalFacts("gemini-3", seconds, prose=True))
    assert answer.headers == []
    return judge(GEMINI, answer.status, (), json.dumps(answer.body).encode(), NOW)


def test_a_minutes_quota_is_named_with_its_size_and_its_time() -> None:
    outcome = judged(ContinuousBucket("requests", "requests", limit=5, window=60.0), times=6, seconds=11.25)
    assert (outcome.kind, outcome.cause) == (Kind.RATE_LIMIT, Cause.RATE)
    assert outcome.retry_after == pytest.approx(11.25, abs=1.0)
    (reading,) = outcome.readings
    assert (reading.unit, reading.limit, reading.window) == ("requests", 5.0, 60.0)


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
