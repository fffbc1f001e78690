"""Limits as web servers and libraries ship them, in virtual time: no header, bare refusals, all calls at once."""

from __future__ import annotations

import pytest

from bench import virtual
from bench.families import SILENT
from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, Scenario

LATENCY = Distribution.lognormal(0.25, 0.3)


def played(limit: Limit, calls: int, seed: int) -> virtual.Run:
    scenario = Scenario(limiters=(limit,), dialect="none", retry_after="none", latency=LATENCY)
    return virtual.run(Row(name="common", family=SILENT, scenario=scenario, count=calls), seed)


@pytest.mark.parametrize("seed", [2, 6, 8])
def test_a_window_that_begins_at_the_first_call_is_met_at_its_natural_end(seed: int) -> None:
    run = played(Limit(kind="fixed", limit=100, window=10.0), 300, seed)
    assert run.lost == 0
    assert run.ratio < 1.05
    assert run.refused_share < 0.15


def test_a_rate_that_late_messages_showed_too_high_is_given_up() -> None:
    """A bucket of one call admits two calls a little too close, where the second one travels longer."""
    run = played(Limit(limit=20, window=1.0, burst=1, status=503), 300, 5)
    assert run.lost == 0
    assert run.ratio < 1.3
    assert run.refused_share < 0.15
