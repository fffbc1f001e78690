from __future__ import annotations

import pytest

from tests.core.values import bucket, fixed
from tidegate.core.charging import RULES
from tidegate.core.feedback import exhausted_quota
from tidegate.core.fixed_window import FixedWindowMirror
from tidegate.core.quota import QuotaSet
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.token_bucket import TokenBucketMirror
from tidegate.core.values import Cost, QuotaReading


def tokens(remaining: float) -> QuotaReading:
    return QuotaReading("tokens", "tokens", "continuous", limit=6000.0, remaining=remaining, window=60.0)


@pytest.fixture
def quotas() -> QuotaSet:
    """Requests at 10 of 60, tokens at 1,000 of 6,000, seen by request 1 at instant 0."""
    quotas = QuotaSet()
    quotas.observe((bucket(60.0, 10.0), tokens(1000.0)), 1, 0.0, 0.0, [])
    return quotas


def test_a_mirror_comes_into_being_with_the_first_reading_that_names_it() -> None:
    quotas = QuotaSet()
    made, _ = quotas.observe((bucket(), fixed(name="day")), 1, 0.0, 0.0, [])
    assert [type(mirror) for mirror in made] == [TokenBucketMirror, FixedWindowMirror]
    again, _ = quotas.observe((bucket(), fixed(name="day")), 2, 1.0, 1.0, [])
    assert again == []


def test_a_first_reading_counts_from_when_it_came_and_the_next_ones_from_their_sending() -> None:
    """When the requests of a first round really left, a program that is just starting cannot tell."""
    quotas = QuotaSet()
    quotas.observe((bucket(60.0, 10.0),), 1, 0.0, 20.0, [])
    assert quotas.mirrors["requests"].level(20.0) == 10.0
    quotas.observe((bucket(60.0, 10.0),), 2, 19.0, 21.0, [])
    assert quotas.mirrors["requests"].level(21.0) == 12.0


def test_a_mirror_of_unknown_window_has_the_providers_usual_one() -> None:
    quotas = QuotaSet(default_window=10.0)
    quotas.observe((bucket(window=None),), 1, 0.0, 0.0, [])
    assert quotas.mirrors["requests"].window == 10.0


def test_without_mirrors_everything_may_go() -> None:
    assert QuotaSet().ready_at(Cost(tokens=1e9), 3.0) == (3.0, "")


def test_the_last_quota_to_have_room_binds(quotas: QuotaSet) -> None:
    assert quotas.ready_at(Cost(tokens=10.0), 0.0) == (0.0, "")
    ready, name = quotas.ready_at(Cost(tokens=2000.0), 0.0)
    assert (round(ready, 2), name) == (10.12, "tokens")
    assert quotas.ready_at(Cost(requests=30.0, tokens=1500.0), 0.0)[1] == "requests"


def test_what_is_reserved_must_fit_as_well(quotas: QuotaSet) -> None:
    assert quotas.ready_at(Cost(tokens=500.0, produced=500.0), 0.0)[1] == "tokens"


def test_an_attempt_is_charged_only_to_the_quotas_it_counts_against(quotas: QuotaSet) -> None:
    charges = quotas.debit(Cost(tokens=0.0), 2, 0.0)
    assert [mirror.name for mirror, _, _ in charges] == ["requests"]
    charges = quotas.debit(Cost(requests=0.0, produced=70.0), 3, 0.0)
    assert [(mirror.name, reserve) for mirror, _, reserve in charges] == [("tokens", 70.0)]
    assert quotas.mirrors["requests"].level(0.0) == 9.0
    assert quotas.mirrors["tokens"].level(0.0) == 930.0


def test_an_answer_marks_its_charges(quotas: QuotaSet) -> None:
    charges = quotas.debit(Cost(tokens=10.0), 2, 0.0)
    quotas.observe((bucket(60.0, 9.0),), 2, 0.0, 1.0, charges)
    assert all(debit.answered for _, debit, _ in charges)


def test_the_scarcest_share_is_of_the_quotas_that_nothing_paces(quotas: QuotaSet) -> None:
    _, scarcest = quotas.observe((bucket(60.0, 0.0),), 2, 1.0, 1.0, [])
    assert scarcest is None
    _, scarcest = quotas.observe((fixed(100.0, 8.0, name="a"), fixed(100.0, 3.0, name="b")), 3, 2.0, 2.0, [])
    assert scarcest == (pytest.approx(0.03), "b")
    _, scarcest = quotas.observe((fixed(100.0, 1.0, name="a", reset_after=5.0),), 4, 3.0, 3.0, [])
    assert scarcest is None


def test_a_refusal_is_explained_by_the_quota_that_its_own_readings_show_too_low(quotas: QuotaSet) -> None:
    assert exhausted_quota(quotas.mirrors, Cost(tokens=500.0), (bucket(60.0, 3.0), tokens(400.0))) == "tokens"
    assert exhausted_quota(quotas.mirrors, Cost(tokens=100.0, produced=350.0), (tokens(400.0),)) == "tokens"


