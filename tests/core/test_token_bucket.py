from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import bucket as reading
from tidegate.core.token_bucket import (
    MARGIN_REQUESTS,
    MARGIN_SECONDS,
    MARGIN_SHARE,
    REORDER_FIRST,
    UNSURE_MOST,
    UNSURE_SECONDS,
    TokenBucketMirror,
)
from tidegate.core.values import QuotaReading


def tokens(limit: float | None, remaining: float | None, **facts: float) -> QuotaReading:
    return QuotaReading("tokens", "tokens", "continuous", limit=limit, remaining=remaining, **{"window": 60.0, **facts})


def observe(
    mirror: TokenBucketMirror, seen: QuotaReading, order: int, sent_at: float, now: float | None = None
) -> None:
    mirror.observe(seen, order, sent_at, sent_at if now is None else now, None)


@pytest.fixture
def mirror() -> TokenBucketMirror:
    """60 a minute, one a second; seen empty at instant 0 by request 1."""
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    observe(mirror, reading(60.0, 0.0), 1, 0.0)
    return mirror


def test_it_starts_full() -> None:
    assert TokenBucketMirror(reading(60.0), 5.0).level(5.0) == 60.0


def test_it_refills_at_its_limit_over_its_window(mirror: TokenBucketMirror) -> None:
    assert [mirror.level(now) for now in (0.0, 1.0, 30.0)] == [0.0, 1.0, 30.0]


def test_it_never_holds_more_than_its_limit(mirror: TokenBucketMirror) -> None:
    assert mirror.level(1e6) == 60.0
    mirror.debit(1.0, 0.0, 2, 1e6)
    assert mirror.level(1e6) == 59.0


def test_the_anchor_is_where_the_request_was_sent_not_where_its_answer_came(mirror: TokenBucketMirror) -> None:
    observe(mirror, reading(60.0, 10.0), 2, 20.0, now=25.0)
    assert mirror.level(25.0) == 15.0


def test_what_was_sent_after_the_anchor_is_already_charged(mirror: TokenBucketMirror) -> None:
    for order in (3, 4, 5):
        mirror.debit(1.0, 0.0, order, 20.0)
    observe(mirror, reading(60.0, 10.0), 2, 20.0, now=25.0)
    assert mirror.level(25.0) == 12.0


def test_an_answer_to_an_older_request_changes_nothing(mirror: TokenBucketMirror) -> None:
    observe(mirror, reading(60.0, 10.0), 5, 20.0)
    observe(mirror, reading(60.0, 50.0), 4, 19.0, now=21.0)
    assert mirror.level(21.0) == 11.0


def test_another_tenants_use_appears_by_itself(mirror: TokenBucketMirror) -> None:
    observe(mirror, reading(60.0, 3.0), 2, 30.0)
    assert mirror.level(30.0) == 3.0


def test_a_level_above_the_copy_is_believed(mirror: TokenBucketMirror) -> None:
    observe(mirror, reading(60.0, 40.0), 2, 10.0)
    assert mirror.level(10.0) == 40.0


def test_it_tells_when_an_amount_and_its_margin_fit(mirror: TokenBucketMirror) -> None:
    assert mirror.ready_at(1.0, 0.0, 0.0) == 1.0 + MARGIN_SECONDS
    assert mirror.ready_at(1.0, 0.0, 1.5) == 1.5


def test_a_quick_bucket_keeps_half_a_request_in_hand() -> None:
    mirror = TokenBucketMirror(reading(6000.0), 0.0)
    mirror.debit(6000.0, 0.0, 0, 0.0)
    assert mirror.ready_at(1.0, 0.0, 0.0) == pytest.approx((1.0 + MARGIN_REQUESTS) / 100.0)


def test_the_bucket_of_a_day_keeps_half_a_request_in_hand_because_its_refusal_is_final() -> None:
    mirror = TokenBucketMirror(reading(86400.0, window=86400.0), 0.0)
    mirror.debit(86400.0, 0.0, 0, 0.0)
    assert mirror.ready_at(1.0, 0.0, 0.0) == pytest.approx(1.0 + MARGIN_REQUESTS)


