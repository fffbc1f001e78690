"""What bounds the CPU time of a governed call: a call that decides nothing, and each step for the first time and again.

    python -m bench.floor [--rounds 40]

The steps of a call are repeated on the spot: what the second to sixth take less than the first is not their work but
what the processor had forgotten of them since the last call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import httpx2
import openai
import wrapt

from bench.common import PAIR_HEADER, Pairs, paired, spread, table
from bench.loopback import PLENTY, Call, chat, clients, sequential, streamed, unpatched
from tidegate.admission.call import GovernedCall
from tidegate.core.limiter_state import Permit
from tidegate.testing import Scenario, SimulatorProcess
from tidegate.transports import httpx
from tidegate.transports.call import success_outcome

AGAIN = 6
"""How often each step is made at each call."""

COUNTED = 600
"""Calls whose steps are timed."""


class Empty(httpx2.AsyncClient):
    """A client whose `send` passes the same patch and as many coroutines, and nothing is decided there."""

    @wrapt.decorator
    def patched(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: N805
        """As `Stack.asend`."""
        return _drive(wrapped, args, kwargs)

    send = patched(httpx2.AsyncClient.send)


async def _drive(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return await _send(wrapped, args, kwargs)


async def _send(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    response = await wrapped(*args, **kwargs)
    if kwargs.get("stream") and "event-stream" in response.headers.get("content-type", ""):
        response.stream = Passing(response.stream)
    else:
        await response.aread()
    return response


class Passing(httpx2.AsyncByteStream):
    """A stream that whoever wants to know of its end must put around another one; nothing is kept of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        """Closes the other one."""
        await self._stream.aclose()


async def against(
    plain: openai.AsyncOpenAI, other: openai.AsyncOpenAI, rounds: int, ask: Callable[[openai.AsyncOpenAI], Call] = chat
) -> Pairs:
    """CPU per call of two clients."""
    blocks = sequential(ask(plain)), sequential(ask(other))
    for block in blocks:
        await block(200)
    return await paired(*blocks, rounds=rounds, calls=50, seed=5)


async def steps(governed: openai.AsyncOpenAI) -> dict[str, list[list[float]]]:
    """Microseconds of three steps of a call, by how often they have been made before in it."""
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(AGAIN)])
    read, begin = httpx.HttpxModule._call, GovernedCall.try_start

    def timed(name: str, number: int, step: Callable[[], Any]) -> Any:
        began = time.perf_counter_ns()
        result = step()
        found[name][number].append((time.perf_counter_ns() - began) / 1000)
        return result

    def reading(self: Any, *given: Any) -> Any:
        return [timed("read the request, find its key", each, lambda: read(self, *given)) for each in range(AGAIN)][-1]

    def beginning(self: GovernedCall) -> Permit | None:
        for each in range(AGAIN):
            permit = timed("admit", each, lambda: begin(self))
            timed("settle", each, partial(self.registry.settle, permit, success_outcome(200)))
        return begin(self)

    call = chat(governed)
    await sequential(call)(200)
    with patch.object(httpx.HttpxModule, "_call", reading), patch.object(GovernedCall, "try_start", beginning):
        await sequential(call)(COUNTED)
    return found


async def measure(rounds: int) -> None:
    """Prints both tables."""
    with SimulatorProcess(Scenario(dialect="openai", limiters=PLENTY)) as simulator:
        plain, governed = clients(simulator)
        again, _ = clients(simulator)
        empty = openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="empty", http_client=Empty(timeout=60))
        bare = httpx2.AsyncClient(timeout=60)
        fair = openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="fair", http_client=unpatched(bare))
        rows = {
            "plain again": await against(plain, again, rounds),
            "nothing decided": await against(fair, empty, rounds),
            "governed": await against(plain, governed, rounds),
            "a stream, plain again": await against(plain, again, rounds, streamed),
            "a stream, nothing decided": await against(fair, empty, rounds, streamed),
            "a stream, governed": await against(plain, governed, rounds, streamed),
        }
        found = await steps(governed)
    table("CPU per call, one at a time", PAIR_HEADER, [pairs.row(name) for name, pairs in rows.items()])
    cells = [[name, *(str(spread(each[number])) for number in (0, 1, AGAIN - 1))] for name, each in found.items()]
    table("us of a step within a call", ("", "first time", "second", f"{AGAIN}th"), cells)
    total = [sum(statistics.median(each[number]) for each in found.values()) for number in (0, AGAIN - 1)]
    print(f"\nAll three: {total[0]:.1f} us for the first time, {total[1]:.1f} us for the {AGAIN}th")


def main() -> None:
    """Prints what is measured; nothing is accepted or missed here."""
    arguments = argparse.ArgumentParser(description="what bounds the CPU time of a governed call")
    arguments.add_argument("--rounds", type=int, default=40, help="rounds of four blocks each (default 40)")
    asyncio.run(measure(max(8, arguments.parse_args().rounds)))


if __name__ == "__main__":
    main()
