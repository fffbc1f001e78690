"""A charge that departs from the estimate call by call is learned: a minimum, and cached input."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.charge_steps import least_of
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.quota import QuotaSet
from tidegate.core.snapshot import QuotaSnapshot, key_snapshot
from tidegate.core.values import Cost, Key, QuotaReading, RequestFacts, Unit, Usage
from tidegate.settings import Settings

LIMIT, WINDOW, STEP = 60_000.0, 60.0, 0.01
CACHED = 80.0


def cost(tokens: float, cached: float = CACHED) -> Cost:
    return Cost(
        tokens=tokens,
        input_tokens=tokens,
        input_estimate=tokens,
        output_estimate=20.0,
        input_otherwise=tokens - cached,
    )


def played(unit: Unit, charged: Callable[[float], float], calls: int = 200, late: int = 5) -> QuotaSet:
    """Return the quotas after calls of 100 to 400 tokens, each `charged` so; answers come `late` calls later."""
    quotas, level, drawn = QuotaSet(), LIMIT / 3, random.Random(1)
    waiting = []
    quotas.observe((QuotaReading("quota", unit, "continuous", LIMIT, level, window=WINDOW),), 0, 0.0, 0.0, ())
    for number in range(calls):
        now = STEP * number
        tokens = float(drawn.randrange(100, 400))
        level = min(LIMIT, level + STEP * LIMIT / WINDOW) - charged(tokens)
        level = level if level > 0.0 else LIMIT / 3
        charges = quotas.debit(cost(tokens), number + 1, now)
        waiting.append((number + 1, now, level, charges))
        if len(waiting) > late:
            order, sent_at, found, charges = waiting.pop(0)
            reading = QuotaReading("quota", unit, "continuous", LIMIT, found, window=WINDOW)
            quotas.observe((reading,), order, sent_at, now, charges)
    return quotas


def shown(quotas: QuotaSet) -> QuotaSnapshot:
    controller = AdmissionController(Key("any", "https://provider.test"), Settings(), 60.0, 0.0)
    controller.quotas = quotas
    (quota,) = key_snapshot(controller, 0, Cost(), Cost(), 3.0).quotas
    return quota


def charge(quotas: QuotaSet, tokens: float) -> float:
    mirror = quotas.mirrors["quota"]
    before = mirror.ledger.total
    quotas.debit(cost(tokens), 10_000, 3.0)
    return mirror.ledger.total - before


@pytest.mark.parametrize("unit", ["tokens", "input_tokens"])
def test_a_minimum_per_call_is_learned(unit: Unit) -> None:
    quotas = played(unit, lambda tokens: max(250.0, tokens))
    assert shown(quotas).charging_input == "at least 250 a call"
    assert charge(quotas, 100.0) == pytest.approx(250.0, rel=0.02)
    assert charge(quotas, 390.0) == pytest.approx(390.0, rel=0.02)


@pytest.mark.parametrize("unit", ["tokens", "input_tokens"])
def test_cached_input_that_is_not_charged_is_learned(unit: Unit) -> None:
    quotas = played(unit, lambda tokens: tokens - CACHED)
    assert shown(quotas).charging_input == "cached input counted otherwise"
    assert charge(quotas, 300.0) == pytest.approx(300.0 - CACHED, rel=0.02)


@pytest.mark.parametrize("unit", ["tokens", "input_tokens"])
@pytest.mark.parametrize("worth", [1.0, 0.5, 1.6])
def test_an_estimate_that_is_off_by_a_factor_is_no_departure(unit: Unit, worth: float) -> None:
    quotas = played(unit, lambda tokens: worth * tokens)
    assert shown(quotas).charging_input == ""


def test_a_minimum_is_learned_before_most_of_a_first_burst_is_answered() -> None:
    quotas = played("tokens", lambda tokens: max(250.0, tokens), calls=50, late=40)
    assert shown(quotas).charging_input == "at least 250 a call"


def test_charges_that_no_answer_has_confirmed_are_corrected() -> None:
    quotas = played("input_tokens", lambda tokens: max(399.0, tokens), calls=50, late=40)
    mirror = quotas.mirrors["quota"]
    assert mirror.ledger.total == pytest.approx(399.0 * len(mirror.ledger.entries), rel=0.01)


def test_a_rule_that_takes_the_bound_is_learned_from_a_few_calls() -> None:
    quotas, level = QuotaSet(), LIMIT / 3
    bounded = [cost(100.0 + 10.0 * number)._replace(output_bound=900.0) for number in range(12)]
    for number, each in enumerate(bounded):
        level -= each.input_estimate + 900.0
        charges = quotas.debit(each, number + 1, 0.0)
        reading = QuotaReading("quota", "tokens", "continuous", LIMIT, level, window=WINDOW)
        quotas.observe((reading,), number + 1, 0.0, 0.0, charges)
    assert shown(quotas).charging == "input + bound"


def test_the_mean_of_the_cached_tokens_is_learned() -> None:
    estimate = CostEstimator()
    for _ in range(40):
        estimate.learn(RequestFacts("m", 400), Usage(100, 10, 60))
    assert estimate.cached_tokens == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("fall", "counted", "least"),
    [
        (300.0, [100.0], 300.0),
        (500.0, [50.0, 300.0], 200.0),
        (700.0, [100.0, 400.0, 50.0], 150.0),
        (50.0, [200.0], 0.0),
    ],
)
def test_the_minimum_that_explains_a_fall(fall: float, counted: list[float], least: float) -> None:
    assert least_of(fall, counted) == least
