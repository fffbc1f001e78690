"""Laws of the short path of a call: it admits nothing that the gates would hold back, and loses no count."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import KEY
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import OK, Cause, Cost, Kind, Outcome, QuotaReading, Usage
from tidegate.settings import Settings

MINUTE = 60.0
FAILURES = (
    Outcome(Kind.RATE_LIMIT, Cause.RATE, None, status=429),
    Outcome(Kind.RATE_LIMIT, Cause.RATE, 2.0, status=429),
    Outcome(Kind.OVERLOADED, Cause.OVERLOAD, status=529),
    Outcome(Kind.TRANSIENT, Cause.OUTAGE),
    Outcome(Kind.PERMANENT, Cause.AUTH, status=401),
    Outcome(Kind.ABANDONED),
)


class Play:
    """One key, and a provider with buckets of requests and of tokens that answers it, in random order."""

    def __init__(self, seed: int, failing: float) -> None:
        self.draw, self.failing = random.Random(seed), failing
        highest = self.draw.choice([None, 5, 20])
        self.admission = AdmissionController(KEY, Settings(max_concurrency=highest), MINUTE, 0.0)
        self.limits = {"requests": self.draw.choice([50.0, 500.0, 5000.0]), "tokens": self.draw.choice([2e4, 1e6])}
        self.requests = 1.0
        self.levels = dict(self.limits)
        self.in_flight: list[Permit] = []
        self.now = 0.0
        self.short = 0

    def step(self) -> None:
        self.now += (passed := self.draw.choice([0.0, 0.0, 0.001, 0.01, 0.05, 0.3]))
        for unit, limit in self.limits.items():
            self.levels[unit] = min(limit, self.levels[unit] + passed * limit / MINUTE)
        if self.draw.random() < 0.5 or not self.in_flight:
            self.send()
        else:
            self.end(self.in_flight.pop(self.draw.randrange(len(self.in_flight))))

    def send(self) -> None:
        tokens = self.draw.choice([10.0, 100.0, 1000.0])
        if self.draw.random() < 0.02:
            self.requests = 51.0 - self.requests
        cost = Cost(self.requests, tokens, tokens, input_estimate=tokens)
        before = copy.deepcopy(self.admission)
        permit = self.admission.enter(cost, self.now)
        if permit is not None:
            self.short += 1
            assert before.ready_at(cost, self.now) == (self.now, "")
        elif self.admission.ready_at(cost, self.now)[0] <= self.now:
            permit = self.admission.admit(cost, self.now, 0.0, None)
        if permit is not None:
            self.in_flight.append(permit)
            self.levels["requests"] -= cost.requests
            self.levels["tokens"] -= tokens

    def end(self, permit: Permit) -> None:
        outcome = Outcome(OK, readings=self.readings() if permit.informs else (), status=200)
        if self.draw.random() < self.failing:
            outcome = self.draw.choice(FAILURES)
        if outcome.kind is not OK or not self.admission.answer(permit, outcome, self.now):
            self.admission.settle(permit, outcome, self.now, self.draw.random(), None)

    def readings(self) -> tuple[QuotaReading, ...]:
        found = []
        for unit, limit in self.limits.items():
            left = self.levels[unit]
            resets = (limit - left) * MINUTE / limit
            found.append(QuotaReading(unit, unit, "continuous", limit, float(int(left)), resets))
        return tuple(found)


@given(st.integers(0, 2**16), st.sampled_from([0.0, 0.01, 0.05]))
def test_short_path_admits_what_every_gate_admits_and_counts_it(seed: int, failing: float) -> None:
    play = Play(seed, failing)
    for _ in range(300):
        play.step()
        counts = play.admission.counts
        ended = counts.answered + counts.refused + counts.failed + counts.abandoned
        assert counts.attempts == ended + len(play.admission.permits_in_flight)
        assert len(play.in_flight) == len(play.admission.permits_in_flight)


def test_most_calls_of_an_ample_key_take_the_short_path() -> None:
    play = Play(1, 0.0)
    play.limits = play.levels = {"requests": 1e6, "tokens": 1e9}
    for _ in range(1000):
        play.now += 0.01
        while play.in_flight and play.in_flight[0].sent_at <= play.now - 0.3:
            play.end(play.in_flight.pop(0))
        play.send()
    assert play.short > 0.5 * play.admission.counts.attempts


@pytest.mark.parametrize("latency", [0.05, 2.0])
def test_reserves_end_with_their_calls_while_the_quota_is_ample(latency: float) -> None:
    """The provider charges the output that it produces; the table said the bound of the request."""
    draw, limit = random.Random(1), 1_000_000.0
    admission = AdmissionController(KEY, Settings(), MINUTE, 0.0)
    left, now, due = limit, 0.0, 0.0
    in_flight: list[tuple[float, Permit, int]] = []
    while now < 4 * MINUTE:
        now += 0.01
        left = min(limit, left + 0.01 * limit / MINUTE)
        while in_flight and in_flight[0][0] <= now:
            _, permit, produced = in_flight.pop(0)
            left -= produced
            reset = (limit - left) * MINUTE / limit
            reading = QuotaReading("tokens", "tokens", "continuous", limit, float(int(max(0.0, left))), reset, MINUTE)
            readings = (reading,) if permit.informs else ()
            outcome = Outcome(OK, readings=readings, usage=Usage(200, produced), status=200)
            if not admission.answer(permit, outcome, now):
                admission.settle(permit, outcome, now, 0.5, None)
        given, bound = draw.choice([150.0, 200.0, 250.0]), 1000.0
        cost = Cost(1.0, given + bound, given, bound, input_estimate=given, output_bound=bound, output_estimate=200.0)
        if now >= due and admission.ready_at(cost, now)[0] <= now:
            permit = admission.enter(cost, now) or admission.admit(cost, now, 0.0, None)
            due = now + (1 / 150 if now < 2 * MINUTE else 1 / 5)
            left -= given
            in_flight.append((now + latency, permit, draw.randint(140, 260)))
    (mirror,) = admission.quotas.mirrors.values()
    assert mirror.charging is not None
    assert mirror.charging.produces
    assert mirror.reserved <= 260.0 * len(in_flight)
