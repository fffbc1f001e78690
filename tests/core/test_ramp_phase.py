from __future__ import annotations

import pytest

from tidegate.core.pacer import Pacer
from tidegate.core.pacer_phases import STEP_SECONDS, PacerPhase
from tidegate.core.ramp_phase import CLIMB, CLIMB_FROM, RampPhase
from tidegate.core.rate_meter import Burst
from tidegate.core.values import Cause
from tidegate.testing import Slope

TRIP = 0.01


class Climb:
    """A provider that limits growth, and a client that sends whatever the pacer lets go.

    A refusal is known after `TRIP`.
    """

    def __init__(self, slope: Slope) -> None:
        self.slope = slope
        self.pacer = Pacer()
        self.now = 0.0
        self.admitted: list[float] = []
        self.refused = 0
        self._due: list[tuple[float, int, float]] = []
        self._wave = -1.0
        while slope.ready_at(1, self.now) <= self.now:
            self._admit(self.now)
        self.pacer.begin(Burst(len(self.admitted), 0.001), 0.0, TRIP, Cause.SLOPE, 3 * TRIP)
        self.now = TRIP

    def _admit(self, at: float) -> None:
        self.slope.charge(1, at)
        self.admitted.append(at)

    def run(self, until: float) -> None:
        while True:
            opens = max(self.now, self.pacer.spacing.opens_at(self.now))
            if self._due and self._due[0][0] <= min(opens, until):
                self.now, mark, sent_at = self._due.pop(0)
                new_wave, self._wave = sent_at >= self._wave, max(self._wave, self.now)
                self.pacer.refused(mark, sent_at, self.now, new_wave, Cause.SLOPE, 3 * TRIP)
                continue
            if opens > until:
                return
            self.now = opens
            mark = self.pacer.mark
            self.pacer.sent(self.now)
            if self.slope.ready_at(1, self.now) <= self.now:
                self._admit(self.now)
            else:
                self.refused += 1
                self._due.append((self.now + TRIP, mark, self.now))


def possible(slope: Slope, until: float) -> int:
    """Return how many calls a client gets that knows the limit."""
    count, at = 0, 0.0
    while (at := max(at, slope.ready_at(1, at))) <= until:
        slope.charge(1, at)
        count += 1
    return count


@pytest.mark.parametrize(
    ("window", "growth", "later"), [(1.0, 1.3, 1), (1.0, 1.9, 1), (10.0, 1.4, 1), (3.0, 1.5, 2), (0.5, 1.5, 2)]
)
def test_a_climb_is_nearly_as_steep_as_the_provider_allows(window: float, growth: float, later: int) -> None:
    """A client that knows the numbers is one period ahead, or two where the period is not a natural one."""
    climb = Climb(Slope(limit=10, window=window, growth=growth))
    climb.run((6 + later) * window)
    assert climb.pacer.phase is PacerPhase.RAMP
    assert len(climb.admitted) >= possible(Slope(limit=10, window=window, growth=growth), 6.0 * window)
    assert climb.refused <= 0.15 * len(climb.admitted) + 10


def test_a_limit_that_allows_no_growth_is_rarely_tried_again() -> None:
    climb = Climb(Slope(limit=10, window=1.0, growth=1.0))
    climb.run(10.0)
    early = climb.refused
    climb.run(60.0)
    assert len(climb.admitted) >= 0.95 * possible(Slope(limit=10, window=1.0, growth=1.0), 60.0)
    assert climb.refused - early <= 15


def test_a_growth_that_rises_later_is_found() -> None:
    climb = Climb(Slope(limit=10, window=1.0, growth=1.0))
    climb.run(10.0)
    climb.slope._growth = 1.5
    before = len(climb.admitted)
    climb.run(30.0)
    assert len(climb.admitted) - before >= 5 * 200


def test_a_climb_slows_down_after_a_refusal_and_is_soon_as_fast_as_before() -> None:
    climb = RampPhase()
    assert climb.first(Burst(20, 2.0), 2.0) == CLIMB_FROM * 10.0
    climb.refused()
    assert climb.seconds > STEP_SECONDS
    assert climb.step(10.0) == CLIMB * 10.0
    climb.step(11.0)
    assert climb.seconds == STEP_SECONDS
