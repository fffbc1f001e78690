"""What one key's gates hold to, whatever calls do and however they end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.values import ABANDONED, INVALID, KEY, OK, OUTAGE, TIMEOUT, answer, bucket, fixed, refusal
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.circuit_breaker import MIN_SILENCE_SECONDS, BreakerState
from tidegate.core.events import ConcurrencyDecreased, Event
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Outcome
from tidegate.settings import Settings

pytestmark = pytest.mark.constants(START_CONCURRENCY=8)

OUTCOMES = [
    OK, OK, OK, INVALID, TIMEOUT, ABANDONED, OUTAGE, OUTAGE, refusal(), refusal(3.0),
    refusal(None, cause=Cause.CONCURRENCY), answer(bucket(60.0, 20.0)), answer(fixed(50.0, 3.0, name="window")),
    refusal(1.0, bucket(60.0, 0.0)),
]  # fmt: skip

steps = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 30)),
    st.tuples(st.just("end"), st.integers(0, 60), st.sampled_from(OUTCOMES)),
    st.tuples(st.just("learn"), st.integers(0, 60)),
    st.tuples(st.just("withdraw"), st.integers(0, 60)),
    st.tuples(st.just("pass"), st.integers(1, 500).map(lambda hundredths: hundredths / 100)),
)
histories = st.integers(0, 60).flatmap(lambda count: st.lists(steps, min_size=count, max_size=count))


@dataclass
class KeyModel:
    """One key, whose callers ask before they go, as the registry does."""

    admission: AdmissionController = field(
        default_factory=lambda: AdmissionController(KEY, Settings(max_concurrency=40), 60.0, 0.0)
    )
    now: float = 0.0
    permits_in_flight: list[Permit] = field(default_factory=list)
    out: list[Event] = field(default_factory=list)
    last_cut: int = 0
    paused_until: float = float("-inf")
    probed_at: float = float("inf")

    def play(self, history: list[tuple[object, ...]]) -> None:
        for step in history:
            getattr(self, f"_{step[0]}")(*step[1:])
            self._holds()
        while self.permits_in_flight:
            self._end(0, OK)
            self._holds()

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _admit(self, count: int) -> None:
        for _ in range(count):
            cost = Cost(tokens=10.0, produced=5.0)
            if self.admission.ready_at(cost, self.now)[0] > self.now:
                return
            silent = self.now >= self.probed_at + MIN_SILENCE_SECONDS
            half_open = self.admission.breaker.state is BreakerState.HALF_OPEN
            assert silent or not half_open, "a probe is alone"
            assert not self.admission.pacer.spacing.alone(self.now), "what goes alone is not followed"
            permit = self.admission.admit(cost, self.now, 0.0, self.out)
            self.permits_in_flight.append(permit)
            if permit.probe:
                self.probed_at = self.now

    def _end(self, at: int, outcome: Outcome) -> None:
        if not self.permits_in_flight:
            return
        permit = self.permits_in_flight.pop(at % len(self.permits_in_flight))
        self.out.clear()
        self.admission.settle(permit, outcome, self.now, 0.5, self.out)
        if any(isinstance(event, ConcurrencyDecreased) for event in self.out):
            assert permit.order > self.last_cut, "what was sent before the last cut does not cut again"
            self.last_cut = self.admission.order

    def _learn(self, at: int) -> None:
        unlearned = [permit for permit in self.permits_in_flight if not permit.learned]
        if unlearned:
            self.admission.learn(unlearned[at % len(unlearned)], answer(bucket(60.0, 30.0)), self.now, None)

    def _withdraw(self, at: int) -> None:
        if self.permits_in_flight:
            self.admission.withdraw(self.permits_in_flight.pop(at % len(self.permits_in_flight)), self.now, None)

    def _holds(self) -> None:
        admission = self.admission
        assert 1 <= admission.concurrency.limit <= 40
        assert admission.in_flight == len(self.permits_in_flight)
        assert admission.pause.until >= self.paused_until, "a pause only ever extends"
        self.paused_until = admission.pause.until
        probes = [permit for permit in self.permits_in_flight if permit.probe]
        assert probes or admission.breaker.state is not BreakerState.HALF_OPEN
        ready, gate = admission.ready_at(Cost(), self.now)
        assert ready >= self.now
        if ready == float("inf"):
            assert self.permits_in_flight, f"{gate} waits for an attempt under way, and there is none"


@given(histories)
def test_the_gates_hold_to_their_laws(history: list[tuple[object, ...]]) -> None:
    game = KeyModel()
    game.play(history)
    assert game.admission.in_flight == 0
    assert all(mirror.reserved == 0.0 for mirror in game.admission.quotas.mirrors.values())


@given(histories)
def test_afterwards_every_gate_opens_at_a_known_instant(history: list[tuple[object, ...]]) -> None:
    game = KeyModel()
    game.play(history)
    ready, _ = game.admission.ready_at(Cost(), game.now)
    assert ready <= game.now + 150.0


@pytest.mark.constants(START_CONCURRENCY=8)
@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([OK, answer(bucket(60.0, 50.0))])), max_size=80))
def test_a_client_that_leaves_slots_empty_earns_none(rounds: list[tuple[int, Outcome]]) -> None:
    admission = AdmissionController(KEY, Settings(max_concurrency=100), 60.0, 0.0)
    admission.settle(admission.admit(Cost(), 0.0, 0.0, None), answer(bucket(60.0, 8.0)), 0.0, 0.5, None)
    before = admission.concurrency.limit
    for count, outcome in rounds:
        permits = [admission.admit(Cost(), 0.0, 0.0, None) for _ in range(count)]
        for permit in permits:
            admission.settle(permit, outcome, 0.0, 0.5, None)
    assert admission.concurrency.limit == before


@pytest.mark.constants(START_CONCURRENCY=40)
@given(st.integers(1, 40), st.data())
def test_however_a_wave_of_refusals_arrives_it_cuts_once(count: int, data: st.DataObject) -> None:
    admission = AdmissionController(KEY, Settings(), 60.0, 0.0)
    wave = [admission.admit(Cost(), 0.0, 0.0, None) for _ in range(count)]
    out: list[Event] = []
    for permit in data.draw(st.permutations(wave)):
        admission.settle(permit, refusal(), 1.0, 0.5, out)
    assert sum(isinstance(event, ConcurrencyDecreased) for event in out) <= 1
    assert admission.epoch == 1


@pytest.mark.constants(START_CONCURRENCY=100)
@given(st.integers(1, 40), st.integers(1, 30), st.data())
def test_however_a_wave_of_refusals_arrives_the_pace_is_cut_once(count: int, let_in: int, data: st.DataObject) -> None:
    admission = AdmissionController(KEY, Settings(), 60.0, 0.0)
    admission.settle(admission.admit(Cost(), 0.0, 0.0, None), refusal(0.1), 0.01, 0.5, None)
    early = [admission.admit(Cost(), at / 10, 0.0, None) for at in range(3, 3 + let_in)]
    for permit in early:
        admission.settle(permit, OK, permit.sent_at + 0.5, 0.5, None)
    now = 1.0 + let_in / 10
    wave = [admission.admit(Cost(), now, 0.0, None) for _ in range(count)]
    paces = set()
    for permit in data.draw(st.permutations(wave)):
        admission.settle(permit, refusal(), now + 0.01, 0.5, None)
        paces.add(admission.pacer.rate)
    assert len(paces) == 1


@pytest.mark.parametrize("outcome", [OK, INVALID, ABANDONED, OUTAGE, TIMEOUT, refusal()])
@given(history=histories)
def test_a_half_open_breaker_is_left_by_its_probe_alone(outcome: Outcome, history: list[tuple[object, ...]]) -> None:
    game = KeyModel()
    game._admit(3)
    early = list(game.permits_in_flight)
    game.admission.breaker.state = BreakerState.OPEN
    game.permits_in_flight = [game.admission.admit(Cost(), game.now, 0.0, None)]
    for permit in early:
        game.admission.settle(permit, outcome, game.now, 0.5, None)
        assert game.admission.breaker.state is BreakerState.HALF_OPEN
