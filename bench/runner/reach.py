"""How near a runner at its defaults comes to what the provider and the machine allow: nothing is configured.

Over HTTP the provider is a process of its own, asked through aiohttp in the loop and requests in threads. In virtual
time the simulator's books are asked through `aexecute`, so there is no cost of a client, and nothing but the database
takes real time.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import requests

from bench.answers import Answers
from bench.families import HEADERS
from bench.runner.places import Fresh
from bench.scenarios import Row
from tests.chaos import virtual_time
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Key
from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings
from tidegate.testing import Call, Distribution, Limit, Refusal, Scenario, SimulatorProcess
from tidegate.testing.accounts import Accounts

RATE = 100.0
"""Calls a second of the quota: 6,000 a minute."""

QUOTA_LATENCY, FREE_LATENCY = 5.0, 2.0
"""Seconds that an answer takes: where the quota binds, and where nothing does."""

POOL = 1000
"""Connections of the openai SDK's client, and so calls at once of a plain one, in virtual time."""

CONNECTIONS = 200
"""Connections of the clients over HTTP without a limit: 100 calls a second leave the machine idle enough."""

BURN = 0.005
"""Seconds that a function computes which makes no call."""


@dataclass(frozen=True, slots=True)
class Reach:
    """One run, in seconds, the seconds of what it is compared with, and the most functions that were under way."""

    seconds: float
    ideal: float
    most: int

    @property
    def ratio(self) -> float:
        """How many times as long as the ideal it took."""
        return self.seconds / self.ideal


class Inside:
    """Counts who is inside of a function at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One more, for a while."""
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


def quota(latency: float = QUOTA_LATENCY, rate: float = RATE) -> Scenario:
    """A quota whose bucket is empty at first, so that its rate binds from the beginning to the end."""
    limit = Limit(limit=rate * 60, initial=0)
    return Scenario(dialect="openai", limiters=(limit,), latency=Distribution.constant(latency))


def free(latency: float = FREE_LATENCY) -> Scenario:
    """No limit."""
    return Scenario(dialect="openai", latency=Distribution.constant(latency))


async def _ran(
    database: str, rows: Any, task: Any, registry: RateLimitRegistry, settings: RunnerSettings | None = None
) -> float:
    """Seconds from the start of the run until all rows are answered and durable."""
    count = len(rows)
    async with ExperimentRunner(database, registry=registry, settings=settings, recover=False) as runner:
        clock = asyncio.get_running_loop().time
        began = clock()
        summary = await runner.run(Experiment("reach", rows, task))
        seconds = clock() - began
    if not summary.complete or summary.answered != count:
        raise RuntimeError(f"the run did not come to its end: {summary}")
    return seconds


def _asked(row: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": str(row)}]}


class _Session:
    """Clients of little cost: aiohttp in the loop, requests in threads; `connections` is 0 for any number."""

    def __init__(self, simulator: SimulatorProcess, connections: int = 0) -> None:
        self._url = f"{simulator.openai_url}/chat/completions"
        self.loop = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections))
        self.threads = requests.Session()
        self.threads.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=connections or POOL))

    async def ask(self, row: Any) -> Any:
        """One call in the loop."""
        async with self.loop.post(self._url, json=_asked(row)) as answer:
            return (await answer.json())["choices"][0]["message"]["content"]

    def ask_in_thread(self, row: Any) -> Any:
        """One call in this thread."""
        answer = self.threads.post(self._url, json=_asked(row), timeout=600)
        return answer.json()["choices"][0]["message"]["content"]

    async def close(self) -> None:
        """End both."""
        await self.loop.close()
        self.threads.close()


async def over_http(fresh: Fresh, scenario: Scenario, count: int, ideal: float | None, *, sync: bool = False) -> Reach:
    """One run over HTTP; without an `ideal`, that is what the plain client takes with `CONNECTIONS` calls at once."""
    inside = Inside()
    connections = CONNECTIONS if ideal is None else 0
    with SimulatorProcess(scenario) as simulator:
        if ideal is None:
            plain = _Session(simulator, connections)
            ideal = await (_plain_threads if sync else _plain)(plain, count)
            await plain.close()
        registry = RateLimitRegistry()
        governed = _Session(simulator, connections)
        for each in (governed.loop, governed.threads):
            registry.wrap(each)

        async def ask(row: Any) -> Any:
            with inside.counted():
                return await governed.ask(row)

        def ask_in_thread(row: Any) -> Any:
            with inside.counted():
                return governed.ask_in_thread(row)

        seconds = await _ran(fresh(), list(range(count)), ask_in_thread if sync else ask, registry)
        await governed.close()
    return Reach(seconds, ideal, inside.most)


