"""Limits as web servers and libraries ship them, in virtual time: no header, bare refusals, all calls at once."""

from __future__ import annotations

import statistics
from typing import Literal

import pytest

from bench import virtual
from bench.families import SILENT
from bench.limits import VariedLimit
from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, OutageSpan, Scenario

LATENCY = Distribution.lognormal(0.25, 0.3)


CLIENT_WORK = 0.002
"""Seconds that a client's event loop takes for a request, and for an answer. Measured: an OpenAI client alone on a core
plays 250 requests a second."""


def played(limit: Limit, calls: int, seed: int, work: float = 0.0) -> virtual.Run:
    scenario = Scenario(limiters=(limit,), dialect="none", retry_after="none", latency=LATENCY)
    return virtual.run(Row(name="common", family=SILENT, scenario=scenario, count=calls, client_work=work), seed)


def test_refusals_that_a_busy_client_reads_late_send_no_more_calls() -> None:
    """Each refusal that is read frees a slot for another call, so without a hold .33 of them are refused."""
    run = played(Limit(kind="fixed", limit=100, window=10.0), 300, 1, CLIENT_WORK)
    assert run.lost == 0
    assert run.ratio < 1.1
    assert run.refused_share < 0.2


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_refusals_of_a_spent_window_are_waited_for(seed: int) -> None:
    scenario = Scenario(
        limiters=(Limit(kind="fixed", limit=100, window=10.0),),
        dialect="none",
        latency=LATENCY,
        refusal_latency=Distribution.uniform(0.1, 1.0),
    )
    run = virtual.run(Row(name="common", family=SILENT, scenario=scenario, count=300, callers=400), seed)
    assert run.lost == 0
    assert run.refused_share < 0.4


@pytest.mark.parametrize("seed", [1, 6])
def test_windows_of_ten_calls_a_second_are_found(seed: int) -> None:
    run = played(Limit(kind="fixed", limit=10, window=1.0), 200, seed)
    assert run.lost == 0
    assert run.ratio < 1.05


@pytest.mark.parametrize(
    ("kind", "size", "ratio"), [("fixed", 30, 1.3), ("fixed", 50, 1.3), ("fixed", 100, 1.3), ("rolling", 50, 1.2)]
)
def test_windows_of_a_second_with_many_calls_are_found(
    kind: Literal["fixed", "rolling"], size: int, ratio: float
) -> None:
    runs = [played(Limit(kind=kind, limit=size, window=1.0), 10 * size, seed) for seed in (1, 2, 3)]
    assert sum(run.lost for run in runs) == 0
    assert statistics.median(run.ratio for run in runs) < ratio


@pytest.mark.parametrize("seed", [1, 4])
def test_refused_calls_that_count_against_a_moving_window_come_back_a_period_later(seed: int) -> None:
    run = played(VariedLimit(kind="rolling", limit=100, window=10.0, counts_refused=True), 250, seed)
    assert run.lost == 0
    assert run.ratio < 1.15


@pytest.mark.parametrize("work", [0.0, CLIENT_WORK])
def test_a_block_after_refusals_is_told_from_the_period_of_the_window(work: float) -> None:
    """Windows of 5 s, and 10 s without any call after a refusal: 2.1 where the block is taken for the period."""
    run = played(VariedLimit(kind="fixed", limit=50, window=5.0, block=10.0), 220, 1, work)
    assert run.lost == 0
    assert run.ratio < 1.7


def test_the_end_of_a_window_is_looked_for_where_natural_windows_end() -> None:
    offsets = {seed: round(seed * 0.618 % 1.0 * 10.0, 3) for seed in range(1, 6)}
    runs = [
        played(Limit(kind="fixed", limit=100, window=10.0, offset=offset), 300, seed)
        for seed, offset in offsets.items()
    ]
    assert sum(run.lost for run in runs) == 0
    assert statistics.median(run.ratio for run in runs) < 1.15


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_calls_that_overtook_the_first_refused_one_belong_to_its_window(seed: int) -> None:
    """A window of 100 calls that counts as 97 leaves a few of 300 calls for a fourth one."""
    run = played(Limit(kind="rolling", limit=100, window=10.0), 300, seed)
    assert run.lost == 0
    assert run.ratio < 1.35


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


def test_bucket_of_one_call_is_used_near_its_rate_by_a_busy_client() -> None:
    """Calls arrive a moment early or late: 1.33 of the ideal where each refused hold halves the pace."""
    runs = [played(Limit(limit=20, window=1.0, burst=1, status=503), 300, seed, CLIENT_WORK) for seed in range(6)]
    assert statistics.mean(run.ratio for run in runs) < 1.25
    assert statistics.mean(run.refused_share for run in runs) < 0.07


def growing(least: int, window: float, growth: float, calls: int, seed: int) -> virtual.Run:
    """Play a limit on growth that no refusal names: a window admits `growth` times the calls of the one before."""
    limit = Limit(kind="slope", limit=least, window=window, growth=growth)
    scenario = Scenario(limiters=(limit,), dialect="none", retry_after="none", latency=LATENCY)
    return virtual.run(Row(name="common", family=SILENT, scenario=scenario, count=calls), seed)


def test_a_limit_on_growth_that_looks_like_a_rate_holds_no_key_back_for_good() -> None:
    """Each quick rise is refused at the same pace: with nothing else, 3,000 calls take 50 times the ideal."""
    run = growing(5, 1.0, 1.72, 3000, 1)
    assert run.lost == 0
    assert run.ratio < 20


def test_a_limit_on_growth_that_looks_like_a_window_holds_no_key_back_for_good() -> None:
    """The second window admits more calls than the first one: 3.8 to 4.3 of the ideal where that shows no growth."""
    for least, window, growth, calls, seed in ((6, 3.11, 1.71, 229, 3), (7, 2.09, 1.57, 254, 11)):
        run = growing(least, window, growth, calls, seed)
        assert run.lost == 0
        assert run.ratio < 2.5


def test_an_outage_does_not_change_the_period_of_a_window() -> None:
    """The first window after the outage begins late, which says nothing of the period: 2.03 of the ideal without it."""
    scenario = Scenario(
        limiters=(Limit(kind="rolling", limit=10, window=2.0),),
        dialect="none",
        retry_after="none",
        latency=LATENCY,
        outages=(OutageSpan(start=20.5, end=32.0),),
    )
    run = virtual.run(Row(name="common", family=SILENT, scenario=scenario, count=400), 0)
    assert run.lost == 0
    assert run.ratio < 1.7