def test_an_anchor_whose_answer_took_longer_may_have_been_admitted_later() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    observe(mirror, reading(60.0, 0.0), 1, 0.0, now=0.1)
    assert mirror.ready_at(1.0, 0.0, 0.1) == pytest.approx(1.0 + MARGIN_SECONDS)
    mirror.debit(1.0, 0.0, 2, 1.0).answered = True
    observe(mirror, reading(60.0, 0.0), 2, 1.0, now=1.3)
    assert mirror.ready_at(1.0, 0.0, 1.3) == pytest.approx(2.0 + MARGIN_SECONDS + 0.2)
    mirror.debit(1.0, 0.0, 3, 2.0).answered = True
    observe(mirror, reading(60.0, 0.0), 3, 2.0, now=30.0)
    assert mirror.ready_at(1.0, 0.0, 30.0) == 30.0
    mirror.debit(28.0, 0.0, 4, 30.0)
    assert mirror.ready_at(1.0, 0.0, 30.0) == pytest.approx(31.0 + MARGIN_SECONDS + UNSURE_SECONDS)


def test_of_a_quick_bucket_one_request_at_most_is_kept_for_the_anchors_instant() -> None:
    mirror = TokenBucketMirror(reading(6000.0), 0.0)
    observe(mirror, reading(6000.0, 0.0), 1, 0.0, now=0.1)
    mirror.debit(100.0, 0.0, 2, 1.0).answered = True
    observe(mirror, reading(6000.0, 0.0), 2, 1.0, now=1.3)
    mirror.debit(30.0, 0.0, 3, 1.3)
    assert mirror.ready_at(1.0, 0.0, 1.3) == pytest.approx(1.3 + (1.0 + MARGIN_REQUESTS + UNSURE_MOST) / 100.0)


def test_at_the_instant_it_told_the_amount_fits(mirror: TokenBucketMirror) -> None:
    for amount in (0.1, 1.0, 7.7, 60.0, 1000.0):
        ready = mirror.ready_at(amount, 0.0, 0.0)
        assert mirror.ready_at(amount, 0.0, ready) == ready


def test_nothing_always_fits(mirror: TokenBucketMirror) -> None:
    assert mirror.ready_at(0.0, 0.0, 0.0) == 0.0


def test_an_amount_above_the_limit_goes_alone_from_a_full_bucket(mirror: TokenBucketMirror) -> None:
    assert mirror.ready_at(500.0, 0.0, 0.0) == 60.0


def test_a_token_margin_is_a_share_of_the_limit() -> None:
    mirror = TokenBucketMirror(tokens(60_000.0, 60_000.0), 0.0)
    observe(mirror, tokens(60_000.0, 1000.0), 1, 0.0)
    assert mirror.ready_at(1000.0, 0.0, 0.0) == pytest.approx(60_000.0 * MARGIN_SHARE / 1000.0)


def test_a_refused_request_was_not_charged(mirror: TokenBucketMirror) -> None:
    debit = mirror.debit(5.0, 0.0, 2, 10.0)
    mirror.refund(debit, 0.0)
    assert mirror.level(10.0) == 10.0


def test_a_refund_after_the_anchor_passed_gives_nothing_back(mirror: TokenBucketMirror) -> None:
    debit = mirror.debit(5.0, 0.0, 2, 10.0)
    observe(mirror, reading(60.0, 5.0), 3, 11.0)
    debit.answered = True
    observe(mirror, reading(60.0, 5.0), 4, 11.0 + 2 * REORDER_FIRST)
    before = mirror.level(12.0)
    mirror.refund(debit, 0.0)
    assert mirror.level(12.0) == before


def test_a_refund_gives_back_what_the_ceiling_lost_too() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    mirror.refund(mirror.debit(20.0, 0.0, 1, 0.0), 0.0)
    assert mirror.level(0.0) == 60.0


def test_output_is_reserved_until_it_is_charged(mirror: TokenBucketMirror) -> None:
    mirror.debit(1.0, 4.0, 2, 10.0)
    assert mirror.level(10.0) == 5.0
    mirror.settle(4.0, 2.0, 3, 10.0, 10.0)
    assert mirror.level(10.0) == 7.0


