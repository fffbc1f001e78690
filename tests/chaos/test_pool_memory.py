"""A pool holds its window, however many rows its source has."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

import tidegate
from tidegate.admission.registry import RateLimitRegistry

ROWS = 1_000_000
MOST_GROWTH = 1_000_000
"""Bytes by which a pool may grow between a tenth of its rows and all of them: about a byte a row."""


@pytest.mark.chaos
@pytest.mark.parametrize("ordered", [True, False])
def test_memory_is_flat_over_a_million_rows(ordered: bool) -> None:
    def source() -> Iterator[tuple[int, str]]:
        for row in range(ROWS):
            yield row, "x" * 1000

    async def fn(row: tuple[int, str]) -> int:
        if row[0] % 16 == 0:
            await asyncio.sleep(0)
        return row[0]

    async def run() -> int:
        given = before = 0
        registry = RateLimitRegistry(tidegate.Settings(telemetry=False))
        async for value in tidegate.amap(fn, source(), ordered=ordered, registry=registry):
            assert value == given or not ordered
            given += 1
            if given == ROWS // 10:
                before = resident()
        assert given == ROWS
        return resident() - before

    assert asyncio.run(run()) < MOST_GROWTH


def resident() -> int:
    """Bytes of Python objects, as the collector counts them after it has run."""
    gc.collect()
    return sum(map(sys.getsizeof, gc.get_objects()))
