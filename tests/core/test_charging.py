"""The charging rule of a token quota is learned from the provider's own `remaining`."""

from __future__ import annotations

import pytest

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.charging import RULES, ChargingModel, Unsure
from tidegate.core.limiter_state import Permit
from tidegate.core.quota import QuotaSet, turned_into
from tidegate.core.snapshot import key_snapshot
from tidegate.core.token_bucket import TokenBucketMirror
from tidegate.core.values import INFINITY, Cause, Cost, Key, Kind, Outcome, QuotaReading, Refill, Unit
from tidegate.settings import Settings

LIMIT, WINDOW, STEP = 24_000.0, 600.0, 0.01


def cost(unit: Unit = "tokens") -> Cost:
    """Return the cost of 100 tokens of input and 60 of output, with a bound of 256, by a table that charges input."""
    table = {"tokens": 100.0} if unit == "tokens" else {"output_tokens": 20.0}
    return Cost(**table, input_estimate=100.0, output_bound=256.0, output_estimate=60.0)


TRUTHS = [
    ("tokens", ("input + bound",), 356.0, 0.0),
    # After an answer has ended, these two charge the same.
    ("tokens", ("input + bound, unused returned", "input + output"), 356.0, -196.0),
    ("tokens", ("input + output", "input + bound, unused returned"), 100.0, 60.0),
    ("output_tokens", ("bound",), 256.0, 0.0),
    ("output_tokens", ("output", "bound, unused returned"), 0.0, 60.0),
]


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


@pytest.mark.parametrize(("unit", "rules", "at_admission", "at_end"), TRUTHS)
def test_the_rule_that_predicts_what_remains_holds(
    unit: Unit, rules: tuple[str, ...], at_admission: float, at_end: float
) -> None:
    model = played(unit, at_admission, at_end).mirrors["quota"].charging
    assert model is not None
    assert model.evidence.rule in rules
    assert model.evidence.since > 0.0


def test_the_tables_rule_holds_where_it_predicts_what_remains() -> None:
    model = played("tokens", 100.0, 0.0, 220).mirrors["quota"].charging
    assert model is not None
    assert (model.evidence.rule, model.settled) == ("table", True)


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


def test_the_use_of_others_before_the_first_answer_refutes_nothing() -> None:
    model = ChargingModel("tokens", 0.0)
    own, sent = (100, 100, 356, 356, 100), (300, 300, 1068, 1068, 300)
    assert not model.first(15_000.0, own, sent, 1.0, 0.5)
    assert model.rule == 0


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


def test_a_refusal_refutes_a_rule_that_predicts_too_little_with_all_calls_sent() -> None:
    model = ChargingModel("output_tokens", 0.0)
    outstanding = [(0.0, 1000.0, 1000.0, 0.0)] * 20
    assert model.emptied(20_000.0, INFINITY, (0.0, 2000.0, 2000.0, 0.0), outstanding, LIMIT, 0.5)
    assert model.evidence.rule == "bound"


def test_what_two_refusals_show_is_not_hidden_by_the_span_before_them() -> None:
    """Outputs of 13,000 end after the last admission; the inputs of 80,000 before say nothing about outputs."""
    model = ChargingModel("tokens", 0.0)
    before, between = (80_000.0, 80_000.0, 90_000.0, 90_000.0, 80_000.0), (0.0, 0.0, 0.0, -5000.0, 13_000.0)
    assert not model.emptied(80_000.0, 80_000.0, before, [], LIMIT, 0.5)
    assert model.emptied(13_000.0, 13_000.0, between, [], LIMIT, 0.6)
    assert model.evidence.rule == "input + output"
    model = ChargingModel("tokens", 0.0)
    assert not model.emptied(80_000.0, 80_000.0, before, [], LIMIT, 0.5)
    assert not model.fell(0.0, 0.0, (0.0,) * 5, 1.0, LIMIT, 0.55)
    assert not model.emptied(13_000.0, 13_000.0, between, [], LIMIT, 0.6), "the answer before may have seen too little"


