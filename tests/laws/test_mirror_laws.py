"""Mirrors: how they refill does not depend on when they are looked at, and no reading breaks them."""

from __future__ import annotations

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import KEY, bucket, fixed
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.fixed_window import FixedWindowMirror
from tidegate.core.token_bucket import DRAG_EXPECTED_SECONDS, TokenBucketMirror
from tidegate.core.values import Cause, Cost, Kind, Outcome, QuotaReading
from tidegate.settings import Settings

gaps = st.integers(0, 400).map(lambda tenths: tenths / 10)
spending = st.lists(st.tuples(gaps, st.integers(0, 5), st.booleans(), st.integers(0, 60)), max_size=40)


@pytest.mark.parametrize("kind", [TokenBucketMirror, FixedWindowMirror])
@given(history=spending, looks=st.lists(st.integers(1, 4), min_size=40, max_size=40))
def test_refilling_a_then_b_is_refilling_a_plus_b(
    kind: type[TokenBucketMirror] | type[FixedWindowMirror],
    history: list[tuple[float, int, bool, int]],
    looks: list[int],
) -> None:
    given_first = (bucket if kind is TokenBucketMirror else fixed)(60.0, reset_after=7.0)
    once, often = kind(given_first, 0.0), kind(given_first, 0.0)
    once.observe(given_first, 0, 0.0, 0.0, None)
    often.observe(given_first, 0, 0.0, 0.0, None)
    now = 0.0
    for order, ((gap, amount, told, remaining), steps) in enumerate(zip(history, looks, strict=False), 1):
        for step in range(steps):
            often.level(now + gap * step / steps)
            if isinstance(often, TokenBucketMirror):
                often._advance(now + gap * step / steps)
        now += gap
        for mirror in (once, often):
            mirror.debit(float(amount), 0.0, order, now)
            if told:
                mirror.observe(bucket(60.0, float(remaining)), order, now, now, None)
        assert often.level(now) == pytest.approx(once.level(now), abs=1e-6)


@given(spending)
def test_a_bucket_never_grants_more_than_its_limit_and_its_refill(
    history: list[tuple[float, int, bool, int]],
) -> None:
    mirror = TokenBucketMirror(bucket(60.0), 0.0)
    granted: list[tuple[float, int]] = []
    now = 0.0
    for order, (gap, amount, _, _) in enumerate(history, 1):
        now += gap
        if amount and mirror.ready_at(float(amount), 0.0, now) <= now:
            mirror.debit(float(amount), 0.0, order, now)
            granted.append((now, amount))
    for first, (start, _) in enumerate(granted):
        total = 0
        for end, amount in granted[first:]:
            total += amount
            assert total <= 60.0 + (end - start) + 1e-6


@given(spending)
def test_where_an_amount_is_said_to_fit_it_fits(history: list[tuple[float, int, bool, int]]) -> None:
    mirror = TokenBucketMirror(bucket(60.0), 0.0)
    now = 0.0
    for order, (gap, amount, _, _) in enumerate(history, 1):
        now = max(now + gap, mirror.ready_at(float(amount), 0.0, now + gap))
        assert mirror.ready_at(float(amount), 0.0, now) <= now
        mirror.debit(float(amount), 0.0, order, now)


strange = st.one_of(st.none(), st.sampled_from([0.0, -1.0, -1e9, 0.5, 1.0, 100.0, 1e9, 1e18]), st.floats(-10, 1e4))
garbage = st.builds(
    QuotaReading,
    name=st.sampled_from(["requests", "tokens"]),
    unit=st.sampled_from(["requests", "tokens"]),
    refill=st.sampled_from(["continuous", "fixed"]),
    limit=strange,
    remaining=strange,
    reset_after=strange,
    window=strange,
    resolution=st.sampled_from([0.001, 1.0]),
)
YEAR = 366 * 86_400.0


@given(st.lists(st.tuples(garbage, st.booleans(), strange, gaps), max_size=25))
def test_no_reading_breaks_a_key_or_closes_it_for_ever(
    answers: list[tuple[QuotaReading, bool, float | None, float]],
) -> None:
    now = 0.0
    registry = RateLimitRegistry(Settings(), clock=lambda: now, draw=lambda: 0.5)
    for reading, refused, hint, gap in answers:
        permit = registry.try_admit(KEY, Cost(tokens=10.0))
        if permit:
            kind, cause = (Kind.RATE_LIMIT, Cause.RATE) if refused else (Kind.OK, Cause.NONE)
            registry.settle(permit, Outcome(kind, cause, hint if refused else None, (reading,)))
        (key,) = registry.snapshot().keys.values()
        assert not isnan(key.ready_in)
        assert not any(isnan(quota.level) for quota in key.quotas)
        assert key.ready_in <= 2 * YEAR + 1.0
        now += gap


@given(st.lists(st.tuples(garbage, gaps), min_size=1, max_size=20))
def test_a_bucket_that_is_stuck_is_free_after_two_of_its_windows(answers: list[tuple[QuotaReading, float]]) -> None:
    """And the time for which others are taken to go on taking."""
    mirror = TokenBucketMirror(bucket(60.0), 0.0)
    now = 0.0
    for order, (reading, gap) in enumerate(answers, 1):
        mirror.observe(reading, order, now, now, None)
        assert mirror.ready_at(1.0, 0.0, now) <= now + 2.0 * mirror.window * 1.001 + DRAG_EXPECTED_SECONDS
        now += gap
