"""What the tests of every further SDK share: scenarios, registries in a hurry, and counts of both sides."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Fault, Limit, Scenario, Simulator

TIGHT = Scenario(faults=(Fault(kind="status", nth=(1, 2, 3), status=429),), headers=False)
"""Refuses the first three requests, however fast they come, and tells nothing of the time."""

ONCE = Scenario(limiters=(Limit(limit=1, window=3600.0),), retry_after="none", headers=False, scope="global")
"""Answers one call of the hour."""


def hurried() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings())


def giving_up() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_wait=0.0))


class RepeatedQuestion:
    """A question that can be asked again and again; `close` closes the client, on the loop that it was used on."""

    def __init__(self, ask: Callable[[], Any], close: Callable[[], Any]) -> None:
        self.ask = ask
        self.close = close


def together(asking: RepeatedQuestion, count: int) -> list[Any]:
    """`count` questions at once, on threads, or on one loop where `ask` is a coroutine function; failures as values.

    The client is closed at the end.
    """
    ask = asking.ask
    if inspect.iscoroutinefunction(ask):
        return asyncio.run(_gathered(asking, count))
    results: list[Any] = [None] * count

    def work(row: int) -> None:
        try:
            results[row] = ask()
        except Exception as error:
            results[row] = error

    threads = [threading.Thread(target=work, args=(row,)) for row in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asking.close()
    return results


async def _gathered(asking: RepeatedQuestion, count: int) -> list[Any]:
    results = await asyncio.gather(*(asking.ask() for _ in range(count)), return_exceptions=True)
    await asking.close()
    return results


def one(asking: RepeatedQuestion) -> Any:
    """One question: its answer or its failure."""
    (result,) = together(asking, 1)
    return result


def spend(provider: Simulator) -> None:
    """Makes the one call that is answered (`ONCE`), beside every SDK: whatever follows is refused."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    with urllib.request.urlopen(f"{provider.openai_url}/chat/completions", body) as response:
        response.read()


def refusals(provider: Simulator) -> int:
    return provider.truth().total.refusals


def tallied(registry: RateLimitRegistry, provider: Simulator) -> tuple[int, int]:
    return registry.snapshot().attempts, provider.truth().total.received


def at_rest(registry: RateLimitRegistry) -> bool:
    snapshot = registry.snapshot()
    return (snapshot.in_flight, snapshot.waiting) == (0, 0)
