"""The time of a run is foretold from what an earlier run has learned of its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.families import HEADERS, SILENT
from bench.scenarios import Row
from bench.virtual import Laboratory
from tidegate.core.saved_state import SavedQuota
from tidegate.core.values import INFINITY, Cost, RequestFacts
from tidegate.experiments.engine.forecast import (
    CallCosts,
    KeyLimits,
    Range,
    TimeForecast,
    expected_costs,
    foresee,
    likely_mean,
    limits_of,
    longest,
)
from tidegate.testing import Distribution, Limit, Scenario

LATENCY = Distribution.lognormal(0.5, 0.2)
HOUR = 3_600.0


def provider(*limiters: Limit, dialect: str = "openai", **facts: object) -> Scenario:
    given_facts: dict[str, object] = {"dialect": dialect, "limiters": limiters, "latency": LATENCY, **facts}
    return Scenario.model_validate(given_facts)


SIX = {
    "requests": Row(name="", family=HEADERS, scenario=provider(Limit(limit=300)), count=900),
    "tokens": Row(
        name="",
        family=HEADERS,
        scenario=provider(Limit(limit=10_000), Limit(limit=140_000, unit="tokens")),
        count=600,
        sizes=(40, 4000),
    ),
    "produced": Row(
        name="",
        family=HEADERS,
        scenario=provider(
            Limit(limit=4000),
            Limit(limit=1_600_000, unit="input_tokens"),
            Limit(limit=30_000, unit="output_tokens"),
            dialect="anthropic",
            charge="produced",
            output_tokens=Distribution.lognormal(200, 0.5),
        ),
        count=650,
        sizes=(40, 4000),
        max_tokens=1024,
        sdk="anthropic",
    ),
    "windows": Row(name="", family=HEADERS, scenario=provider(Limit(kind="fixed", limit=100)), count=550),
    "hidden rate": Row(
        name="",
        family=SILENT,
        scenario=provider(Limit(limit=8, window=1.0, burst=8), dialect="none"),
        count=1000,
    ),
    "hidden slots": Row(
        name="", family=SILENT, scenario=provider(Limit(kind="slots", limit=16), dialect="none"), count=1500
    ),
}
BOUND_BY = {
    "requests": "300 requests/min",
    "tokens": "140k tokens/min",
    "produced": "30k output-tokens/min",
    "windows": "100 requests/min",
    "hidden slots": "16 calls at once",
}


@pytest.mark.parametrize("name", SIX)
def test_a_plan_is_right_within_15_percent_once_the_limits_are_known(name: str) -> None:
    row = SIX[name]
    first = Laboratory(replace(row, count=150), 1)
    first.run()
    (learned,) = first.registry.export_state().keys
    facts = [RequestFacts("m", row.chars(call), call.max_tokens) for call in row.calls(2)]
    costs = expected_costs(first.provider, facts, row.count, learned.learned, None)
    planned = foresee(costs, limits_of(learned.learned, HOUR))
    assert planned is not None
    played = Laboratory(row, 2)
    played.run()
    assert planned.seconds.middle == pytest.approx(played.makespan, rel=0.15)
    assert planned.bound_by.startswith(BOUND_BY.get(name, "the learned rate of "))


def bucket(limit: float, level: float, window: float = 60.0) -> SavedQuota:
    return SavedQuota("requests", "requests", "continuous", limit, window, level, None, True, "continuous")


def calls(count: int, *tokens: float) -> CallCosts:
    low, middle, high = (Cost(tokens=each) for each in (tokens or (1.0, 1.0, 1.0)))
    return CallCosts(count, low, middle, high)


def seconds_of(planned: TimeForecast | None) -> Range:
    assert planned is not None
    return planned.seconds


def test_a_bucket_takes_its_level_first_and_then_its_rate() -> None:
    planned = foresee(calls(160), KeyLimits((bucket(60.0, 40.0),), seconds=2.0))
    assert planned == TimeForecast(Range(122.0, 122.0, pytest.approx(128.0)), "60 requests/min")


def test_a_quota_is_as_full_as_it_was_and_what_has_come_back_since() -> None:
    from tidegate.core.saved_state import SavedKey

    saved = SavedKey((bucket(60.0, 0.0),), {"pace": {"rate": 0.5}, "answer": {"seconds": 3.0}})
    limits = limits_of(saved, 20.0)
    assert (limits.quotas[0].level, limits.pace, limits.slots, limits.seconds) == (20.0, 0.5, INFINITY, 3.0)
    assert limits.texts == ["60 requests/min", "the learned rate of 30 calls/min"]


def test_nothing_is_foretold_without_a_limit() -> None:
    assert foresee(calls(10), KeyLimits(seconds=1.0)) is None
    assert seconds_of(foresee(calls(0), KeyLimits())) == (0.0, 0.0, 0.0)


def test_the_calls_that_a_user_allows_at_once_bind_where_an_answer_takes_long() -> None:
    limits = KeyLimits((bucket(6_000.0, 6_000.0),), seconds=10.0)
    assert seconds_of(foresee(calls(100), limits)).middle == 10.0
    planned = foresee(calls(100), limits, at_once=5)
    assert planned is not None
    assert (planned.seconds.middle, planned.bound_by) == (200.0, "5 calls at once")


def test_the_latest_key_decides() -> None:
    one, other = TimeForecast(Range(1.0, 2.0, 9.0), "a"), TimeForecast(Range(2.0, 3.0, 4.0), "b")
    assert longest([one, other]) == TimeForecast(Range(2.0, 3.0, 9.0), "b")


def test_calls_of_two_stages_at_one_key_are_planned_together() -> None:
    both = calls(30, 1.0, 2.0, 3.0).plus(calls(10, 5.0, 6.0, 7.0))
    assert (both.calls, both.low.tokens, both.middle.tokens, both.high.tokens) == (40, 2.0, 3.0, 4.0)
    assert both.middle.requests == 1.0


AMOUNTS = st.floats(0.0, 1e6)


@given(st.lists(AMOUNTS, min_size=1, max_size=40), st.integers(1, 10_000))
def test_a_mean_is_in_its_range_which_shrinks_to_it_where_all_are_known(sample: list[float], more: int) -> None:
    low, middle, high = likely_mean(sample, len(sample) + more)
    assert 0.0 <= low <= middle <= high
    assert likely_mean(sample, len(sample)) == (middle, middle, middle)


LIMITS = st.builds(
    KeyLimits,
    st.tuples(st.builds(bucket, st.floats(10.0, 1e4), st.floats(0.0, 10.0))),
    st.one_of(st.just(0.0), st.floats(0.01, 100.0)),
    st.one_of(st.just(INFINITY), st.floats(1.0, 500.0)),
    st.one_of(st.none(), st.floats(0.01, 60.0)),
)


@given(LIMITS, st.integers(1, 5_000), st.integers(0, 5_000))
def test_more_calls_take_no_less_time_and_every_range_is_in_order(limits: KeyLimits, count: int, more: int) -> None:
    fewer, all_of_them = seconds_of(foresee(calls(count), limits)), seconds_of(foresee(calls(count + more), limits))
    assert fewer.low <= fewer.middle <= fewer.high
    assert fewer.middle <= all_of_them.middle


@given(LIMITS, st.integers(1, 5_000), st.floats(1.0, 10.0))
def test_a_greater_quota_takes_no_more_time(limits: KeyLimits, count: int, factor: float) -> None:
    (quota,) = limits.quotas
    greater = limits._replace(quotas=(quota._replace(limit=quota.limit * factor),))
    before, after = seconds_of(foresee(calls(count), limits)), seconds_of(foresee(calls(count), greater))
    assert after.middle <= before.middle * (1.0 + 1e-9)
