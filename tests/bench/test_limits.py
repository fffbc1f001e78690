"""Limits of drawn families: they note refused attempts, have several backends, or change their number."""

from __future__ import annotations

import math

import pytest

from bench.limits import VariedLimit
from tidegate.testing import Call, Gate, Refusal, Scenario

CALL = Call(10)


def gate_of(limit: VariedLimit, seed: int = 0) -> Gate:
    return Scenario(limiters=(limit,), seed=seed).gate()


def refused(gate: Gate, at: float) -> float | None:
    """Return the seconds that the refusal of a call at `at` states; None if it was admitted."""
    outcome = gate.admit(CALL, at)
    if not isinstance(outcome, Refusal):
        return None
    assert outcome.retry_after is not None
    return outcome.retry_after


def test_a_rolling_window_may_count_refused_attempts() -> None:
    gate = gate_of(VariedLimit(kind="rolling", limit=2, window=10.0, counts_refused=True))
    assert [refused(gate, at) for at in (0.0, 1.0)] == [None, None]
    assert refused(gate, 9.0) == pytest.approx(2.0)
    # Without the attempt at 9 s there is room from 10 s on.
    assert refused(gate, 10.5) == pytest.approx(8.5)
    assert refused(gate, 20.5) is None


def test_each_attempt_meets_a_backend_that_has_its_part_of_the_limit_and_announces_it() -> None:
    gate = gate_of(VariedLimit(limit=8, window=1e9, backends=4))
    levels = []
    admitted = 0
    for _ in range(200):
        admitted += not isinstance(gate.admit(CALL, 0.0), Refusal)
        levels += gate.levels(0.0)
    assert admitted == 8
    assert {level.limit for level in levels} == {2}
    assert {round(level.remaining) for level in levels} == {0, 1}


def test_the_number_of_slots_follows_its_schedule() -> None:
    limit = VariedLimit(kind="slots", limit=1, sizes=((10.0, 3.0), (20.0, 1.0)))
    gate = gate_of(limit)
    held = [gate.admit(CALL, 0.0)]
    assert isinstance(gate.admit(CALL, 5.0), Refusal)
    assert gate.ready_at(CALL, 5.0) == 10.0
    held += [gate.admit(CALL, 10.0), gate.admit(CALL, 10.0)]
    assert not any(isinstance(each, Refusal) for each in held)
    assert gate.levels(12.0)[0].limit == 3
    assert gate.ready_at(CALL, 12.0) == math.inf
    for ticket in held[:2]:
        assert not isinstance(ticket, Refusal)
        gate.finish(ticket, 0, 20.0)
    # One call is still in flight, and one is allowed.
    assert gate.ready_at(CALL, 21.0) == math.inf
    assert gate.levels(21.0)[0].limit == 1
