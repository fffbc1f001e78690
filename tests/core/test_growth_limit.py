from __future__ import annotations

import pytest

from tidegate.core.growth_limit import LATE, GrowthLimit
from tidegate.core.rate_meter import Burst

GRACE = 0.03


def found(at: float = 1.01, refused: float = 0.9) -> GrowthLimit:
    """Return the model of a limit that admitted 10 calls at 0, and then none until `at`."""
    growth = GrowthLimit(Burst(10, 0.0), 0.0)
    growth.silent(refused)
    assert growth.found(at, 10)
    return growth


def go(growth: GrowthLimit, count: int, at: float, number: int) -> None:
    for place in range(count):
        growth.sent(at, number + place)


def test_the_silence_after_the_run_shows_a_natural_period() -> None:
    growth = found()
    go(growth, 9, 1.05, 11)
    assert growth.next_at(1.05, GRACE) == pytest.approx(1.05 + LATE * GRACE)  # The growth is tried.
    assert growth.rate == pytest.approx(10.0)


def test_without_a_refused_attempt_the_period_is_not_known() -> None:
    growth = GrowthLimit(Burst(10, 0.0), 0.0)
    assert not growth.found(0.2, 10)
    assert not growth.known


def test_a_silence_shorter_than_the_run_shows_no_period() -> None:
    growth = GrowthLimit(Burst(10, 5.0), 5.0)
    growth.silent(5.2)
    assert not growth.found(5.4, 10)


def test_trials_narrow_the_growth_and_the_next_period_uses_it() -> None:
    growth = found()
    go(growth, 9, 1.05, 11)
    go(growth, 5, 1.1, 20)  # 15 calls after 10
    at = 1.1 + LATE * GRACE
    growth.next_at(at, GRACE)
    growth.sent(at, 25)
    growth.refused(25, at, at + 0.01, GRACE)
    assert growth.next_at(at + 0.02, GRACE) == pytest.approx(2.05, abs=1e-3)
    go(growth, 1, 2.2, 26)
    growth.next_at(2.2, GRACE)
    assert growth.rate == pytest.approx(1.5 * 15)


def test_a_refusal_that_a_delay_explains_changes_no_number() -> None:
    growth = found()
    go(growth, 9, 1.05, 11)
    go(growth, 5, 1.1, 20)
    growth.next_at(1.2, GRACE)
    # The call of 1.01 has left the period for the client, and not yet for the provider.
    growth.sent(2.011, 25)
    growth.refused(25, 2.011, 2.02, GRACE)
    later = growth.next_at(2.04, GRACE)
    assert 2.04 <= later <= 2.05 + LATE * GRACE
    go(growth, 1, 2.3, 26)
    growth.next_at(2.3, GRACE)
    assert growth.rate == pytest.approx(1.5 * 15)


def test_a_call_that_was_never_sent_does_not_count() -> None:
    growth, other = found(), found()
    for each in (growth, other):
        go(each, 9, 1.05, 11)
    growth.sent(1.06, 20)
    growth.withdrawn(1.06)
    assert growth.next_at(1.5, GRACE) == other.next_at(1.5, GRACE)


def test_a_late_refusal_of_the_run_lowers_the_least() -> None:
    growth = GrowthLimit(Burst(10, 0.0), 0.0)
    growth.late()
    assert growth.least == 9
