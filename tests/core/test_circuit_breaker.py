from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.circuit_breaker import (
    CircuitBreaker,
)

pytestmark = pytest.mark.constants(OUTAGE_FAILURES=3, FIRST_COOLDOWN_SECONDS=2.0, MAX_COOLDOWN_SECONDS=10.0)


@pytest.fixture
def breaker() -> CircuitBreaker:
    """Opens at the third failure; cools down for 2 s at first, 10 s at most."""
    return CircuitBreaker()


@pytest.fixture
def opened(breaker: CircuitBreaker) -> CircuitBreaker:
    """Opened at instant 0, without jitter."""
    for _ in range(3):
        failed(breaker)
    return breaker


def failed(breaker: CircuitBreaker, probe: bool = False) -> bool:
    """An outage failure at instant 0, without jitter."""
    return breaker.failed(probe, 0.0, 0.0, 0.5)


def test_it_opens_at_the_threshold_and_not_before(breaker: CircuitBreaker) -> None:
    assert [failed(breaker) for _ in range(3)] == [False, False, True]
    assert not breaker.closed


def test_only_consecutive_failures_count(breaker: CircuitBreaker) -> None:
    for _ in range(5):
        failed(breaker)
        failed(breaker)
        breaker.answered(False, 0.1, 0.2)
    assert breaker.closed


@pytest.mark.parametrize(("draw", "cooldown"), [(0.0, 1.5), (0.5, 2.0), (1.0, 2.5)])
def test_the_cool_down_is_jittered_by_a_quarter_either_way(
    breaker: CircuitBreaker, draw: float, cooldown: float
) -> None:
    for _ in range(3):
        breaker.failed(False, 0.0, 0.0, draw)
    assert breaker.ready_at == cooldown


def test_each_failed_probe_makes_the_cool_down_longer_up_to_its_cap(opened: CircuitBreaker) -> None:
    seen = []
    for _ in range(40):
        opened.sent(2.0)
        assert failed(opened, probe=True) is True
        seen.append(opened.ready_at)
    growth = seen[0] / 2.0
    assert growth > 1.0
    assert seen == pytest.approx([min(10.0, 2.0 * growth**number) for number in range(1, 41)])
    assert seen[-3:] == [10.0, 10.0, 10.0]


@pytest.mark.constants(OUTAGE_FAILURES=1, FIRST_COOLDOWN_SECONDS=0.5, MAX_COOLDOWN_SECONDS=60.0)
@given(durations=st.lists(st.floats(0.0, 5.0), min_size=100, max_size=100))
def test_distance_of_probes_is_at_most_the_first_cooldown_and_a_twentieth_of_the_outage(
    durations: list[float],
) -> None:
    breaker = CircuitBreaker()
    now = began = 100.0
    breaker.failed(False, now, now, 0.5)
    for duration in durations:
        assert breaker.ready_at - now <= 0.5 + 0.05 * (now - began) + 1e-6
        sent_at = breaker.ready_at
        breaker.sent(sent_at)
        now = sent_at + duration
        breaker.failed(True, sent_at, now, 0.5)


def test_an_answered_probe_closes_it_and_forgets_the_growth(opened: CircuitBreaker) -> None:
    opened.sent(2.0)
    failed(opened, probe=True)
    opened.sent(2.0)
    assert opened.answered(True, 0.0, 0.0) is True
    assert opened.opens_at(0.0) == 0.0
    for _ in range(3):
        opened.failed(False, 50.0, 50.0, 0.5)
    assert opened.ready_at == 52.0


def test_failures_while_it_is_open_do_not_move_the_probe(opened: CircuitBreaker) -> None:
    assert opened.failed(False, 1.9, 1.9, 1.0) is False
    assert opened.ready_at == 2.0