def test_a_rule_that_is_refuted_is_not_tested() -> None:
    quotas = QuotaSet()
    dear = Cost(tokens=8_000.0, input_estimate=100.0, output_bound=7_900.0, output_estimate=20.0)
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, LIMIT - 100.0, window=60.0)
    quotas.observe((reading,), 1, 0.0, 0.0, quotas.debit(dear, 1, 0.0))
    mirror = quotas.mirrors["quota"]
    assert mirror.charging is not None
    for order in (2, 3, 4):
        quotas.debit(dear, order, 0.1)
    assert mirror.may_fit_at(dear, 0, 1.2) < mirror.ready_at(8_000.0, 0.0, 1.2)
    mirror.charging.refuted = tuple(range(1, 5))
    assert mirror.may_fit_at(dear, 0, 1.2) == INFINITY


def test_a_refusal_refutes_no_rule_that_predicts_as_much_with_calls_that_overtook_it() -> None:
    model = ChargingModel("tokens", 0.0)
    outstanding = [(1000.0, 1000.0, 2000.0, 2000.0, 1000.0)] * 20
    assert not model.emptied(20_000.0, INFINITY, (2000.0, 2000.0, 4000.0, 4000.0, 2000.0), outstanding, LIMIT, 0.5)
    assert model.rule == 0


def test_rounding_of_what_remains_refutes_no_rule() -> None:
    """The level is rounded to 2,000, so falls of 356 a call appear as none or as 2,000."""
    model = ChargingModel("tokens", 0.0)
    for number in range(40):
        before, after = (round((LIMIT - 356.0 * each) / 2000.0) * 2000.0 for each in (number, number + 1))
        model.fell(before - after, before - after, (356.0, 100.0, 356.0, 356.0, 100.0), 2000.0, LIMIT, number)
    assert (model.rule, model.evidence.spans > 2) == (0, True)


def test_the_charge_of_a_refused_call_is_no_evidence() -> None:
    model = ChargingModel("tokens", 0.0)
    charge = (100.0, 100.0, 5000.0, 5000.0, 100.0)
    for number in range(40):
        model.refund(charge)
        model.fell(500.0, 500.0, [each + 5 * 100.0 for each in charge], 1.0, LIMIT, number)
    assert (model.rule, model.settled) == (0, True)


def test_a_rule_that_erred_lately_is_not_taken_for_one_span_that_fits_it_best() -> None:
    model = ChargingModel("output_tokens", 0.0)
    model.rule = RULES["output_tokens"].index("bound")
    for number in range(6):
        model.fell(2400.0, 2400.0, (0.0, 2400.0, 2300.0, 0.0), 1.0, LIMIT, number)
    for number in range(6, 14):
        model.fell(2400.0, 2400.0, (2400.0, 2400.0, 2400.0, 2400.0), 1.0, LIMIT, number)
    model.fell(2400.0, 2400.0, (2400.0, 50_000.0, 3200.0, 2400.0), 1.0, LIMIT, 14.0)
    assert model.evidence.rule == "bound, unused returned"


def test_what_came_back_since_does_not_refute_a_rule_that_returns_it() -> None:
    model = ChargingModel("output_tokens", 0.0)
    outstanding = [(0.0, 1000.0, 1000.0, 0.0)] * 10 + [(0.0, 0.0, -1000.0, 0.0)] * 10
    charged = (2000.0, 15_000.0, 12_000.0, 2000.0)
    model.rule = RULES["output_tokens"].index("bound, unused returned")
    assert not model.emptied(20_000.0, INFINITY, charged, outstanding, LIMIT, 0.5), "it predicts the whole fall"


def test_a_test_of_the_charging_rules_goes_as_soon_as_another_rule_has_room() -> None:
    quotas = QuotaSet()
    dear = Cost(tokens=8_000.0, input_estimate=100.0, output_bound=7_900.0, output_estimate=20.0)
    first = quotas.debit(dear, 1, 0.0)
    quotas.observe((QuotaReading("quota", "tokens", "continuous", LIMIT, LIMIT, window=60.0),), 1, 0.0, 0.0, first)
    for order in (2, 3, 4):
        quotas.debit(dear, order, 0.1)
    second = quotas.debit(dear, 5, 0.2)
    spent = QuotaReading("quota", "tokens", "continuous", LIMIT, 0.0, window=60.0)
    quotas.observe((spent,), 5, 0.2, 0.3, second)
    ready, _ = quotas.ready_at(dear, 0.31)
    assert 0.31 < ready < 3.0, "the input fits long before the bound does"


