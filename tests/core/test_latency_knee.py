from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from tests.effort import effort
from tidegate.core.concurrency_limit import LatencyKnee


class Server:
    """Callers in a closed loop under the limit worth having; the `flying`-th in flight takes `latency(flying)`."""

    def __init__(self, latency: Callable[[int], float], callers: int = 128, seed: int = 0, spread: float = 0.2) -> None:
        self.latency = latency
        self.callers = callers
        self.spread = spread
        self.random = random.Random(seed)
        self.latency_knee = LatencyKnee()
        self.now = 0.0
        self.limits: list[float] = []
        self._flying: list[tuple[float, float, int]] = []

    @property
    def limit(self) -> int:
        return int(min(self.callers, self.latency_knee.useful))

    def run(self, seconds: float) -> None:
        """Answers and asks again for so long; the first round takes a fifth of a second."""
        until = self.now + seconds
        while self.now < until:
            while len(self._flying) < min(self.limit, 1 + 640 * self.now):
                flying = len(self._flying) + 1
                took = self.latency(flying) * self.random.lognormvariate(0.0, self.spread)
                heapq.heappush(self._flying, (self.now + took, self.now, flying))
            if self.now < 0.2:
                self.now += 0.0015
            if self._flying[0][0] <= self.now or self.now >= 0.2:
                ends, sent_at, flying = heapq.heappop(self._flying)
                self.now = max(self.now, ends)
                if self.latency_knee.answered(flying, sent_at, self.now):
                    self.limits.append(self.latency_knee.useful)


def knee(at: float, base: float = 0.5) -> Callable[[int], float]:
    """Latency that grows in proportion beyond `at` in flight."""
    return lambda flying: base * max(1.0, flying / at)


@pytest.mark.parametrize("seed", range(effort(2, 5)))
def test_where_more_in_flight_only_takes_longer_the_limit_goes_just_above_the_knee(seed: int) -> None:
    server = Server(knee(24), seed=seed)
    server.run(6.0)
    assert 22 <= server.limit <= 36


@pytest.mark.parametrize("seed", range(effort(3, 12)))
def test_one_higher_limit_that_gains_nothing_is_followed_by_no_higher_one(seed: int) -> None:
    server = Server(knee(16), seed=seed, spread=0.9)
    server.run(90.0)
    assert len(server.limits) > 2
    assert max(server.limits) < 128


@pytest.mark.parametrize("seed", range(effort(2, 5)))
@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_a_provider_that_keeps_up_is_given_all(seed: int, spread: float) -> None:
    server = Server(lambda flying: 0.5, seed=seed, spread=spread)
    server.run(30.0)
    assert server.limits == []


def test_a_knee_that_went_away_is_outgrown() -> None:
    server = Server(knee(24))
    server.run(5.0)
    server.latency = lambda flying: 0.5
    server.run(60.0)
    assert server.limit == server.callers


def test_an_idle_client_is_given_no_more_however_long_it_waits() -> None:
    server = Server(knee(24))
    server.run(5.0)
    cut = server.latency_knee.useful
    for hour in range(1, 20):
        for _ in range(20):
            server.latency_knee.answered(5, 3600.0 * hour, 3600.0 * hour + 0.5)
    assert server.latency_knee.useful == cut
