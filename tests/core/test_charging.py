"""The charging rule of a token quota is learned from the provider's own `remaining`."""

from __future__ import annotations

import pytest

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.charging import RULES, ChargingModel
from tidegate.core.quota import QuotaSet
from tidegate.core.snapshot import key_snapshot
from tidegate.core.values import Cost, Key, QuotaReading, Unit
from tidegate.settings import Settings

LIMIT, WINDOW, STEP = 24_000.0, 600.0, 0.01


def cost(unit: Unit = "tokens") -> Cost:
    """Return the cost of 100 tokens of input and 60 of output, with a bound of 256, by a table that charges input."""
    table = {"tokens": 100.0} if unit == "tokens" else {"output_tokens": 20.0}
    return Cost(**table, input_estimate=100.0, output_bound=256.0, output_estimate=60.0)


def played(unit: Unit, at_admission: float, at_end: float, calls: int = 120) -> QuotaSet:
    """Return the quotas after calls, one every 10 ms, to a provider whose bucket is charged so."""
    quotas, level, order = QuotaSet(), LIMIT, 0
    for number in range(calls):
        order += 1
        now = STEP * number
        charges = quotas.debit(cost(unit), order, now)
        level = min(LIMIT, level + STEP * LIMIT / WINDOW) - at_admission
        reading = QuotaReading("quota", unit, "continuous", LIMIT, level, window=WINDOW)
        quotas.observe((reading,), order, now, now, charges)
        order += 1
        quotas.settle(charges, 0.0, 0.0, order, now, cost(unit), 60.0)
        level -= at_end
    return quotas


def test_a_charge_is_what_the_learned_rule_says() -> None:
    quotas = played("tokens", 356.0, 0.0, 30)
    level = quotas.mirrors["quota"].level(1.0)
    quotas.debit(cost(), 1000, 1.0)
    assert level - quotas.mirrors["quota"].level(1.0) == pytest.approx(356.0, rel=0.02)


def test_the_snapshot_names_the_rule_and_its_evidence() -> None:
    controller = AdmissionController(Key("any", "https://provider.test"), Settings(), 60.0, 0.0)
    controller.quotas = played("tokens", 356.0, 0.0)
    (quota,) = key_snapshot(controller, 0, Cost(), Cost(), 2.0).quotas
    assert (quota.charging, quota.charging_spans > 2, 0.0 < quota.charging_for < 2.0) == ("input + bound", True, True)
    assert "table" in quota.charging_refuted
    assert quota.charging not in quota.charging_refuted


def test_the_first_answer_refutes_a_table_that_charges_too_little() -> None:
    model = ChargingModel("tokens", 0.0)
    own, sent = (100, 100, 4196, 4196, 100), (300, 300, 12588, 12588, 300)
    assert model.first(8392.0, own, sent, 1.0, 0.5)
    assert RULES["tokens"][model.rule] == "input + bound"


def test_a_wait_for_a_table_that_charges_too_much_is_tested_by_one_call() -> None:
    """The table says that the whole bound is charged and kept; the provider charges the input."""
    quotas = QuotaSet()
    dear = Cost(tokens=8_000.0, input_estimate=100.0, output_bound=7_900.0, output_estimate=20.0)
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, LIMIT - 100.0, window=60.0)
    first = quotas.debit(dear, 1, 0.0)
    quotas.observe((reading,), 1, 0.0, 0.0, first)
    for order in (2, 3, 4):
        quotas.debit(dear, order, 0.1)
    assert quotas.ready_at(dear, 1.2)[0] == 1.2, "one call is sent to see"
    quotas.debit(dear, 5, 1.2)
    assert quotas.ready_at(dear, 1.3)[0] > 1.3, "and only one"


def test_rounding_of_what_remains_refutes_no_rule() -> None:
    """The level is rounded to 2,000, so falls of 356 a call appear as none or as 2,000."""
    model = ChargingModel("tokens", 0.0)
    for number in range(40):
        before, after = (round((LIMIT - 356.0 * each) / 2000.0) * 2000.0 for each in (number, number + 1))
        model.fell(before - after, before - after, (356.0, 100.0, 356.0, 356.0, 100.0), 2000.0, LIMIT, number)
    assert (model.rule, model.evidence.spans > 2) == (0, True)


def test_a_call_does_not_wait_for_a_test_of_the_rules_once_it_fits_by_the_rule_in_force() -> None:
    quotas, costly = QuotaSet(), Cost(tokens=900.0, input_estimate=400.0, output_bound=500.0, output_estimate=60.0)
    full = QuotaReading("quota", "tokens", "continuous", 9_000.0, 8_400.0, 4.0, WINDOW / 10)
    quotas.observe((full,), 1, 0.0, 0.0, [])
    quotas.observe((full._replace(remaining=600.0, reset_after=56.0),), 2, 0.0, 0.0, [])
    ready = quotas.mirrors["quota"].ready_at(900.0, 0.0, 0.0)
    assert 1.0 < ready < 4.0
    assert quotas.ready_at(costly, 0.0) == (0.0, "")  # it fits by its input alone: a test
    for order in (3, 4):
        charges = quotas.debit(costly, order, 0.0)
        quotas.refund(charges)
        quotas.on_refused("quota", order, 0.0, 0.0, None)
        tested_at = quotas.ready_at(costly, 0.0)[0]
        assert tested_at <= quotas.mirrors["quota"].ready_at(900.0, 0.0, 0.0)
