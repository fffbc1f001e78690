from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import bucket as reading
from tidegate.core.quota_base import LoggedCharge
from tidegate.core.token_bucket import TokenBucketMirror
from tidegate.core.values import QuotaReading


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


def test_what_others_take_of_the_refill_they_are_taken_to_go_on_taking() -> None:
    mirror = TokenBucketMirror(reading(600.0), 0.0)
    for order in range(1, 101):
        observe(mirror, reading(600.0, 300.0), order, order / 10.0)
    assert mirror.level(11.0) == pytest.approx(300.0 + 10.0 - 9.0, abs=0.1), (
        "of ten a second nine, as far as is believed"
    )
    assert mirror.level(20.0) == pytest.approx(300.0 + 100.0 - 2 * 9.0, abs=0.1), "for two seconds without an answer"
    assert mirror.ready_at(301.0, 0.0, 10.0) > mirror.ready_at(300.5, 0.0, 10.0) > 10.4


def test_without_a_limit_the_most_that_ever_remained_is_it() -> None:
    mirror = TokenBucketMirror(reading(None, 40.0), 0.0)
    observe(mirror, reading(None, 80.0), 1, 0.0)
    assert mirror.limit == 80.0


@pytest.mark.parametrize("window", [0.0, -1.0, 1e12, float("nan")])
def test_an_unusable_window_is_not_believed(window: float) -> None:
    mirror = TokenBucketMirror(reading(60.0, window=window), 0.0)
    observe(mirror, reading(60.0, 10.0, window=window), 1, 0.0)
    assert mirror.window == 60.0


def test_a_level_far_below_nothing_costs_two_windows_at_most() -> None:
    mirror = TokenBucketMirror(reading(60.0), 0.0)
    observe(mirror, reading(60.0, -1e9), 1, 0.0)
    assert mirror.ready_at(1.0, 0.0, 0.0) <= 120.0


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


def test_the_ledger_does_not_grow_without_headers(mirror: TokenBucketMirror) -> None:
    for order in range(2, 5000):
        mirror.debit(0.5, 0.0, order, float(order))
    assert len(mirror.ledger.entries) <= 2 * mirror.window + 2
    assert mirror.level(5000.0) == pytest.approx(60.0, abs=1.0)


def played(
    content: float, window: float, seconds: float, *, fixed: bool = False, delay: float = 0.3, free: int = 0
) -> tuple[TokenBucketMirror, int, int]:
    """Return a mirror, and the calls let in and refused, beside a quota that is declared as one of a minute.

    Answers come `delay` seconds after their requests. They state an end that is rounded to seconds, and so says
    nothing. Of ten calls the provider counts all but `free`, as behind a cache.
    """
    left, at, sent, refused = content, 0.0, 0, 0
    answers: list[tuple[float, float, float, LoggedCharge, bool]] = []
    mirror = TokenBucketMirror(reading(content, content - 1.0, window=60.0), 0.0)
    observe(mirror, reading(content, content - 1.0, window=60.0), 0, 0.0)
    for tick in range(1, round(seconds * 100)):
        now = tick / 100.0
        if fixed:
            left = content if now // window > at // window else left
        else:
            left = min(content, left + (now - at) * content / window)
        at = now
        while answers and answers[0][0] <= now:
            arrived, remaining, sent_at, debit, admitted = answers.pop(0)
            if admitted:
                debit.answered = True
                seen = QuotaReading("requests", "requests", "continuous", content, remaining, 0.0, 60.0, 2.0)
                mirror.observe(seen, debit.order, sent_at, arrived, debit)
            else:
                mirror.refund(debit, 0.0)
                mirror.on_refused(sent_at, arrived, None, 1.0)
        while len(answers) < 1000 and mirror.ready_at(1.0, 0.0, now) <= now:
            sent += 1
            counted = sent % 10 >= free
            admitted = left >= 1.0 or not counted
            refused += not admitted
            left -= admitted and counted
            debit = mirror.debit(1.0, 0.0, sent, now)
            answers.append((now + delay, float(int(left)), now, debit, admitted))
    return mirror, sent - refused, refused


def test_a_refill_that_no_reset_tells_shows_in_what_comes_back() -> None:
    mirror, admitted, refused = played(12.0, 0.2, 20.0)
    assert mirror.window < 0.4  # longer than the truth, but no refill is lost
    assert admitted > 0.7 * 20.0 * 12.0 / 0.2
    assert refused < 0.01 * admitted


@pytest.mark.parametrize("content", [3.0, 12.0, 60.0])
def test_a_window_that_comes_back_at_once_stays_as_long_as_declared(content: float) -> None:
    mirror, admitted, _ = played(content, 60.0, 620.0, fixed=True)
    assert mirror.window == 60.0
    assert admitted == pytest.approx(11 * content, abs=content)


@pytest.mark.parametrize(("free", "most"), [(3, 0), (5, 0), (8, 50)])
def test_calls_that_are_not_counted_are_no_refill(free: int, most: int) -> None:
    """Where most calls are free, the first refusals end the mistake: those of the calls in flight."""
    mirror, _, refused = played(600.0, 60.0, 180.0, delay=5.0, free=free)
    assert mirror.window == 60.0
    assert refused <= most
