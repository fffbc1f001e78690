"""Bare refusals at random, and at a slow rate: one caller, in virtual time."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from tests.core.values import KEY
from tests.effort import effort
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Cause, Cost, Kind, Outcome
from tidegate.settings import Settings

LATENCY = 0.2
OK = Outcome(Kind.OK, status=200)
BARE_429 = Outcome(Kind.RATE_LIMIT, Cause.RATE, status=429)


class Caller:
    """One caller that makes one call after another; an answer takes `LATENCY` seconds, a refusal `trip` seconds."""

    def __init__(self, seed: int = 0, trip: float = LATENCY) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.trip = trip
        self.refused = self.admitted = 0
        settings = Settings(telemetry=False)
        self.registry = RateLimitRegistry(settings, clock=lambda: self.now, draw=self.random.random)

    def attempt(self, decide: Callable[[float], Outcome]) -> Outcome:
        """Make one attempt as soon as the key admits it."""
        while not (permit := self.registry.try_admit(KEY, Cost())):
            assert permit.ready_at < math.inf
            self.now = max(self.now + 1e-6, permit.ready_at)
        outcome = decide(self.now)
        refused = outcome.kind is not Kind.OK
        self.refused += refused
        self.admitted += not refused
        self.now += self.trip if refused else LATENCY
        self.registry.settle(permit, outcome)
        return outcome

    def meets(self, attempts: int, share: float) -> None:
        """Make attempts of which a share is refused at random."""
        for _ in range(attempts):
            self.attempt(lambda now: BARE_429 if self.random.random() < share else OK)


class Bucket:
    """A hidden limit: `size` calls at once, and `rate` calls a second."""

    def __init__(self, rate: float, size: float) -> None:
        self.rate, self.size = rate, size
        self.level, self.at = size, 1000.0

    def __call__(self, now: float) -> Outcome:
        self.level = min(self.size, self.level + self.rate * (now - self.at))
        self.at = now
        if self.level < 1.0:
            return BARE_429
        self.level -= 1.0
        return OK


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_steady_stray_refusals_do_not_stop_a_caller(share: float) -> None:
    """A provider that always refuses this share: every refusal costs a wait, and none makes the key slow for good."""
    times = []
    for seed in range(effort(5, 10)):
        caller = Caller(seed, trip=0.01)
        began = caller.now
        while caller.admitted < 200:
            caller.meets(1, share)
        times.append(caller.now - began)
    assert statistics.median(times) <= 200 * LATENCY * {0.1: 1.5, 0.3: 6.0, 0.5: 30.0}[share]


@pytest.mark.parametrize(
    ("rate", "size", "refusals", "used"),
    [(1 / 60, 1, 90, 0.65), (1 / 60, 5, 60, 0.9), (0.1, 10, 60, 0.9), (0.5, 1, 50, 0.4), (1.0, 60, 40, 0.9)],
)
def test_a_true_slow_rate_is_held_at_few_refusals(rate: float, size: float, refusals: int, used: float) -> None:
    """A hundred calls' time: the search for the rate costs refusals, after which the rate is held."""
    caller, provider = Caller(trip=0.01), Bucket(rate, size)
    half, ends = caller.now + 50.0 / rate, caller.now + 100.0 / rate
    while caller.now < half:
        caller.attempt(provider)
    before, sought = caller.admitted, caller.refused
    while caller.now < ends:
        caller.attempt(provider)
    assert caller.refused <= refusals
    assert caller.refused - sought <= sought
    assert caller.admitted - before >= used * 50.0


def test_a_true_rate_after_stray_refusals_is_held() -> None:
    caller, provider = Caller(trip=0.01), Bucket(2.0, 20.0)
    caller.meets(100, 0.3)
    provider.at = caller.now
    ends = caller.now + 200.0
    refused, admitted = caller.refused, caller.admitted
    while caller.now < ends:
        caller.attempt(provider)
    assert caller.admitted - admitted >= 0.85 * 400
    assert caller.refused - refused <= 40