async def _plain(session: _Session, count: int) -> float:
    began = time.monotonic()
    await asyncio.gather(*map(session.ask, range(count)))
    return time.monotonic() - began


async def _plain_threads(session: _Session, count: int) -> float:
    loop, began = asyncio.get_running_loop(), time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, session.ask_in_thread, row) for row in range(count)))
    return time.monotonic() - began


class _Refused(Exception):
    """A refusal of the simulated provider."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("status 429")
        self.status_code, self.headers = 429, headers


def in_virtual_time(
    fresh: Fresh, scenario: Scenario, count: int, ideal: float, *, pool: int = 0, governed: bool = True
) -> Reach:
    """One run in virtual time, with a client whose pool has `pool` connections (0: any number).

    Where the call is not `governed`, the runner knows nothing of it.
    """
    found: list[Reach] = []

    @virtual_time.in_virtual_time
    async def run() -> None:
        found.append(await _virtual(fresh, scenario, count, ideal, pool, governed))

    run()
    return found[0]


async def _virtual(fresh: Fresh, scenario: Scenario, count: int, ideal: float, pool: int, governed: bool) -> Reach:
    inside, numbers, clock = Inside(), itertools.count(), asyncio.get_running_loop().time
    accounts = Accounts(scenario, clock)
    row = Row(name="reach", family=HEADERS, scenario=scenario, count=count)
    answers = Answers(row, scenario, time.time)
    registry = RateLimitRegistry(clock=clock)
    key = Key("openai", "https://provider.test", "0123456789abcdef", "m")

    async def call() -> dict[str, str]:
        record = accounts.admit("key", str(next(numbers)), Call(40), stream=False)
        headers = dict(answers.headers(record))
        if isinstance(record.outcome, Refusal):
            refusal = answers.refusal(record.outcome, answers.headers(record))
            raise _Refused(dict(refusal.headers) if refusal is not None else headers)
        await asyncio.sleep(record.outcome.latency)
        accounts.end(record.outcome, "answered", 10)
        return headers

    async def ask(_row: Any) -> str:
        with inside.counted():
            if governed:
                registry.note_pool(key, answers, pool)
                await registry.aexecute(key, call, get_headers=lambda headers: headers)
            else:
                await call()
            return "Yes."

    seconds = await _ran(fresh(), list(range(count)), ask, registry)
    return Reach(seconds, ideal, inside.most)


def _burn(row: Any) -> int:
    until, turns = time.thread_time() + BURN, 0
    while time.thread_time() < until:
        turns += 1
    return turns


async def computing(fresh: Fresh, count: int) -> Reach:
    """Functions in threads that only compute, at the defaults, compared with 20 at once."""
    inside = Inside()

    def burn(row: Any) -> int:
        with inside.counted():
            return _burn(row)

    rows = list(range(count))
    twenty = await _ran(fresh(), rows, burn, RateLimitRegistry(), RunnerSettings(max_concurrency=20))
    inside.most = 0
    seconds = await _ran(fresh(), rows, burn, RateLimitRegistry())
    return Reach(seconds, twenty, inside.most)


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of so many characters: the most that were under way, and MB that the process grew by."""

    size: int
    most: int
    grown: float

    @property
    def cost(self) -> float:
        """Bytes of memory for each character under way."""
        return self.grown * 1e6 / (self.size * self.most)


async def large_rows(fresh: Fresh, size: int, count: int, latency: float = 1.0) -> Held:
    """A run whose rows have `size` characters each, over HTTP."""
    inside = Inside()
    rows: Callable[[], Iterator[str]] = lambda: (str(number) + "x" * size for number in range(count))  # noqa: E731
    with SimulatorProcess(free(latency)) as simulator:
        registry = RateLimitRegistry()
        made = registry.wrap(openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="k"))

        async def ask(row: Any) -> Any:
            with inside.counted():
                return (await made.chat.completions.create(**_asked(row))).choices[0].message.content

        before = _resident()
        async with ExperimentRunner(fresh(), registry=registry, recover=False) as runner:
            summary = await runner.run(Experiment("large", rows, ask))
        if summary.answered != count:
            raise RuntimeError(f"the run did not come to its end: {summary}")
        await made.close()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000 - before
    return Held(size, inside.most, grown)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