def test_a_refusal_is_explained_by_the_charge_of_the_rule_in_force_and_the_rounding() -> None:
    quotas = QuotaSet()
    quotas.observe((tokens(2000.0),), 1, 0.0, 0.0, [])
    model = quotas.mirrors["tokens"].charging
    assert model is not None
    model.rule = RULES["tokens"].index("input + bound")
    cost = Cost(tokens=10.0, input_estimate=10.0, output_bound=900.0)
    assert exhausted_quota(quotas.mirrors, cost, (tokens(800.0),)) == "tokens"
    assert exhausted_quota(quotas.mirrors, cost, (tokens(1000.0),)) == ""
    assert exhausted_quota(quotas.mirrors, cost, (tokens(1000.0)._replace(quantum=1000.0),)) == "tokens"


def test_readings_that_show_room_explain_nothing_however_low_the_copy_is(quotas: QuotaSet) -> None:
    quotas.mirrors["requests"].debit(9.0, 0.0, 2, 0.0)
    assert exhausted_quota(quotas.mirrors, Cost(), (tokens(400.0),)) == ""


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


def test_a_level_that_comes_back_at_a_boundary_needs_no_limit() -> None:
    quotas = QuotaSet()
    quotas.observe((QuotaReading("r", "requests", "fixed", remaining=40.0),), 1, 0.0, 0.0, [])
    assert quotas.mirrors["r"].limit == 40.0


def test_ample_quota_needs_no_second_look() -> None:
    quotas = QuotaSet()
    quotas.observe((bucket(1000.0, 900.0), tokens(6000.0)), 1, 0.0, 0.0, [])
    quotas.debit(Cost(tokens=100.0), 2, 0.0)
    assert quotas.ample
    assert quotas.ready_at(Cost(tokens=300.0), 0.0) == (0.0, "")
    quotas.debit(Cost(tokens=3000.0), 3, 0.0)
    assert not quotas.ample


def test_a_quota_that_the_last_call_did_not_touch_does_not_pass_for_ample() -> None:
    quotas = QuotaSet()
    quotas.observe((bucket(1000.0, 900.0), tokens(0.0)), 1, 0.0, 0.0, [])
    quotas.debit(Cost(), 2, 0.0)
    assert quotas.ready_at(Cost(tokens=300.0), 0.0)[1] == "tokens"


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


def test_what_was_in_flight_before_the_mirror_counts_against_what_is_ample() -> None:
    quotas = QuotaSet()
    (mirror,), _ = quotas.observe((bucket(1000.0, 999.0),), 1, 0.0, 0.0, [])
    quotas.debit_late(mirror, Cost(450.0), 2, 0.0, False)
    assert quotas.ample
    quotas.debit_late(mirror, Cost(100.0), 3, 0.0, False)
    assert not quotas.ample


def test_an_answer_longer_than_was_reserved_counts_against_what_is_ample() -> None:
    quotas = QuotaSet()
    quotas.observe((tokens(6000.0),), 1, 0.0, 0.0, [])
    charges = quotas.debit(Cost(produced=100.0), 2, 0.0)
    quotas.settle(charges, 3200.0, 0.0, 3, 0.0)
    assert not quotas.ample
    assert quotas.mirrors["tokens"].level(0.0) == 2800.0


def test_levels_that_came_back_are_ample_with_the_next_reading() -> None:
    quotas = QuotaSet()
    quotas.observe((bucket(1000.0, 300.0),), 1, 0.0, 0.0, [])
    assert not quotas.ample
    quotas.observe((bucket(1000.0, 900.0),), 2, 36.0, 36.0, [])
    assert quotas.ample


def test_a_quota_that_nothing_tells_the_return_of_is_supposed_to_be_of_a_window() -> None:
    quotas = QuotaSet()
    quotas.observe([bucket(100.0, 99.0, window=None)], 1, 0.0, 0.0, [])
    assert isinstance(quotas.mirrors["requests"], FixedWindowMirror)


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


def test_a_rolling_window_counts_what_only_the_turning_answer_found() -> None:
    """Calls whose charges were confirmed by it are in no earlier answer."""
    quotas = QuotaSet()
    for step in range(1, 7):
        reading = bucket(300.0, 280.0 - 40.0 * step, reset_after=6.0, window=None)
        quotas.observe([reading], step, 0.5 * step, 0.5 * step, [])
    assert isinstance(quotas.mirrors["requests"], RollingWindowMirror)
    turned_at = next(step for step in range(1, 7) if step >= 2)
    assert quotas.mirrors["requests"].level(0.5 * 6) <= 300.0 - 40.0 * turned_at


def test_a_rolling_window_whose_resets_fall_is_a_fixed_one() -> None:
    mirror = RollingWindowMirror(bucket(300.0, 300.0, reset_after=17.0, window=None), 0.0, 17.0)
    for order, reset in ((1, 17.0), (2, 16.0)):
        charge = mirror.debit(1.0, 0.0, order, 1.0 * order)
        reading = bucket(300.0, 300.0 - order, reset_after=reset, window=None)
        assert mirror.turned is None
        mirror.observe(reading, order, 1.0 * order, 1.0 * order + 0.1, charge)
    assert mirror.turned == "fixed"
