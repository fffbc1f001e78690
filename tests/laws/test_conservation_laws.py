"""What is charged to a quota, reserved and given back: nothing is lost, nothing is banked, no window holds too much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import bucket, fixed
from tidegate.core.fixed_window import FixedWindowMirror
from tidegate.core.quota import QuotaSet
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import Charge
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.token_bucket import TokenBucketMirror
from tidegate.core.values import Cost

LIMIT, WINDOW = 60.0, 60.0
gaps = st.integers(0, 400).map(lambda tenths: tenths / 10)
spending = st.integers(1, 60).flatmap(
    lambda count: st.lists(st.tuples(gaps, st.integers(1, 20)), min_size=count, max_size=count)
)
KINDS = ["bucket", "window", "rolling"]


def mirror_of(kind: str) -> QuotaMirror:
    """60 a minute, full; a window's next boundary is at instant 7."""
    if kind == "rolling":
        return RollingWindowMirror(bucket(LIMIT), 0.0, WINDOW)
    if kind == "bucket":
        return TokenBucketMirror(bucket(LIMIT), 0.0)
    window = FixedWindowMirror(fixed(LIMIT), 0.0)
    window.observe(fixed(LIMIT, reset_after=7.0), 0, 0.0, 0.0, None)
    return window


def granted(mirror: QuotaMirror, history: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """What the mirror lets go of this history: instants and amounts."""
    now, went = 0.0, []
    for order, (gap, amount) in enumerate(history, 1):
        now += gap
        if mirror.ready_at(float(amount), 0.0, now) <= now:
            mirror.debit(float(amount), 0.0, order, now)
            went.append((now, amount))
    return went


@given(spending)
def test_no_rolling_window_grants_more_than_its_limit_in_any_window(history: list[tuple[float, int]]) -> None:
    went = granted(mirror_of("rolling"), history)
    for start, _ in went:
        assert sum(amount for at, amount in went if start <= at < start + WINDOW) <= LIMIT


@given(spending)
def test_no_fixed_window_grants_more_than_its_limit_between_two_boundaries(history: list[tuple[float, int]]) -> None:
    went = granted(mirror_of("window"), history)
    for start, _ in went:
        index = (start - 7.0) // WINDOW
        assert sum(amount for at, amount in went if (at - 7.0) // WINDOW == index) <= LIMIT


@pytest.mark.parametrize("kind", KINDS)
@given(history=spending, idle=st.integers(0, 10**6))
def test_after_any_idle_time_nothing_is_banked(kind: str, history: list[tuple[float, int]], idle: int) -> None:
    mirror = mirror_of(kind)
    went = granted(mirror, history)
    since = (went[-1][0] if went else 0.0) + idle
    assert mirror.level(since) <= LIMIT
    burst = granted(mirror, [(since, 1), *[(0.0, 1)] * 100])
    assert sum(amount for _, amount in burst) <= LIMIT


endings = st.sampled_from(["answered", "cut short", "refused", "unknown"])
calls = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), endings), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@given(made=calls, late=st.booleans())
def test_what_was_charged_is_what_was_sent_and_produced_less_what_came_back(
    kind: str, made: list[tuple[int, int, int, str]], late: bool
) -> None:
    quotas = QuotaSet()
    reading = (fixed if kind == "window" else bucket)(1e6, name="tokens", unit="tokens", reset_after=None)
    quotas.observe([reading], 0, 0.0, 0.0, [])
    if kind == "rolling":
        old = quotas.mirrors["tokens"]
        quotas._turn(old, "rolling", reading, 0.0, 0.0)
    expected = 0.0
    open_calls: list[tuple[list[Charge], Cost, int, str]] = []
    for order, (tokens, produced, ending_tokens, ending) in enumerate(made, 1):
        cost = Cost(tokens=float(tokens), produced=float(produced))
        charges = quotas.debit(cost, order, 1.0)
        open_calls.append((charges, cost, ending_tokens, ending))
        if not late:
            expected += end(quotas, *open_calls.pop())
    for each in open_calls:
        expected += end(quotas, *each)
    mirror = quotas.mirrors["tokens"]
    assert mirror.reserved == 0.0
    assert mirror.used == pytest.approx(expected)
    assert mirror.ledger.total + mirror.ledger.dropped == pytest.approx(expected)


def end(quotas: QuotaSet, charges: list[Charge], cost: Cost, came: int, ending: str) -> float:
    """Ends a call; returns what it is charged in all."""
    if ending == "refused":
        quotas.refund(charges)
        return 0.0
    if ending == "unknown" or not cost.produced:
        quotas.settle(charges, 0.0, 0.0, 1000, 2.0)
        return cost.tokens
    quotas.settle(charges, float(came), 0.0, 1000, 2.0)
    return cost.tokens + came


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 80)), min_size=1, max_size=30))
def test_of_an_output_that_was_held_what_it_came_to_stays_charged(made: list[tuple[int, int]]) -> None:
    quotas = QuotaSet()
    quotas.observe([bucket(1e6, name="tokens", unit="tokens")], 0, 0.0, 0.0, [])
    expected = 0.0
    for order, (held, came) in enumerate(made, 1):
        charges = quotas.debit(Cost(tokens=100.0 + held, held=float(held)), order, 1.0)
        returned = held - min(held, came)
        assert quotas.mirrors
        quotas.settle(charges, 0.0, float(returned), 1000 + order, 2.0)
        expected += 100.0 + min(held, came)
    mirror = quotas.mirrors["tokens"]
    assert mirror.used == pytest.approx(expected)
    assert mirror.ledger.total == pytest.approx(expected)
