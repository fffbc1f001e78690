from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tidegate.core.pacer import Pacer
from tidegate.core.rate_meter import Burst
from tidegate.core.values import Cause

TRIP = 0.01


@dataclass
class Provider:
    """A bucket of `size` that gets back `rate` calls a second, and a client that sends whatever the pacer lets go."""

    rate: float
    size: float = 1.0
    pacer: Pacer = field(default_factory=Pacer)
    now: float = 0.0
    cause: Cause = Cause.RATE
    let_in: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self._level, self._at = 0.0, 0.0
        self._due: list[tuple[float, int, float]] = []
        self._wave = -1.0

    def begin(self, count: int = 20, seconds: float = 0.2) -> None:
        """The first refusal of all, at 0."""
        self.pacer.begin(Burst(count, seconds), self.now, self.now + TRIP, self.cause, 3 * TRIP)
        self.now += TRIP

    def run(self, until: float) -> None:
        while (opens := max(self.now, self.pacer.spacing.opens_at(self.now))) <= until and self.pacer.active:
            if self._due and self._due[0][0] <= opens:
                self._tell()
                continue
            self.now = opens
            self._send()
        self.now = max(self.now, until)

    def _send(self) -> None:
        mark = self.pacer.mark
        self.pacer.sent(self.now)
        self._level = min(self.size, self._level + self.rate * (self.now - self._at))
        self._at = self.now
        if self._level >= 1.0:
            self._level -= 1.0
            self.let_in += 1
        else:
            self.refused += 1
            self._due.append((self.now + TRIP, mark, self.now))

    def _tell(self) -> None:
        at, mark, sent_at = self._due.pop(0)
        self.now = max(self.now, at)
        new_wave = sent_at >= self._wave
        if new_wave:
            self._wave = self.now
        self.pacer.refused(mark, sent_at, self.now, new_wave, self.cause, 3 * TRIP)


@pytest.fixture
def pacer() -> Pacer:
    """Active since a refusal at 0 of the 21st call within a fifth of a second."""
    pacer = Pacer()
    pacer.begin(Burst(20, 0.2), 0.0, TRIP, Cause.RATE, 3 * TRIP)
    return pacer


@pytest.mark.parametrize("rate", [2.0, 20.0, 150.0])
@pytest.mark.parametrize("seconds", [1.0, 6.0, 60.0])
def test_whatever_the_size_of_the_bucket_its_rate_is_found_and_held(rate: float, seconds: float) -> None:
    size = max(4.0, rate * seconds)
    provider = Provider(rate, size)
    provider.begin(int(size), 0.2)
    provider.run(60.0 + 100.0 / rate)
    began, let_in, refused = provider.now, provider.let_in, provider.refused
    provider.run(began + 60.0)
    assert provider.let_in - let_in >= 0.9 * 60.0 * rate
    assert provider.refused - refused <= 0.02 * 60.0 * rate + 1


def test_a_bucket_that_saves_nothing_is_used_nearly_as_well() -> None:
    provider = Provider(20.0, size=1.0)
    provider.begin(1, 0.0)
    provider.run(60.0)
    let_in = provider.let_in
    provider.run(120.0)
    assert provider.let_in - let_in >= 0.85 * 60.0 * 20.0


def test_capacity_that_went_is_found_again_in_a_few_refusals_and_its_return_too() -> None:
    provider = Provider(20.0, size=20.0)
    provider.begin()
    provider.run(20.0)
    provider.rate, refused = 5.0, provider.refused
    provider.run(25.0)
    assert provider.refused - refused <= 8
    assert 4.0 <= provider.pacer.gauge.rate <= 6.0
    provider.rate, let_in = 20.0, provider.let_in
    provider.run(29.0)
    assert provider.let_in - let_in >= 55


def test_a_refused_rate_is_not_taken_for_an_outage() -> None:
    provider = Provider(0.0)
    provider.begin()
    provider.run(20.0)
    provider.rate = 1.0
    provider.run(60.0)
    assert provider.pacer.active
