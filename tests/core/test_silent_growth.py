"""A provider that limits how fast a client grows and does not say so is used nearly as fast as it allows."""

from __future__ import annotations

import heapq
import random

import pytest

from tests.core.values import KEY, OK
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Kind, Outcome
from tidegate.settings import Settings

REFUSAL = Outcome(Kind.RATE_LIMIT, Cause.RATE, status=429)
CALLS = 400


class Growth:
    """A period admits the `least` calls, or `factor` times the calls of the period before."""

    def __init__(self, least: int, period: float, factor: float) -> None:
        self.least, self.period, self.factor = least, period, factor
        self.admitted: list[float] = []

    def __call__(self, now: float) -> bool:
        lately = sum(at > now - self.period for at in self.admitted)
        before = sum(now - 2.0 * self.period < at <= now - self.period for at in self.admitted)
        if lately + 1 > max(self.least, self.factor * before):
            return False
        self.admitted.append(now)
        return True


def play(limit: Growth, callers: int = 128) -> tuple[float, int]:
    """Return when the last of `CALLS` was admitted, and the number of refusals; answers take about 0.4 s."""
    drawn, now, refusals, ended = random.Random(1), 0.0, 0, list[tuple[float, int, Permit, Outcome]]()
    key = AdmissionController(KEY, Settings(), 60.0, 0.0)
    while len(limit.admitted) < CALLS:
        ready, _ = key.ready_at(Cost(), now)
        if ready <= now and len(ended) < callers:
            permit = key.admit(Cost(), now, 1.0, None)
            good = limit(now)
            refusals += not good
            assert refusals < CALLS, "the key resends without end"
            heapq.heappush(
                ended,
                (now + (drawn.uniform(0.3, 0.5) if good else 0.01), permit.order, permit, OK if good else REFUSAL),
            )
            continue
        now = max(now, min([each[0] for each in ended[:1]] + [ready] * (len(ended) < callers)))
        while ended and ended[0][0] <= now:
            _, _, permit, outcome = heapq.heappop(ended)
            key.settle(permit, outcome, now, drawn.random(), None)
    return now, refusals


def oracle(limit: Growth) -> float:
    """Return when the last call is admitted to a client that sends a call as soon as the limit admits it."""
    now, step = 0.0, limit.period / 500.0
    while len(limit.admitted) < CALLS:
        if not limit(now):
            now += step
    return now


@pytest.mark.parametrize(("least", "period", "factor"), [(12, 4.0, 2.0), (5, 5.0, 2.2), (4, 2.2, 2.9)])
def test_growth_that_no_refusal_names_is_followed(least: int, period: float, factor: float) -> None:
    best = oracle(Growth(least, period, factor))
    took, refusals = play(Growth(least, period, factor))
    assert took < 1.27 * best
    assert refusals < 0.1 * CALLS


@pytest.mark.parametrize(("least", "period", "factor"), [(8, 3.3, 2.6), (6, 2.4, 2.3)])
def test_growth_that_was_taken_for_a_window_is_not_held_at_its_least(least: int, period: float, factor: float) -> None:
    best = oracle(Growth(least, period, factor))
    took, refusals = play(Growth(least, period, factor))
    assert took < 5.0 * best
    assert refusals < 0.1 * CALLS
