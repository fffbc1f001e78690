"""A provider in virtual time, whose books are the simulator's, and functions that ask it."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import tidegate
from bench.answers import Answers
from bench.families import HEADERS
from bench.scenarios import Row
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Call, Distribution, Limit, Refusal, Scenario
from tidegate.testing.accounts import Accounts


class Answered429(Exception):
    """A refusal of the provider, as a client raises it."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("status 429")
        self.status_code, self.headers = 429, headers


def per_minute(limit: float, latency: float, **changes: Any) -> Scenario:
    """A quota of so many requests a minute, and the seconds of an answer."""
    given = Limit(limit=limit, **changes)
    return Scenario(dialect="openai", limiters=(given,), latency=Distribution.constant(latency))


class VirtualProvider:
    """A provider at one key; `asked` counts its attempts, `answered` those that it answered."""

    def __init__(self, scenario: Scenario, name: str = "m", registry: RateLimitRegistry | None = None) -> None:
        self.clock = asyncio.get_running_loop().time
        self.registry = registry if registry is not None else registry_of()
        self.key = tidegate.Key("openai", "https://provider.test", "0123456789abcdef", name)
        self.asked = self.answered = 0
        self._accounts = Accounts(scenario, self.clock)
        self._answers = Answers(Row(name="pool", family=HEADERS, scenario=scenario, count=1), scenario, time.time)
        self._numbers = itertools.count()

    async def ask(self, row: Any) -> Any:
        await self.registry.aexecute(self.key, self._attempt, get_headers=lambda headers: headers)
        return row

    async def _attempt(self) -> dict[str, str]:
        self.asked += 1
        record = self._accounts.admit("key", str(next(self._numbers)), Call(40), stream=False)
        headers = self._answers.headers(record)
        if isinstance(record.outcome, Refusal):
            refusal = self._answers.refusal(record.outcome, headers)
            raise Answered429(dict(refusal.headers) if refusal is not None else {})
        await asyncio.sleep(record.outcome.latency)
        self._accounts.end(record.outcome, "answered", 10)
        self.answered += 1
        return dict(headers)


def registry_of(**changes: Any) -> RateLimitRegistry:
    clock = asyncio.get_running_loop().time
    return RateLimitRegistry(tidegate.Settings(telemetry=False, **changes), clock=clock, draw=lambda: 0.5)
