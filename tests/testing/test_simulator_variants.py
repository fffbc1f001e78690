"""Limits that note refused attempts, have several backends, or change their number, and refusals that come late."""

from __future__ import annotations

import math

import httpx
import pytest

from tidegate.testing import Call, Distribution, Gate, Limit, Refusal, Scenario, Simulator, VirtualClock, ideal_schedule
from tidegate.testing.accounts import Accounts
from tidegate.testing.dialects import told

CALL = Call(10)


def gate_of(limit: Limit, seed: int = 0) -> Gate:
    return Scenario(limiters=(limit,), seed=seed).gate()


def refused(gate: Gate, at: float) -> float | None:
    """Return the seconds that the refusal of a call at `at` states; None if it was admitted."""
    outcome = gate.admit(CALL, at)
    if not isinstance(outcome, Refusal):
        return None
    assert outcome.retry_after is not None
    return outcome.retry_after


def test_a_window_that_blocks_refuses_for_its_time_from_the_first_refusal_on() -> None:
    gate = gate_of(Limit(kind="fixed", limit=2, window=10.0, block=15.0))
    assert [refused(gate, at) for at in (1.0, 2.0, 3.0, 10.0, 17.0)] == [None, None, 15.0, 8.0, 1.0]
    # The next window begins at the end of the block.
    assert [refused(gate, at) for at in (18.0, 27.0)] == [None, None]
    assert refused(gate, 28.0) is None


def test_a_block_lasts_at_least_until_the_boundary() -> None:
    gate = gate_of(Limit(kind="fixed", limit=1, window=10.0, block=2.0))
    assert [refused(gate, at) for at in (1.0, 3.0, 10.0)] == [None, 7.0, None]


def test_a_window_without_a_block_and_one_that_is_not_exceeded_refuse_nothing_after_their_boundary() -> None:
    for block in (0.0, 30.0):
        gate = gate_of(Limit(kind="fixed", limit=1, window=10.0, block=block))
        assert [refused(gate, at) for at in (1.0, 10.0, 20.0)] == [None, None, None]


def test_a_call_that_never_fits_blocks_nothing() -> None:
    gate = gate_of(Limit(kind="fixed", limit=20, window=10.0, unit="tokens", block=15.0))
    outcome = gate.admit(Call(30), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.name == "too_large"
    assert refused(gate, 1.0) is None


def test_a_rolling_window_may_count_refused_attempts() -> None:
    gate = gate_of(Limit(kind="rolling", limit=2, window=10.0, counts_refused=True))
    assert [refused(gate, at) for at in (0.0, 1.0)] == [None, None]
    assert refused(gate, 9.0) == pytest.approx(2.0)
    # Without the attempt at 9 s there is room from 10 s on.
    assert refused(gate, 10.5) == pytest.approx(8.5)
    assert refused(gate, 20.5) is None


def test_each_attempt_meets_a_backend_that_has_its_part_of_the_limit_and_announces_it() -> None:
    gate = gate_of(Limit(limit=8, window=1e9, backends=4))
    levels = []
    admitted = 0
    for _ in range(200):
        admitted += not isinstance(gate.admit(CALL, 0.0), Refusal)
        levels += gate.levels(0.0)
    assert admitted == 8
    assert {level.limit for level in levels} == {2}
    assert {round(level.remaining) for level in levels} == {0, 1}


def test_backends_are_drawn_by_the_seed() -> None:
    def outcomes(seed: int) -> list[bool]:
        gate = gate_of(Limit(kind="fixed", limit=8, window=100.0, backends=4), seed)
        return [refused(gate, 0.0) is None for _ in range(12)]

    assert outcomes(1) == outcomes(1)
    assert len({tuple(outcomes(seed)) for seed in range(8)}) > 1


def test_an_oracle_meets_the_backend_that_has_room() -> None:
    scenario = Scenario(limiters=(Limit(limit=8, window=8.0, backends=4),))
    # Each backend has two calls, and another one every four seconds.
    instants = ideal_schedule(scenario, [CALL] * 16).admitted_at
    assert instants == pytest.approx([0.0] * 8 + [4.0] * 4 + [8.0] * 4)


def test_the_number_of_slots_follows_its_schedule() -> None:
    limit = Limit(kind="slots", limit=1, sizes=((10.0, 3.0), (20.0, 1.0)))
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


def test_the_oracle_makes_no_attempt_that_would_count() -> None:
    latency = Distribution.constant(1.0)
    for limit in (
        Limit(kind="rolling", limit=2, window=10.0, counts_refused=True),
        Limit(kind="fixed", limit=2, window=10.0, block=30.0),
    ):
        scenario = Scenario(limiters=(limit,), latency=latency)
        assert ideal_schedule(scenario, [CALL] * 5).admitted_at == pytest.approx((0.0, 0.0, 10.0, 10.0, 20.0))


def test_the_oracle_sends_no_call_before_its_arrival() -> None:
    scenario = Scenario(limiters=(Limit(limit=2, window=10.0),))
    arrivals = (0.0, 0.0, 0.0, 30.0, 30.0, 30.0)
    assert ideal_schedule(scenario, [CALL] * 6, arrivals=arrivals).admitted_at == pytest.approx(
        (0.0, 0.0, 5.0, 30.0, 30.0, 35.0)
    )


def test_late_refusals_change_nothing_that_is_drawn_for_admitted_calls() -> None:
    def latencies(late: Distribution) -> list[float]:
        clock = VirtualClock()
        scenario = Scenario(
            limiters=(Limit(limit=1, window=1.0),), latency=Distribution.lognormal(1.0, 0.5), refusal_latency=late
        )
        accounts = Accounts(scenario, clock)
        found = []
        for _ in range(5):
            clock.advance(1.0)
            for _ in range(3):
                verdict = accounts.admit("key", "", CALL, stream=False)
                if isinstance(verdict.outcome, Refusal):
                    assert late.a <= verdict.delay <= max(late.a, late.b)
                else:
                    found.append(verdict.outcome.latency)
        return found

    assert latencies(Distribution.uniform(10.0, 20.0)) == latencies(Distribution.constant(0.0))


def test_a_refusal_over_http_comes_after_its_latency_and_a_client_may_leave_before() -> None:
    scenario = Scenario(
        limiters=(Limit(limit=1, window=600.0),), refusal_latency=Distribution.constant(0.05), retry_after="minute"
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with Simulator(scenario) as provider:
        url = f"{provider.openai_url}/chat/completions"
        assert httpx.post(url, json=body).status_code == 200
        refusal = httpx.post(url, json=body)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "60")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=0.01)
        assert httpx.post(url, json=body).status_code == 429


def test_a_retry_after_of_a_minute_is_the_same_in_every_refusal() -> None:
    assert told("minute", 0.5) == told("minute", 500.0) == 60.0
    assert told("minute", None) is None
