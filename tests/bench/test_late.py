"""An event loop that is late: it loses the time for which it does not run, and concludes nothing from it."""

from __future__ import annotations

import statistics

import pytest

from bench import virtual
from bench.families import HEADERS
from bench.scenarios import Row, row_named
from bench.world import LateLoop
from tests.effort import some
from tidegate.testing import Distribution, Limit, Scenario

SEED = 1

MOST_SLOWER = 1.10
"""The makespan on a busy machine over that on a quiet one, at most; the median of three seeds."""

CHANGING = {"silent-changing": (1.25, 1.10)}
"""The same, late and with stalls, where a hidden rate changes: a late refusal leaves less time for the new rate."""


@pytest.mark.parametrize(
    "name",
    some(
        ["request-bound", "fixed-short-windows", "silent-changing", "unlimited"],
        ["token-bound", "streams", "limit-that-does-not-bind", "silent-steady", "silent-tokens"],
    ),
)
def test_late_event_loop_costs_little_more_than_its_own_time(name: str) -> None:
    row = row_named(name)
    slower = []
    for seed in range(3):
        quiet, late = virtual.run(row, seed), virtual.run_late(row, seed)
        assert late.lost == 0
        slower.append(late.makespan / quiet.makespan)
    assert statistics.median(slower) <= CHANGING.get(name, (MOST_SLOWER, 0.0))[0]


@pytest.mark.parametrize("late", [0.005, 0.02, 0.05])
def test_late_event_loop_lets_the_first_calls_meet_no_more_refusals(late: float) -> None:
    """What delays the loop delays the first refusal too, so slow start does not catch up before it."""
    announced = Scenario(limiters=(Limit(limit=120, burst=10),), latency=Distribution.constant(0.2))
    row = Row(name="at-once", family=HEADERS, scenario=announced, count=40)
    quiet = virtual.run(row, SEED)
    assert virtual.run(row, SEED, loop=LateLoop(SEED, late=late)).refused <= quiet.refused <= 3


@pytest.mark.parametrize("name", ["silent-steady", "silent-changing", "limit-that-does-not-bind"])
def test_stalls_of_the_event_loop_cost_a_hidden_rate_little(name: str) -> None:
    """The provider keeps what is not used meanwhile, and it is used afterwards."""
    row = row_named(name)
    quiet = virtual.run(row, SEED)
    stalled = virtual.run(row, SEED, loop=LateLoop(SEED, share=0.05))
    assert stalled.makespan <= CHANGING.get(name, (0.0, 1.04))[1] * quiet.makespan
    assert stalled.refused_share <= quiet.refused_share + 0.02


@pytest.mark.parametrize("seed", [0, 4])
def test_stalls_of_the_event_loop_close_no_breaker_in_an_outage(seed: int) -> None:
    """A timer is handled before the answer to the probe that came while the loop did not run."""
    row = row_named("outage-500")
    stalled = virtual.run(row, seed, loop=LateLoop(seed, share=0.5, late=0.05 * bool(seed)))
    assert stalled.lost == 0
    assert stalled.hits <= 60