def refused_at_first(remaining: float) -> AdmissionController:
    """Return a key with ten calls in flight, whose first answer is a refusal that says how much remains."""
    controller = AdmissionController(Key("any", "https://provider.test"), Settings(), 60.0, 0.0)
    permits = [controller.admit(cost(), 0.01 * number, 0.0, None) for number in range(10)]
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, remaining, window=60.0)
    controller.settle(permits[-1], Outcome(Kind.RATE_LIMIT, Cause.RATE, 1.0, (reading,)), 0.2, 0.5, None)
    return controller


@pytest.mark.parametrize(("remaining", "level"), [(90.0, 90.0), (20_000.0, 20_000.0 - 9 * 356.0)])
def test_the_first_refusal_has_seen_all_calls_where_this_quota_lacks(remaining: float, level: float) -> None:
    assert refused_at_first(remaining).quotas.mirrors["quota"].anchored_level(0.2) == pytest.approx(level)


def test_the_sum_of_two_quotas_holds_no_call_back() -> None:
    quotas = QuotaSet()
    parts = [
        QuotaReading("in", "input_tokens", "continuous", 50_000.0, 40_000.0, window=60.0, quantum=1000.0),
        QuotaReading("out", "output_tokens", "continuous", 10_000.0, 2000.0, window=60.0, quantum=1000.0),
    ]
    total = QuotaReading("tokens", "tokens", "continuous", 60_000.0, 42_000.0, window=60.0, quantum=1000.0)
    big = Cost(tokens=60_000.0, input_tokens=100.0, output_tokens=100.0)
    quotas.observe((*parts, total), 1, 0.0, 0.0, ())
    assert quotas.ready_at(big, 0.0)[0] == 0.0
    alone = QuotaSet()
    alone.observe((*parts, total._replace(limit=70_000.0)), 1, 0.0, 0.0, ())
    assert alone.ready_at(big, 0.0)[0] > 0.0, "another limit is a quota of its own"


def test_what_an_answer_gives_back_is_in_the_level_of_every_later_call() -> None:
    """The bound is charged at admission; what the answer leaves unused comes back before the answer ends."""
    model = played("output_tokens", 256.0, -196.0).mirrors["quota"].charging
    assert model is not None
    assert "returned" in model.evidence.rule or model.evidence.rule == "output"


def test_calls_that_overtook_the_answered_one_refute_no_learned_rule() -> None:
    """A burst is sent at once: the answer to its first call finds all of it charged, the next one finds no more."""
    model = ChargingModel("tokens", 0.0)
    model.rule = RULES["tokens"].index("input")
    one, burst = (100.0, 100.0, 2600.0, 2600.0, 100.0), (2500.0, 2500.0, 65_000.0, 65_000.0, 2500.0)
    nothing = (0.0,) * 5
    assert not model.fell(2600.0, 2600.0, one, 1.0, LIMIT, 0.1, lambda: Unsure(burst, nothing))
    assert not model.fell(0.0, 0.0, burst, 1.0, LIMIT, 0.2, lambda: Unsure(nothing, nothing))
    assert model.evidence.rule == "input"
    assert model.evidence.refuted == ("input + bound", "input + bound, unused returned")


def test_a_rule_fits_only_when_more_is_charged_than_is_unsure() -> None:
    model = ChargingModel("tokens", 0.0)
    unsure = Unsure((5000.0,) * 5, (5000.0,) * 5)
    for number in range(8):
        model.fell(1300.0, 1300.0, (1300.0,) * 5, 1.0, LIMIT, number, lambda: unsure)
    assert model.evidence.spans == 0
    model.fell(5000.0, 5000.0, (5000.0,) * 5, 1.0, LIMIT, 9.0, lambda: unsure)
    assert model.evidence.spans == 1


def test_a_refusal_after_a_full_quota_counts_alone() -> None:
    model = ChargingModel("output_tokens", 0.0)
    model.fell(-INFINITY, 500.0, (0.0, 500.0, 500.0, 0.0), 1.0, LIMIT, 0.1)
    assert model.emptied(20_000.0, 20_000.0, (0.0, 20_000.0, 20_000.0, 0.0), [], LIMIT, 0.5)
    assert model.evidence.rule == "bound"


def returning_bucket() -> TokenBucketMirror:
    """Return the mirror of a quota that gives back the unused part of the bound, as answers have shown."""
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, LIMIT, window=WINDOW)
    mirror = TokenBucketMirror(reading, 0.0)
    mirror.observe(reading, 0, 0.0, 0.0, None)
    assert mirror.charging is not None
    mirror.charging.rule = RULES["tokens"].index("input + bound")
    mirror.charging.fell(-9000.0, -9000.0, (356.0, 100.0, 356.0, -9000.0, 100.0), 1.0, LIMIT, 0.0)
    assert mirror.charging.returns
    return mirror


