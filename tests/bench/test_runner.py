"""The benchmark of the runner measures what it says: every way of it, on few rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bench.runner import advisor, reach
from bench.runner.places import Fresh, sqlite


@pytest.fixture
def fresh() -> Iterator[Fresh]:
    with sqlite() as made:
        yield made


def test_two_on_one_key_and_one_beside_a_throttled_one_are_run_to_their_end(fresh: Fresh) -> None:
    found = asyncio.run(advisor.sharing(fresh, 160, rates=(400.0, 20.0)))
    assert min(found.alone, found.beside, found.judged) > 0.0
    assert found.slow_rate > 0.0
    assert 0 <= found.apart <= 100


def test_a_run_over_http_is_compared_with_the_plain_client(fresh: Fresh) -> None:
    for sync in (False, True):
        found = asyncio.run(reach.over_http(fresh, reach.free(0.05), 60, None, sync=sync))
        assert found.ratio > 0.0
        assert 1 <= found.most <= 60


def test_functions_that_compute_and_large_rows_are_run_to_their_end(fresh: Fresh) -> None:
    assert asyncio.run(reach.computing(fresh, 20)).most <= 20
    assert asyncio.run(reach.large_rows(fresh, 50_000, 10, latency=0.05)).most >= 1
