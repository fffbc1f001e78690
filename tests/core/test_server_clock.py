"""The distance of a provider's clock is an interval that every answer narrows."""

from __future__ import annotations

import math

import pytest

from tests.core.values import bucket
from tidegate.core.quota import QuotaSet
from tidegate.core.server_clock import ServerClock
from tidegate.core.values import QuotaReading, ResetInstant

OFFSET = 1_800_000_000.37


def stated(reset_at: float, sent: float, rounding: float = 1e-6) -> QuotaReading:
    """Return a reading whose reset is an instant, dated when its request arrived."""
    instant = ResetInstant(OFFSET + reset_at, rounding, float(math.floor(OFFSET + sent)))
    return bucket(300.0, 0.0, reset_after=9.0, window=None)._replace(from_receipt=True, instant=instant)


def test_answers_narrow_the_reset_to_the_latency() -> None:
    clock = ServerClock()
    widths = []
    for number in range(40):
        sent = 0.173 * number
        (reading,) = clock.timed([stated(100.0, sent)], sent, sent + 0.2)
        earliest = sent + 0.2 + (reading.reset_after or 0.0)
        assert earliest - 1e-3 <= 100.0 <= earliest + reading.resolution + 1e-3
        widths.append(reading.resolution)
    assert widths[0] == pytest.approx(1.2, abs=0.01)
    assert widths[-1] < 0.25


def test_a_clock_that_was_set_is_learned_again() -> None:
    clock = ServerClock()
    clock.saw(1000.0, 0.0, 0.1)
    clock.saw(5000.0, 1.0, 1.1)
    instant = ResetInstant(5010.0, 1e-6, 5000.0)
    (reading,) = clock.timed([bucket(300.0, 0.0)._replace(instant=instant)], 1.0, 1.1)
    assert reading.reset_after == pytest.approx(8.9)


def test_a_quotas_boundary_is_read_off_the_providers_clock() -> None:
    quotas = QuotaSet()
    for number in range(30):
        sent = 0.173 * number
        quotas.observe((stated(100.0, sent)._replace(refill="fixed"),), number + 1, sent, sent + 0.2, ())
    boundary = quotas.mirrors["requests"].resets_at(6.0)
    assert boundary == pytest.approx(100.1, abs=0.15)


def test_the_readings_of_one_answer_are_timed_alike_and_others_are_left() -> None:
    clock = ServerClock()
    instant = ResetInstant(1000.0 + 70.0, 1.0, 1000.0)
    dated, undated = bucket(300.0, 0.0)._replace(instant=instant), bucket(300.0, 5.0)
    first, second, third = clock.timed([dated, undated, dated._replace(name="b")], 10.0, 10.5)
    assert second is undated
    assert first == third._replace(name=first.name)
    assert first.reset_after is not None
    assert first.reset_after == pytest.approx(68.5)
    assert clock.timed([undated], 11.0, 11.5) == [undated]