def test_an_answer_without_output_releases_its_reservation(mirror: TokenBucketMirror) -> None:
    mirror.debit(0.0, 4.0, 2, 10.0)
    mirror.settle(4.0, 0.0, 3, 10.0, 10.0)
    assert mirror.level(10.0) == 10.0


def test_no_reservation_is_released_twice(mirror: TokenBucketMirror) -> None:
    mirror.settle(4.0, 0.0, 3, 10.0, 10.0)
    assert mirror.level(10.0) == 10.0


def test_a_refusal_that_the_copy_did_not_see_coming_keeps_more_in_hand(mirror: TokenBucketMirror) -> None:
    mirror.on_refused(0.0, 0.0, None)
    assert mirror.ready_at(1.0, 0.0, 0.0) == pytest.approx(2.0 + MARGIN_SECONDS)
    for _ in range(100):
        mirror.on_refused(0.0, 0.0, None)
    assert mirror.ready_at(1.0, 0.0, 0.0) == pytest.approx(1.0 + MARGIN_SECONDS + 0.05 * 60.0)


def test_what_others_take_of_the_refill_they_are_taken_to_go_on_taking() -> None:
    mirror = TokenBucketMirror(reading(600.0), 0.0)
    for order in range(1, 101):
        observe(mirror, reading(600.0, 300.0), order, order / 10.0)
    assert mirror.level(11.0) == pytest.approx(300.0 + 10.0 - 9.0, abs=0.1), (
        "of ten a second nine, as far as is believed"
    )
    assert mirror.level(20.0) == pytest.approx(300.0 + 100.0 - 2 * 9.0, abs=0.1), "for two seconds without an answer"
    assert mirror.ready_at(301.0, 0.0, 10.0) > mirror.ready_at(300.5, 0.0, 10.0) > 10.4


def test_one_answer_proves_no_other_tenant() -> None:
    mirror = TokenBucketMirror(reading(600.0), 0.0)
    observe(mirror, reading(600.0, 300.0), 1, 0.0)
    observe(mirror, reading(600.0, 100.0), 2, 1.0)
    assert mirror.level(2.0) == 110.0


def test_what_is_kept_in_hand_is_given_up_over_as_many_answers_as_refusals_are_rare(
    mirror: TokenBucketMirror,
) -> None:
    mirror.on_refused(0.0, 0.0, None)
    for order, at in enumerate(range(2, 102), 2):
        if order == 52:
            assert mirror.ready_at(1.0, 0.0, at) == pytest.approx(at + 1.0 + 0.5 + MARGIN_SECONDS - 1.0, abs=0.02)
        mirror.debit(1.0, 0.0, order, float(at)).answered = True
        observe(mirror, reading(60.0, 0.0), order, float(at))
    assert mirror.ready_at(1.0, 0.0, 101.0) == pytest.approx(101.0 + 1.0 + MARGIN_SECONDS, abs=0.01)


@pytest.mark.parametrize(("needed", "left"), [(800.0, 800.0), (200.0, 500.0), (9000.0, 9000.0)])
def test_a_refusal_shows_less_than_the_call_needed_within_the_rounding_of_its_level(needed: float, left: float) -> None:
    # Rounded to thousands, from 500 to 1500 may be left.
    mirror = TokenBucketMirror(tokens(60_000.0, 60_000.0, quantum=1000.0), 0.0)
    charge = mirror.debit(58_700.0, 0.0, 1, 0.0)
    charge.answered = True
    mirror.observe(tokens(60_000.0, 1000.0, quantum=1000.0), 1, 0.0, 0.1, charge)
    refused = mirror.debit(needed, 0.0, 2, 0.1)
    mirror.refund(refused, 0.0)
    mirror.observe(tokens(60_000.0, 1000.0, quantum=1000.0), 2, 0.1, 0.11, refused)
    before = mirror.level(0.1)
    mirror.on_refused(0.1, 0.11, None, needed)
    assert mirror.level(0.1) == pytest.approx(min(before, left)), before


def test_a_limit_that_changed_is_taken_over(mirror: TokenBucketMirror) -> None:
    observe(mirror, reading(600.0, 100.0), 2, 10.0)
    assert (mirror.limit, mirror.rate, mirror.level(10.0)) == (600.0, 10.0, 100.0)


