from __future__ import annotations

import pytest

from tests.core.values import bucket
from tidegate.core.quota_base import RETURN_GUARD_SECONDS
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.values import QuotaReading

WINDOW = 10.0


def left(remaining: float) -> QuotaReading:
    return bucket(10.0, remaining, window=None)


@pytest.fixture
def mirror() -> RollingWindowMirror:
    """10 in any ten seconds, nothing taken."""
    return RollingWindowMirror(left(10.0), 0.0, WINDOW)


def test_what_was_taken_comes_back_one_window_later(mirror: RollingWindowMirror) -> None:
    mirror.debit(4.0, 0.0, 1, 0.0)
    mirror.debit(6.0, 0.0, 2, 3.0)
    assert [mirror.level(now) for now in (3.0, 10.1, 13.1)] == [0.0, 4.0, 10.0]


def test_it_tells_when_enough_will_be_back(mirror: RollingWindowMirror) -> None:
    mirror.debit(4.0, 0.0, 1, 0.0)
    mirror.debit(6.0, 0.0, 2, 3.0)
    assert mirror.ready_at(4.0, 0.0, 5.0) == 10.0 + RETURN_GUARD_SECONDS
    assert mirror.ready_at(5.0, 0.0, 5.0) == 13.0 + RETURN_GUARD_SECONDS
    assert mirror.ready_at(0.0, 0.0, 5.0) == 5.0


def test_a_refused_request_took_nothing_and_proves_nothing(mirror: RollingWindowMirror) -> None:
    debit = mirror.debit(4.0, 0.0, 1, 0.0)
    mirror.refund(debit, 0.0)
    mirror.observe(left(0.0), 1, 0.0, 0.1, debit)
    assert mirror.level(0.1) == 10.0


def test_after_a_wave_that_came_just_too_early_the_rest_comes_back_bit_by_bit() -> None:
    mirror = RollingWindowMirror(left(0.0), 0.0, WINDOW, [(-9.1, 10.0)])
    first, second = mirror.debit(1.0, 0.0, 1, 1.0), mirror.debit(1.0, 0.0, 2, 1.0)
    mirror.refund(first, 0.0)
    mirror.on_refused(1.0, 1.01, 0.005)
    mirror.refund(second, 0.0)
    ready = [mirror.ready_at(float(count), 0.0, 1.01) for count in (9, 10)]
    assert ready == pytest.approx([1.015 + RETURN_GUARD_SECONDS, 1.025 + RETURN_GUARD_SECONDS])
