"""The limiters' laws, in virtual time and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.testing import (
    Call,
    ContinuousBucket,
    Credit,
    FixedWindow,
    Gate,
    Pricing,
    Refusal,
    ResizedBucket,
    RollingWindow,
    Slope,
    Slots,
    Ticket,
)

steps = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=60)
"""(time until the next attempt, amount)"""

HALVES = [(Fraction(10), Fraction(1, 2)), (Fraction(25), Fraction(3, 4))]

exact = st.integers(0, 1000).map(lambda value: Fraction(value, 7))


def admitted(limiter, history):
    now, taken = Fraction(0), []
    for wait, amount in history:
        now += wait
        if limiter.ready_at(amount, now) <= now:
            limiter.charge(amount, now)
            taken.append((now, amount))
    return taken


def most_within(taken, window):
    """The largest sum of what was taken in any half-open interval of `window`."""
    return max((sum(amount for at, amount in taken if start <= at < start + window) for start, _ in taken), default=0)


@given(steps, st.integers(1, 60), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)))
def test_a_bucket_admits_no_more_than_its_content_and_its_refill_in_any_interval(history, limit, window, burst):
    bucket = ContinuousBucket("b", limit=Fraction(limit), window=Fraction(window), burst=burst and Fraction(burst))
    taken = admitted(bucket, history)
    for index, (start, _) in enumerate(taken):
        total = Fraction(0)
        for at, amount in taken[index:]:
            total += amount
            bound = bucket.capacity + Fraction(limit, window) * (at - start)
            assert total <= bound * (1 + Fraction(1, 10**8))


@given(steps, st.integers(1, 60), st.integers(1, 60), st.integers(0, 60))
def test_a_fixed_window_admits_no_more_than_its_limit_between_boundaries(history, limit, window, offset):
    taken = admitted(FixedWindow("f", limit=limit, window=window, offset=offset), history)
    spent: dict[int, int] = {}
    for at, amount in taken:
        index = math.floor((at - offset) / window)
        spent[index] = spent.get(index, 0) + amount
    assert all(amount <= limit for amount in spent.values())


@given(steps, st.integers(1, 60), st.integers(1, 60))
def test_a_rolling_window_admits_no_more_than_its_limit_in_any_window(history, limit, window):
    taken = admitted(RollingWindow("r", limit=limit, window=window), history)
    assert most_within(taken, window) <= limit


@given(steps, st.sampled_from(["bucket", "fixed", "rolling", "resized"]))
def test_what_fits_at_the_instant_that_was_named_does_not_fit_before(history, kind):
    limiter = {
        "bucket": lambda: ContinuousBucket("b", limit=Fraction(30), window=Fraction(30)),
        "fixed": lambda: FixedWindow("f", limit=30, window=30),
        "rolling": lambda: RollingWindow("r", limit=30, window=30),
        "resized": lambda: ResizedBucket(
            "b", limit=Fraction(60), window=Fraction(60), sizes=HALVES, period=Fraction(40)
        ),
    }[kind]()
    admitted(limiter, history)
    now = Fraction(sum(wait for wait, _ in history))
    ready_at = limiter.ready_at(30, now)
    if ready_at > now:
        assert limiter.ready_at(30, now + (ready_at - now) * Fraction(99, 100)) > now
    assert limiter.ready_at(30, ready_at) == ready_at


@given(steps)
def test_a_refused_call_is_charged_by_no_limiter(history):
    gate = Gate(
        [
            ContinuousBucket("requests", limit=10, window=60),
            FixedWindow("tokens", "tokens", limit=50, window=30),
            Slots(limit=7),
            Credit(limit=40),
        ],
        Pricing(charge="input+max_tokens"),
    )
    now = 0.0
    for wait, amount in history:
        now += wait
        before = gate.levels(now)
        outcome = gate.admit(Call(input_tokens=amount, max_tokens=3), now)
        after = gate.levels(now)
        if isinstance(outcome, Refusal):
            assert after == before
        else:
            spent = [old.remaining - new.remaining for old, new in zip(before, after, strict=True)]
            assert spent == pytest.approx([1, amount + 3, 1, 1])
            if amount % 2:
                gate.finish(outcome, 0, now)


@pytest.mark.parametrize(
    ("charge", "gives_back", "at_admission", "at_end"),
    [
        ("input", False, 100, 100),
        ("input+max_tokens", False, 150, 150),
        ("input+max_tokens", True, 150, 120),
        ("produced", False, 100, 120),
    ],
)
def test_tokens_are_charged_by_the_rule(charge, gives_back, at_admission, at_end):
    bucket = ContinuousBucket("tokens", "tokens", limit=1000, window=60)
    gate = Gate([bucket], Pricing(charge=charge, gives_back=gives_back))
    ticket = gate.admit(Call(input_tokens=100, max_tokens=50), 0.0)
    assert isinstance(ticket, Ticket)
    assert 1000 - bucket.remaining(0.0) == at_admission
    gate.finish(ticket, 20, 0.0)
    assert 1000 - bucket.remaining(0.0) == at_end


def _climbs(taken, least, now):
    """Whether one more may come at `now`, as the rule says it."""
    lately = sum(now - 10 < at <= now for at in taken)
    before = sum(now - 20 < at <= now - 10 for at in taken)
    return lately + 1 <= max(least, 1.5 * before)


@given(st.lists(st.sampled_from([0, 0, 1, 2, 7]), min_size=20, max_size=80), st.integers(1, 4))
def test_a_slope_lets_in_so_many_times_what_the_window_before_saw(waits, least):
    slope = Slope(limit=least, window=10, growth=1.5)
    now, taken = 0, []
    for wait in waits:
        now += wait
        ready_at = slope.ready_at(1, now)
        # Only an instant at which a call leaves the window can be the first at which another fits.
        instants = [now, *(at + 10 for at in taken if at + 10 > now)]
        assert ready_at == next(instant for instant in instants if _climbs(taken, least, instant))
        if ready_at <= now:
            slope.charge(1, now)
            taken.append(now)
