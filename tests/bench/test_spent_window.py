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
