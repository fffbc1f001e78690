"""A ledger never takes in what is not finite: no cost, usage or charge makes a key useless for good."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.key_queue import KeyQueue
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.quota_base import ChargeLog, LoggedCharge
from tidegate.core.values import Cost, Key, Kind, Outcome, QuotaReading, RequestFacts, Usage
from tidegate.settings import Settings

KEY = Key("provider", "https://provider.test")
anything = st.one_of(
    st.sampled_from([nan, inf, -inf, -1.0, -1e308, 1e308, 10**400, 0.0, 1.0]), st.floats(), st.integers()
)
costs = st.builds(Cost, anything, anything, anything, anything, anything, anything, anything)
usages = st.one_of(st.none(), st.builds(Usage, anything, anything, anything))
units = st.sampled_from(["requests", "tokens", "input_tokens", "output_tokens"])
refills = st.sampled_from(["continuous", "fixed", "rolling"])


@given(st.lists(st.tuples(anything, anything), max_size=20))
def test_ledger_total_is_finite_whatever_is_charged(charges: list[tuple[float, float]]) -> None:
    ledger = ChargeLog()
    for order, (amount, amended) in enumerate(charges):
        debit = LoggedCharge(amount, order, float(order))
        ledger.add(debit)
        ledger.amend(debit, amended)
        assert isfinite(ledger.total)
    ledger.drop_through(len(charges))
    assert isfinite(ledger.total)
    assert isfinite(ledger.dropped)


@pytest.mark.constants(START_CONCURRENCY=1000)
@given(st.lists(st.tuples(costs, usages), min_size=1, max_size=8), units, refills)
def test_key_is_usable_again_after_any_costs_and_usages(
    calls: list[tuple[Cost, Usage | None]], unit: str, refill: str
) -> None:
    """An hour after nonsense, and after one more answer, the key admits what its provider says is there."""
    reading = QuotaReading(unit, unit, refill, 1000.0, 1000.0, 60.0, 60.0)  # type: ignore[arg-type]
    slots = KeyQueue(AdmissionController(KEY, Settings(), 60.0, 0.0))
    admission = slots.admission
    now = 0.0

    def attempt(cost: Cost, usage: Usage | None) -> bool:
        permit = slots.enter(cost, now)
        if permit is None:
            return False
        if usage is not None:
            admission.estimate.learn(RequestFacts("m", 10, 10), usage)
        admission.settle(permit, Outcome(Kind.OK, readings=(reading,), usage=usage), now, 0.0, None)
        return True

    assert attempt(Cost(), None)
    for cost, usage in calls:
        now += 0.5
        attempt(cost, usage)
        for mirror in admission.quotas.mirrors.values():
            assert isfinite(mirror.level(now))
            assert isfinite(mirror.reserved)
            assert isfinite(mirror.used)
    now += 3600.0
    assert attempt(Cost(1.0, 1.0, 1.0, 1.0), Usage(1, 1))
    now += 1.0
    admitted = 0
    while admitted < 3 and attempt(Cost(1.0, 1.0, 1.0, 1.0), None):
        admitted += 1
    assert admitted == 3
    assert isfinite(admission.estimate.mean_output)
    assert isfinite(admission.estimate.fixed_tokens)