def test_without_a_limit_the_most_that_ever_remained_is_it() -> None:
    mirror = TokenBucketMirror(reading(None, 40.0), 0.0)
    observe(mirror, reading(None, 80.0), 1, 0.0)
    assert mirror.limit == 80.0


def test_a_reading_without_a_remaining_re_anchors_nothing(mirror: TokenBucketMirror) -> None:
    mirror.observe(QuotaReading("requests", "requests", "continuous", limit=60.0), 9, 10.0, 10.0, None)
    assert mirror.level(10.0) == 10.0


def test_the_window_is_inferred_from_the_time_to_full() -> None:
    mirror = TokenBucketMirror(reading(10.0, window=None), 0.0)
    observe(mirror, reading(10.0, 2.0, reset_after=8.0, window=None), 1, 0.0)
    assert mirror.window == 10.0


def test_a_window_that_no_provider_uses_is_taken_from_the_interval() -> None:
    mirror = TokenBucketMirror(reading(1000.0, window=None), 0.0)
    observe(mirror, reading(1000.0, 0.0, reset_after=25.004, window=None), 1, 0.0)
    assert mirror.window == pytest.approx(25.0, rel=0.01)


def test_a_window_that_changed_is_followed() -> None:
    mirror = TokenBucketMirror(reading(1000.0, window=None), 0.0)
    observe(mirror, reading(1000.0, 0.0, reset_after=60.0, window=None), 1, 0.0)
    observe(mirror, reading(1000.0, 0.0, reset_after=10.0, window=None), 2, 1.0)
    assert mirror.window == 10.0


def test_a_bucket_that_holds_less_than_its_limit_keeps_the_usual_window() -> None:
    # 240 a minute, of which 5 at once: it says that 4 are left and that it is full again in 250 ms.
    mirror = TokenBucketMirror(reading(240.0, window=None), 0.0)
    for order, (left, reset) in enumerate([(4.0, 0.25), (3.0, 0.468), (2.0, 0.678), (0.0, 1.0)]):
        facts = {"limit": 240.0, "remaining": left, "reset_after": reset, "resolution": 0.001}
        observe(mirror, QuotaReading("requests", "requests", "continuous", **facts), order, 0.03 * order)
    assert mirror.window == 60.0


@pytest.mark.parametrize("reset", [None, 0.0, -3.0])
def test_a_time_to_full_that_says_nothing_leaves_the_window(reset: float | None) -> None:
    mirror = TokenBucketMirror(reading(100.0, window=None), 0.0)
    observe(mirror, reading(100.0, 50.0, reset_after=reset, window=None), 1, 0.0)
    assert mirror.window == 60.0


@pytest.mark.parametrize("window", [0.0, -1.0, 1e12, float("nan")])
def test_an_unusable_window_is_not_believed(window: float) -> None:
    mirror = TokenBucketMirror(reading(60.0, window=window), 0.0)
    observe(mirror, reading(60.0, 10.0, window=window), 1, 0.0)
    assert mirror.window == 60.0


def test_a_level_far_below_nothing_costs_two_windows_at_most() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    observe(mirror, reading(60.0, -1e9), 1, 0.0)
    assert mirror.ready_at(1.0, 0.0, 0.0) <= 120.0


def test_an_overtaken_answer_shows_charges_that_the_anchor_had_not_seen() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    first = mirror.debit(1.0, 0.0, 1, 0.0)
    second = mirror.debit(1.0, 0.0, 2, 0.05)
    first.answered = second.answered = True
    observe(mirror, reading(60.0, 40.0), 2, 0.05)
    mirror.observe(reading(60.0, 30.0), 1, 0.0, 0.1, first)
    assert mirror.level(0.1) == pytest.approx(30.0 + 0.1), "it was admitted after the second, which found more"


@given(st.permutations(range(1, 31)), st.permutations(range(1, 31)), st.integers(0, 40))
def test_no_call_of_a_burst_is_counted_twice_in_whatever_order_it_is_admitted_and_answered(
    admitted: list[int], answered: list[int], others: int
) -> None:
    mirror = TokenBucketMirror(reading(120.0), 0.0)
    observe(mirror, reading(120.0, 110.0), 0, 0.0)
    sent = {order: mirror.debit(1.0, 0.0, order, order / 1e4) for order in range(1, 31)}
    left = {order: 110.0 - place for place, order in enumerate(admitted, 1)}
    for place in range(15, 30):
        left[admitted[place]] -= others
    for order in answered:
        sent[order].answered = True
        mirror.observe(reading(120.0, left[order]), order, order / 1e4, 0.01, sent[order])
    assert mirror.level(0.01) >= 80.0 - others - 1.0


