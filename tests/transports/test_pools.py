"""Calls beyond a client's connection pool wait in the queue, not in the client, where a short timeout fails them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Distribution, Scenario, Simulator

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SLOW = Scenario(latency=Distribution.constant(0.1))


async def asked(module: Any, simulator: Simulator, clients: list[Any], count: int) -> list[int]:
    """The statuses of so many calls at once, over the clients in turn."""
    calls = (clients[number % len(clients)].post("/chat/completions", json=BODY) for number in range(count))
    return [answer.status_code for answer in await asyncio.gather(*calls)]


def state(registry: RateLimitRegistry) -> Any:
    (found,) = registry.snapshot().keys.values()
    return found


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize("module", [httpx, httpx2])
def test_pool_of_the_only_client_bounds_the_calls_in_flight(module: Any) -> None:
    """Without that, most of these would end in a PoolTimeout."""
    registry = RateLimitRegistry(tidegate.Settings())

    async def main(simulator: Simulator) -> None:
        limits, timeout = module.Limits(max_connections=10), module.Timeout(10.0, pool=0.25)
        async with module.AsyncClient(base_url=simulator.openai_url, limits=limits, timeout=timeout) as client:
            registry.wrap(client)
            assert await asked(module, simulator, [client], 8) == [200] * 8
            assert await asked(module, simulator, [client], 60) == [200] * 60
        assert (state(registry).pool, state(registry).limit) == (10, 10)

    with Simulator(SLOW) as simulator:
        asyncio.run(main(simulator))


@pytest.mark.constants(START_CONCURRENCY=50)
def test_several_clients_at_one_key_are_bounded_by_none_of_their_pools() -> None:
    registry = RateLimitRegistry(tidegate.Settings())

    async def main(simulator: Simulator) -> None:
        limits = httpx.Limits(max_connections=20)
        clients = [httpx.AsyncClient(base_url=simulator.openai_url, limits=limits, timeout=10.0) for _ in range(2)]
        for client in clients:
            registry.wrap(client)
        assert await asked(httpx, simulator, clients, 60) == [200] * 60
        for client in clients:
            await client.aclose()
        assert state(registry).pool is None
        (queue,) = registry._queues.values()
        assert queue.admission.bound.highest > 2 * 20

    with Simulator(SLOW) as simulator:
        asyncio.run(main(simulator))


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize(("limit", "pool"), [(12, 12), (0, None)])
def test_connector_of_an_aiohttp_session_is_known(limit: int, pool: int | None) -> None:
    registry = RateLimitRegistry(tidegate.Settings())

    async def main(simulator: Simulator) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit)) as session:
            registry.wrap(session)

            async def ask() -> int:
                async with session.post(f"{simulator.openai_url}/chat/completions", json=BODY) as answer:
                    await answer.read()
                    return answer.status

            assert await asyncio.gather(*(ask() for _ in range(40))) == [200] * 40
        assert state(registry).pool == pool

    with Simulator(SLOW) as simulator:
        asyncio.run(main(simulator))


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize("module", [httpx, httpx2])
def test_client_is_looked_at_once(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    looked: list[object] = []
    noted = registry.note_pool
    monkeypatch.setattr(registry, "note_pool", lambda *facts: (looked.append(facts[1]), noted(*facts)))

    async def main(simulator: Simulator) -> None:
        async with module.AsyncClient(base_url=simulator.openai_url) as client:
            registry.wrap(client)
            assert await asked(module, simulator, [client], 40) == [200] * 40

    with Simulator(SLOW) as simulator:
        asyncio.run(main(simulator))
    assert len(looked) == 1
