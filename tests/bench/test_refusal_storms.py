"""Hidden limits at which a wrong model would ask again and again: refusals per call are bounded."""

from __future__ import annotations

import pytest

from bench import virtual
from bench.families import SILENT
from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, Scenario


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("kind", ["fixed", "rolling"])
def test_spent_window_of_a_busy_server_is_not_asked_again_and_again(kind: str, seed: int) -> None:
    """The calls of a window are spent within half a second, and each refusal takes 0.1 to 1 s."""
    scenario = Scenario(
        limiters=(Limit(kind=kind, limit=100, window=10.0),),  # type: ignore[arg-type]
        dialect="none",
        latency=Distribution.lognormal(0.25, 0.3),
        refusal_latency=Distribution.uniform(0.1, 1.0),
    )
    row = Row(name="spent-window", family=SILENT, scenario=scenario, count=300, callers=400)
    played = virtual.run(row, seed)
    assert not played.lost
    # The first round alone costs 0.3: 200 new slots a second for half a second.
    assert played.refused_share < 0.7


@pytest.mark.parametrize("seed", [1, 3, 15])
def test_slow_bucket_of_one_call_is_not_taken_for_a_slot_with_stray_refusals(seed: int) -> None:
    """A lone call has room in any number of slots: were its refusals stray, it would be sent again without end."""
    scenario = Scenario(
        limiters=(Limit(limit=85, window=60.0, burst=85 / 60),),
        dialect="none",
        latency=Distribution.lognormal(0.468, 0.24),
    )
    played = virtual.run(Row(name="slow-bucket", family=SILENT, scenario=scenario, count=123, callers=128), seed)
    assert not played.lost
    assert played.refused_share < 1.5
