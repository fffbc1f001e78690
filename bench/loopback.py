"""AsyncOpenAI over loopback, plain and governed: CPU per call in several shapes, and the wall time of an unlimited run.

The simulator runs in a process of its own, so its CPU time does not count. "Plain" is the HTTP client's own `send`,
without the class patch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import MethodType

import httpx2
import openai

from bench.common import Block, Pairs, paired
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

PLENTY = (Limit(limit=1e9), Limit(limit=1e12, unit="tokens"))
ORIGINAL_SEND = httpx2.AsyncClient.send
"""As it was before any patch."""

PROMPT = "Say in one sentence what a tide gate is for, and name one that stands in the Netherlands."
AT_ONCE = 32
LATENCY = 0.1
CALLS = 1000

Call = Callable[[], Awaitable[object]]


def unpatched(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The client with its own class's `send`, past the patch that every client of the process meets."""
    client.send = MethodType(ORIGINAL_SEND, client)  # type: ignore[method-assign]
    return client


def sequential(call: Call) -> Block:
    """Calls one after the other."""

    async def block(calls: int) -> None:
        for _ in range(calls):
            await call()

    return block


def concurrent(call: Call) -> Block:
    """`AT_ONCE` callers at once, each taking the next call when it is free."""

    async def block(calls: int) -> None:
        left = iter(range(calls))

        async def caller() -> None:
            for _ in left:
                await call()

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))

    return block


def chat(client: openai.AsyncOpenAI) -> Call:
    """One short chat call."""

    async def call() -> object:
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}])

    return call


def streamed(client: openai.AsyncOpenAI) -> Call:
    """The same as a stream, read to its end."""

    async def call() -> object:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": PROMPT}], stream=True
        )
        return [chunk async for chunk in stream]

    return call


ROWS = {
    "sequential": (sequential, chat, 1),
    f"{AT_ONCE} at once": (concurrent, chat, 1),
    "stream": (sequential, streamed, 2),
}
"""How the calls of a row follow each other, what each is, and of how many rounds this row gets one."""


def clients(simulator: SimulatorProcess) -> tuple[openai.AsyncOpenAI, openai.AsyncOpenAI]:
    """A plain and a governed one."""
    plain = openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="plain")
    unpatched(plain._client)
    return plain, RateLimitRegistry().wrap(openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="governed"))


async def cpu(rounds: int, calls: int) -> dict[str, Pairs]:
    """CPU per call, with the headers of an ample quota in each answer."""
    found: dict[str, Pairs] = {}
    with SimulatorProcess(Scenario(dialect="openai", limiters=PLENTY)) as simulator:
        plain, governed = clients(simulator)
        for seed, (name, (shape, kind, share)) in enumerate(ROWS.items()):
            for client in (plain, governed):
                await shape(kind(client))(200 // share)
            blocks = shape(kind(plain)), shape(kind(governed))
            found[name] = await paired(*blocks, rounds=rounds // share, calls=calls, seed=seed)
        refusals = simulator.truth().total.refusals
        await plain.close()
        await governed.close()
    if refusals:
        raise RuntimeError(f"an unlimited provider refused {refusals} calls")
    return found


async def wall(repetitions: int) -> list[float]:
    """Wall time of `CALLS` governed calls over that of plain ones, at a provider without limits or headers.

    `AT_ONCE` callers meet a latency of `LATENCY` seconds; each governed run has a registry that knows nothing yet.
    """
    found = []
    scenario = Scenario(dialect="none", latency=Distribution.constant(LATENCY))
    with SimulatorProcess(scenario) as simulator:
        for _ in range(repetitions):
            spent = []
            for client in clients(simulator):
                await asyncio.gather(*(chat(client)() for _ in range(2)))
                began = time.perf_counter()
                await concurrent(chat(client))(CALLS)
                spent.append(time.perf_counter() - began)
                await client.close()
            found.append(spent[1] / spent[0])
    return found