def test_an_overtaken_answer_that_agrees_changes_nothing() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    first = mirror.debit(1.0, 0.0, 1, 0.0)
    second = mirror.debit(1.0, 0.0, 2, 0.05)
    first.answered = second.answered = True
    observe(mirror, reading(60.0, 40.0), 2, 0.05)
    mirror.observe(reading(60.0, 41.0), 1, 0.0, 0.1, first)
    assert mirror.level(0.1) == pytest.approx(40.05)


def test_an_answer_that_shows_more_than_can_be_left_has_overtaken_others() -> None:
    mirror = TokenBucketMirror(reading(120.0), 0.0)
    observe(mirror, reading(120.0, 20.0), 1, 0.0)
    sent = [mirror.debit(1.0, 0.0, order, 1.0 + order / 10) for order in range(2, 12)]
    sent[-1].answered = True
    mirror.observe(reading(120.0, 18.0), 11, 2.1, 2.1, sent[-1])
    assert mirror.level(2.1) == pytest.approx(18.0 - 4.0), "six of ten were seen, by the refill of 2.1 s"
    for debit in sent:
        debit.answered = True
    observe(mirror, reading(120.0, 16.0), 12, 2.3)
    assert mirror.level(2.3) == 16.0


@pytest.mark.parametrize(("charged", "stays"), [(1_000.0, 8_000.0), (5_000.0, 1_000.0)])
def test_of_tokens_an_answer_must_have_seen_half_of_what_was_estimated(charged: float, stays: float) -> None:
    mirror = TokenBucketMirror(tokens(120_000.0, 120_000.0), 0.0)
    observe(mirror, tokens(120_000.0, 100_000.0), 1, 0.0)
    sent = [mirror.debit(1_000.0, 0.0, order, 1.0 + order / 10) for order in range(2, 12)]
    sent[-1].answered = True
    remaining = 100_000.0 + 2.1 * 2_000.0 - charged
    mirror.observe(tokens(120_000.0, remaining), 11, 2.1, 2.1, sent[-1])
    assert mirror.level(2.1) == pytest.approx(remaining - stays)


def test_the_ledger_does_not_grow_without_headers(mirror: TokenBucketMirror) -> None:
    for order in range(2, 5000):
        mirror.debit(0.5, 0.0, order, float(order))
    assert len(mirror.ledger.entries) <= 2 * mirror.window + 2
    assert mirror.level(5000.0) == pytest.approx(60.0, abs=1.0)


def refused(mirror: TokenBucketMirror, reset: float, wait: float) -> None:
    """Request 9, sent at 10, is refused: the quota is full after `reset` seconds, and has room after `wait`."""
    observe(mirror, reading(60.0, 0.0), 9, 10.0)
    mirror.state(9, 10.0 + reset)
    mirror.on_refused(10.0, 10.0, wait, 1.0)


def test_after_a_wait_that_no_bucket_states_there_is_room_for_one_call_until_an_answer_shows_more(
    mirror: TokenBucketMirror,
) -> None:
    refused(mirror, reset=60.0, wait=20.5)
    assert mirror.level(30.5) == pytest.approx(1.0, abs=0.01)
    mirror.debit(1.0, 0.0, 10, 30.5)
    assert mirror.level(30.5) < 1.0
    mirror.observe(reading(60.0, 30.0), 10, 30.5, 31.0, mirror.ledger.entries[-1])
    assert mirror.level(31.0) > 25.0


@pytest.mark.parametrize(("reset", "wait"), [(20.5, 20.5), (60.0, 1.5)])
def test_the_wait_of_a_boundary_or_of_a_bucket_bounds_nothing(
    mirror: TokenBucketMirror, reset: float, wait: float
) -> None:
    refused(mirror, reset, wait)
    assert mirror.level(10.0 + wait) == pytest.approx(wait)