def test_what_an_answer_may_have_seen_come_back_is_not_counted_again() -> None:
    mirror = returning_bucket()
    mirror.on_refused(0.99, 1.0, None)
    mirror.debit(356.0, 0.0, 1, 2.0).answered = True
    mirror.settle_by_rules(0.0, cost(), 60.0, 0.0, 2, 1.0, 2.005)
    mirror.settle_by_rules(0.0, cost(), 60.0, 0.0, 3, 1.0, 2.105)
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, 10_000.0, window=WINDOW)
    mirror.observe(reading, 1, 2.0, 2.2, None)
    assert mirror.anchored_level(2.0) == pytest.approx(10_000.0 + 196.0), "only what came back much later is added"


def test_the_table_is_not_excused_by_calls_that_may_have_overtaken() -> None:
    """A table that charges too little causes refusals, so a fall that it does not predict refutes it at once."""
    model = ChargingModel("tokens", 0.0)
    predicted, above = (800.0, 800.0, 9000.0, 9000.0, 800.0), (9000.0, 9000.0, 90_000.0, 90_000.0, 9000.0)
    assert model.fell(9000.0, 9000.0, predicted, 1.0, LIMIT, 0.1, lambda: Unsure(above, (0.0,) * 5))
    assert model.evidence.rule == "input + bound"


def test_the_learned_rule_holds_when_the_quota_turns_out_to_be_a_rolling_window() -> None:
    mirror = returning_bucket()
    reading = QuotaReading("quota", "tokens", "rolling", LIMIT, 10_000.0, window=WINDOW)
    assert turned_into("rolling", mirror, reading, 1.0, 1.0, WINDOW).charging is mirror.charging


@pytest.mark.parametrize("refill", ["fixed", "continuous", "rolling"])
def test_answers_to_calls_sent_before_a_quota_turned_out_otherwise_teach_no_steps(refill: Refill) -> None:
    quotas, call = QuotaSet(), Cost(tokens=100.0, input_estimate=100.0)
    reading = QuotaReading("quota", "tokens", "continuous", LIMIT, 10_000.0, window=WINDOW)
    quotas.observe((reading,), 1, 0.0, 0.0, [])
    sent = [quotas.debit(call, order, 0.1 * order) for order in range(2, 8)]
    before = quotas.mirrors["quota"]
    turned = turned_into(refill, before, reading._replace(refill=refill), 1.0, 1.0, WINDOW)
    for order, [(_, charge, _)] in enumerate(sent, 2):
        charge.answered = True
        turned.observe(reading._replace(remaining=9_900.0), order, 0.1 * order, 2.0, charge)
    assert turned.level(2.0) <= 10_000.0


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


def started(count: int) -> tuple[AdmissionController, list[Permit]]:
    """Return a key of which so many calls were sent, 10 ms apart, before the first answer."""
    controller = AdmissionController(Key("any", "https://provider.test"), Settings(), 60.0, 0.0)
    return controller, [controller.admit(cost("output_tokens"), STEP * each, 0.0, None) for each in range(count)]


def finds(controller: AdmissionController, permit: Permit, taken: float, now: float) -> float:
    """Take in an answer that found so much taken; return the units that the controller holds to be left."""
    reading = QuotaReading("quota", "output_tokens", "continuous", LIMIT, LIMIT - taken, window=WINDOW)
    controller.settle(permit, Outcome(Kind.OK, readings=(reading,)), now, 1.0, None)
    return controller.quotas.mirrors["quota"].level(now)


def test_the_first_answer_has_seen_the_bounds_that_fit_into_what_it_found_taken() -> None:
    controller, permits = started(12)
    level = finds(controller, permits[9], 10 * 256.0, 1.0)
    assert controller.quotas.mirrors["quota"].charging is not None
    assert level == pytest.approx(LIMIT - 12 * 256.0), "each call is charged once"


def test_the_first_answer_has_seen_no_bounds_where_others_took_a_part() -> None:
    controller, permits = started(12)
    # The first of the calls that a rule explains: 12 of them explain it, but not the ten up to the answered one.
    assert finds(controller, permits[9], 11.5 * 256.0, 1.0) == pytest.approx(LIMIT - 11.5 * 256.0 - 11 * 256.0)
