"""A pool takes hardly longer than the provider's limit allows, loses nothing, and holds little."""

from __future__ import annotations

import pytest

import tidegate
from tests.chaos.virtual_time import in_virtual_time
from tests.effort import some
from tests.pool.scene import VirtualProvider, per_minute

ROWS = 900


@pytest.mark.parametrize("pool_size", some([200], [10]))
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("initial", "ideal"), [(0, ROWS / 10), (None, (ROWS - 600) / 10)])
@in_virtual_time
async def test_pool_of_any_size_takes_what_the_quota_takes(
    pool_size: int, ordered: bool, initial: float | None, ideal: float
) -> None:
    changes = {} if initial is None else {"initial": initial}
    provider = VirtualProvider(per_minute(600, 0.2, **changes))
    began = provider.clock()
    results = tidegate.amap(provider.ask, range(ROWS), pool_size=pool_size, ordered=ordered, registry=provider.registry)
    given = [value async for value in results]
    assert given == list(range(ROWS)) or (not ordered and sorted(given) == list(range(ROWS)))
    assert (provider.clock() - began) / (ideal + 0.2) <= 1.03
