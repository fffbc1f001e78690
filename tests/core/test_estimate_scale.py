"""What a token estimate is worth in the provider's count."""

from __future__ import annotations

import pytest

from tidegate.core.token_bucket import SCALE_BOUNDS, TokenBucketMirror
from tidegate.core.values import QuotaReading

LIMIT = 60_000.0


def tokens(remaining: float) -> QuotaReading:
    return QuotaReading("tokens", "tokens", "continuous", limit=LIMIT, remaining=remaining, window=60.0)


def play(mirror: TokenBucketMirror, estimate: float, worth: float, produced: float = 0.0, rounds: int = 120) -> None:
    """Calls of `estimate` tokens that the provider counts as `worth` times as many, as fast as the quota refills."""
    level, now, order = 0.5 * LIMIT, 0.0, 0
    for _ in range(rounds):
        order += 1
        sent = order
        debit = mirror.debit(estimate, produced, order, now)
        level -= estimate * worth
        told = level
        order += 1
        mirror.settle(produced, produced, order, now, now + 0.01)
        level -= produced
        debit.answered = True
        mirror.observe(tokens(told), sent, now, now + 0.01, debit)
        pause = (estimate * worth + produced) / (LIMIT / 60.0)
        level += pause * LIMIT / 60.0
        now += pause


@pytest.fixture
def mirror() -> TokenBucketMirror:
    return TokenBucketMirror(tokens(LIMIT), 0.0)


@pytest.mark.parametrize("worth", [0.5, 1.0, 1.4])
def test_it_comes_to_what_the_provider_counts(mirror: TokenBucketMirror, worth: float) -> None:
    play(mirror, 1000.0, worth)
    assert mirror.scale == pytest.approx(worth, rel=0.1)


def test_output_that_is_charged_as_it_is_written_is_no_part_of_it(mirror: TokenBucketMirror) -> None:
    play(mirror, 100.0, 1.0, produced=900.0)
    assert mirror.scale == pytest.approx(1.0, rel=0.1)


def test_it_scales_what_is_charged_and_what_must_fit(mirror: TokenBucketMirror) -> None:
    mirror.scale = 2.0
    before = mirror.level(0.0)
    mirror.debit(1000.0, 0.0, 1, 0.0)
    assert mirror.level(0.0) == before - 2000.0
    mirror.debit(28_500.0, 0.0, 2, 0.0)
    assert mirror.ready_at(1000.0, 0.0, 0.0) == pytest.approx(1.12)


def test_it_stays_within_bounds(mirror: TokenBucketMirror) -> None:
    play(mirror, 100.0, 100.0, rounds=1000)
    assert mirror.scale == SCALE_BOUNDS[1]


def test_a_level_that_rose_teaches_nothing(mirror: TokenBucketMirror) -> None:
    mirror.debit(1000.0, 0.0, 1, 0.0)
    mirror.observe(tokens(1000.0), 1, 0.0, 0.0, None)
    mirror.debit(1000.0, 0.0, 2, 1.0)
    mirror.observe(tokens(50_000.0), 2, 1.0, 1.0, None)
    assert mirror.scale == 1.0


def test_an_idle_gap_in_which_the_bucket_was_full_teaches_nothing(mirror: TokenBucketMirror) -> None:
    for order, sent_at, told in ((1, 0.0, 29_000.0), (2, 1.0, 29_000.0), (3, 100.0, 59_000.0), (4, 101.0, 58_500.0)):
        mirror.debit(1000.0, 0.0, order, sent_at).answered = True
        mirror.observe(tokens(told), order, sent_at, sent_at, None)
    assert mirror.scale == pytest.approx(1.0, rel=0.1)


def test_a_burst_after_an_idle_gap_is_worth_what_it_was_estimated_at(mirror: TokenBucketMirror) -> None:
    for order in range(1, 8):
        mirror.debit(1000.0, 0.0, order, 0.0).answered = True
    mirror.observe(tokens(29_000.0), 7, 0.0, 0.0, None)
    for order in range(8, 18):
        mirror.debit(1000.0, 0.0, order, 100.0).answered = True
    mirror.observe(tokens(50_000.0), 17, 100.0, 101.0, None)
    assert mirror.scale == pytest.approx(1.0, rel=0.1)


def test_a_refused_request_is_no_part_of_it(mirror: TokenBucketMirror) -> None:
    level = 30_000.0
    for order in range(1, 60):
        now = float(order)
        debit = mirror.debit(3000.0, 0.0, order, now)
        debit.answered = True
        if order % 3:
            mirror.refund(debit, 0.0)
        else:
            level -= 3000.0
        mirror.observe(tokens(level), order, now, now, None)
        level += 1000.0
    assert mirror.scale == pytest.approx(1.0, rel=0.2)


def test_requests_are_never_scaled() -> None:
    mirror = TokenBucketMirror(
        QuotaReading("requests", "requests", "continuous", limit=60.0, remaining=60.0, window=60.0), 0.0
    )
    for order in range(1, 40):
        mirror.debit(1.0, 0.0, order, 0.0).answered = True
        mirror.observe(
            QuotaReading("requests", "requests", "continuous", limit=60.0, remaining=60.0 - order * 1.5, window=60.0),
            order, 0.0, 0.0, None,
        )  # fmt: skip
    assert mirror.scale == 1.0
