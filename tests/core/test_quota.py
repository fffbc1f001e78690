from __future__ import annotations

import pytest

from tests.core.values import bucket, fixed
from tidegate.core.quota import QuotaSet
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.values import Cost, QuotaReading


def tokens(remaining: float) -> QuotaReading:
    return QuotaReading("tokens", "tokens", "continuous", limit=6000.0, remaining=remaining, window=60.0)


@pytest.fixture
def quotas() -> QuotaSet:
    """Requests at 10 of 60, tokens at 1,000 of 6,000, seen by request 1 at instant 0."""
    quotas = QuotaSet()
    quotas.observe((bucket(60.0, 10.0), tokens(1000.0)), 1, 0.0, 0.0, [])
    return quotas


def test_without_mirrors_everything_may_go() -> None:
    assert QuotaSet().ready_at(Cost(tokens=1e9), 3.0) == (3.0, "")


def test_the_last_quota_to_have_room_binds(quotas: QuotaSet) -> None:
    assert quotas.ready_at(Cost(tokens=10.0), 0.0) == (0.0, "")
    ready, name = quotas.ready_at(Cost(tokens=2000.0), 0.0)
    assert (round(ready, 2), name) == (10.12, "tokens")
    assert quotas.ready_at(Cost(requests=30.0, tokens=1500.0), 0.0)[1] == "requests"


def test_an_attempt_is_charged_only_to_the_quotas_it_counts_against(quotas: QuotaSet) -> None:
    charges = quotas.debit(Cost(tokens=0.0), 2, 0.0)
    assert [mirror.name for mirror, _, _ in charges] == ["requests"]
    charges = quotas.debit(Cost(requests=0.0, produced=70.0), 3, 0.0)
    assert [(mirror.name, reserve) for mirror, _, reserve in charges] == [("tokens", 70.0)]
    assert quotas.mirrors["requests"].level(0.0) == 9.0
    assert quotas.mirrors["tokens"].level(0.0) == 930.0


@pytest.mark.parametrize(
    "reading",
    [
        QuotaReading("r", "requests", "continuous", limit=60.0),
        QuotaReading("r", "requests", "continuous", remaining=60.0),
        QuotaReading("r", "requests", "fixed", remaining=0.0),
    ],
)
def test_a_reading_that_says_too_little_makes_no_mirror(reading: QuotaReading) -> None:
    quotas = QuotaSet()
    assert quotas.observe((reading,), 1, 0.0, 0.0, []) == ([], None)
    assert quotas.mirrors == {}


def test_a_call_that_does_not_surely_fit_is_looked_at_although_quota_is_ample(quotas: QuotaSet) -> None:
    quotas = QuotaSet()
    quotas.observe((bucket(1000.0, 1000.0), tokens(6000.0)), 1, 0.0, 0.0, [])
    quotas.debit(Cost(tokens=3000.0), 2, 0.0)
    assert quotas.ample
    assert quotas.ready_at(Cost(tokens=3500.0), 0.0)[1] == "tokens"


def test_a_refusal_ends_what_passed_for_ample() -> None:
    quotas = QuotaSet()
    quotas.observe((fixed(100.0, 100.0, reset_after=30.0),), 1, 0.0, 0.0, [])
    assert quotas.ready_at(Cost(), 0.0) == (0.0, "")
    quotas.on_refused("requests", 1, 0.0, 0.0, None)
    assert quotas.ready_at(Cost(), 0.0)[1] == "requests"


def test_a_quota_that_turns_out_to_come_back_otherwise_keeps_its_charges() -> None:
    quotas = QuotaSet()
    for step in range(1, 7):
        reading = bucket(300.0, 280.0 - 40.0 * step, reset_after=6.0, window=None)
        quotas.observe([reading], step, 0.5 * step, 0.5 * step, [])
        if step == 2:
            charges = quotas.debit(Cost(requests=7.0), 100, 1.1)
    mirror = quotas.mirrors["requests"]
    assert isinstance(mirror, RollingWindowMirror)
    before = mirror.level(3.2)
    quotas.refund(charges)
    assert mirror.level(3.2) == before + 7.0
