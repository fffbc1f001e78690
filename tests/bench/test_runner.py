"""The benchmark of the runner measures what it says: every way of it, on few rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.runner import advisor, live, million, reach, speed
from bench.runner.places import Fresh, sqlite


@pytest.fixture
def fresh() -> Iterator[Fresh]:
    with sqlite() as made:
        yield made


@pytest.mark.parametrize("way", speed.WAYS)
def test_each_way_counts_its_durable_results(fresh: Fresh, way: str) -> None:
    rate = asyncio.run(speed.run(fresh, way, 60))
    assert rate.results == (120 if "evaluator" in way else 60)
    assert rate.wall > 0.0


def test_the_cost_of_a_dispatch_is_part_of_the_cost_of_a_result(fresh: Fresh) -> None:
    cost = asyncio.run(live.cost(fresh, 4, 400))
    assert 0.0 < cost.dispatch < cost.result


def test_a_long_run_says_when_it_begins_and_how_it_ends(fresh: Fresh, tmp_path: Path) -> None:
    dataset, database = tmp_path / "rows.jsonl", fresh()
    million.write_dataset(dataset, 300)
    part = million.run(database, dataset)
    assert part.ended == "COMPLETED 300"
    assert 0.0 < part.first < part.seconds
    assert million.run(database, dataset).ended == "COMPLETED 300"


def test_two_on_one_key_and_one_beside_a_throttled_one_are_run_to_their_end(fresh: Fresh) -> None:
    found = asyncio.run(advisor.sharing(fresh, 160, rates=(400.0, 20.0)))
    assert min(found.alone, found.beside, found.judged) > 0.0
    assert found.slow_rate > 0.0
    assert 0 <= found.apart <= 100


def test_a_run_in_virtual_time_takes_what_its_waits_take(fresh: Fresh) -> None:
    found = reach.in_virtual_time(fresh, reach.quota(), 600, 600 / reach.RATE + reach.QUOTA_LATENCY)
    assert 1.0 <= found.ratio <= 1.05
    assert 400 <= found.most <= 520


def test_a_pool_bounds_what_runs_at_once_in_virtual_time(fresh: Fresh) -> None:
    found = reach.in_virtual_time(fresh, reach.free(), 300, 12.0, pool=50)
    assert found.most <= 50 + 20
    assert found.seconds >= 12.0


def test_a_run_over_http_is_compared_with_the_plain_client(fresh: Fresh) -> None:
    for sync in (False, True):
        found = asyncio.run(reach.over_http(fresh, reach.free(0.05), 60, None, sync=sync))
        assert found.ratio > 0.0
        assert 1 <= found.most <= 60


def test_functions_that_compute_and_large_rows_are_run_to_their_end(fresh: Fresh) -> None:
    assert asyncio.run(reach.computing(fresh, 20)).most <= 20
    assert asyncio.run(reach.large_rows(fresh, 50_000, 10, latency=0.05)).most >= 1
