"""Refusals that come late."""

from __future__ import annotations

from tidegate.testing import Call, Distribution, Limit, Refusal, Scenario, VirtualClock
from tidegate.testing.accounts import Accounts

CALL = Call(10)


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
