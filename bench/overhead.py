"""CPU time that tidegate adds to a call: whole SDK, bare HTTP client, unknown host, and the registry alone.

    python -m bench.overhead [--rounds 80] [--calls 50]

No OpenTelemetry SDK is in the process, but for the last row, which tells one, in memory, of every call.

The simulator runs in a process of its own, so its CPU time does not count. "Plain" is the HTTP client's own `send`,
without the class patch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any

import httpx2
import openai

import tidegate
from bench.common import PAIR_HEADER, Block, Check, Pairs, conclude, paired, spread, table
from tidegate.core.admission import Permit
from tidegate.core.vocabulary import Cost, Key, Kind, Outcome, Reading
from tidegate.registries import RateLimitRegistry
from tidegate.testing import Limit, Scenario, SimulatorProcess

MOST_ADDED_SHARE = 0.08
MOST_ADDED = 150.0
MOST_UNKNOWN_HOST = 3.0
"""Microseconds a call that is none of ours may cost."""

PLENTY = (Limit(limit=1e9), Limit(limit=1e12, unit="tokens"))
ORIGINAL_SEND = httpx2.AsyncClient.send
"""As it was before any patch."""

PROMPT = "Say in one sentence what a tide gate is for, and name one that stands in the Netherlands."
REPLY_HEADERS = {
    "content-type": "application/json",
    "x-request-id": "req_0",
    "x-ratelimit-limit-requests": "1000000",
    "x-ratelimit-limit-tokens": "1000000000",
    "x-ratelimit-remaining-requests": "999999",
    "x-ratelimit-remaining-tokens": "999999000",
    "x-ratelimit-reset-requests": "0s",
    "x-ratelimit-reset-tokens": "0s",
}
REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"It keeps the sea out."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":6,'
    b'"total_tokens":26}}'
)


def unpatched(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The client with its own class's `send`, past the patch that every client of the process meets."""
    client.send = MethodType(ORIGINAL_SEND, client)  # type: ignore[method-assign]
    return client


def sequential(call: Callable[[], Awaitable[object]]) -> Block:
    """Calls one after the other."""

    async def block(calls: int) -> None:
        for _ in range(calls):
            await call()

    return block


def concurrent(call: Callable[[], Awaitable[object]]) -> Block:
    """All calls at once."""

    async def block(calls: int) -> None:
        await asyncio.gather(*(call() for _ in range(calls)))

    return block


def chat(client: openai.AsyncOpenAI) -> Callable[[], Awaitable[object]]:
    """One short chat call."""

    async def call() -> object:
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}])

    return call


async def sdk(rounds: int, calls: int) -> dict[str, Pairs]:
    """AsyncOpenAI over loopback."""
    with SimulatorProcess(Scenario(dialect="openai", limiters=PLENTY)) as simulator:
        plain = openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="plain")
        unpatched(plain._client)
        registry = RateLimitRegistry()
        governed = registry.wrap(openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="governed"))
        for client in (plain, governed):
            for make in (sequential, concurrent):
                await make(chat(client))(200)
        found = {
            name: await paired(make(chat(plain)), make(chat(governed)), rounds=rounds, calls=calls, seed=seed)
            for seed, (name, make) in enumerate({"sequential": sequential, "concurrent": concurrent}.items())
        }
        refusals = simulator.truth().total.refusals
        await plain.close()
        await governed.close()
    if refusals:
        raise RuntimeError(f"an unlimited provider refused {refusals} calls")
    return found


async def answer(request: httpx2.Request) -> httpx2.Response:
    """The mock provider."""
    return httpx2.Response(200, headers=REPLY_HEADERS, content=REPLY)


def sending(client: httpx2.AsyncClient, url: str) -> Callable[[], Awaitable[object]]:
    """One POST through `client.send`, the building of the request included."""
    body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}

    async def call() -> object:
        return await client.send(client.build_request("POST", url, json=body, headers={"authorization": "Bearer k"}))

    return call


async def http(rounds: int, calls: int) -> Pairs:
    """A bare httpx2 client over a transport that answers from memory."""
    url = "https://api.openai.com/v1/chat/completions"
    plain = unpatched(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    governed = RateLimitRegistry().wrap(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    for client in (plain, governed):
        await sequential(sending(client, url))(300)
    return await paired(
        sequential(sending(plain, url)), sequential(sending(governed, url)), rounds=rounds, calls=calls * 3, seed=2
    )


async def told(rounds: int, calls: int) -> Pairs:
    """The same in a span of the user's, with an OpenTelemetry SDK that is told of the governed side.

    To be measured last: from its import on every new registry has a listener.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from tidegate.telemetry import instrument

    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracers.get_tracer("user")
    registry = RateLimitRegistry()
    instrument(registry, tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]))
    url = "https://api.openai.com/v1/chat/completions"
    plain = unpatched(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    governed = registry.wrap(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))

    def spanned(client: httpx2.AsyncClient) -> Block:
        send = sending(client, url)

        async def block(count: int) -> None:
            for _ in range(count):
                with tracer.start_as_current_span("user"):
                    await send()
            exporter.clear()

        return block

    for client in (plain, governed):
        await spanned(client)(300)
    return await paired(spanned(plain), spanned(governed), rounds=rounds, calls=calls * 3, seed=4)


async def unknown_host(rounds: int, calls: int) -> Pairs:
    """A call that is none of ours, with tidegate installed; `send` is stubbed, so that nothing hides the difference."""
    url = "https://example.com/v1/things"
    request = httpx2.Request("POST", url, json={"a": 1})

    class Stub(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> Any:
            return None

    bare, original = Stub(), Stub.send
    tidegate.install(RateLimitRegistry())
    stack = _stack()
    try:
        stub = Stub()

        async def plain(count: int) -> None:
            send = MethodType(original, bare)
            for _ in range(count):
                await send(request)

        stack(Stub)

        async def governed(count: int) -> None:
            for _ in range(count):
                await stub.send(request)

        return await paired(plain, governed, rounds=rounds, calls=calls * 100, seed=3)
    finally:
        tidegate.uninstall()


def _stack() -> Callable[[type], object]:
    """Puts tidegate's own patch on another class."""
    from tidegate.transports import httpx
    from tidegate.transports.patching import Patches

    stack = httpx._stacks[httpx2.Client]
    return lambda target: Patches().put(target, "send", stack.asend)


def registry_rate(seconds: float, readings: tuple[Reading, ...]) -> float:
    """`try_admit` and `settle` together, per second of CPU time."""
    registry = RateLimitRegistry()
    key = Key("openai", "https://api.openai.com", "0", "m")
    cost, outcome = Cost(tokens=100.0), Outcome(Kind.OK, readings=readings, status=200)
    began = time.process_time()
    done = 0
    while (spent := time.process_time() - began) < seconds:
        for _ in range(500):
            permit = registry.try_admit(key, cost)
            if not isinstance(permit, Permit):
                raise RuntimeError(f"an unlimited key said {permit}")
            registry.settle(permit, outcome)
        done += 500
    return done / spent


def registry_rates(repetitions: int) -> dict[str, list[float]]:
    """Without headers, and with the two quotas of OpenAI in every answer."""
    quotas = tuple(Reading(unit, unit, "continuous", 1e9, 1e9 - 1, 0.0, 60.0) for unit in ("requests", "tokens"))
    rates: dict[str, list[float]] = {"no headers": [], "two quotas": []}
    for _ in range(repetitions):
        rates["no headers"].append(registry_rate(0.2, ()))
        rates["two quotas"].append(registry_rate(0.2, quotas))
    return rates


async def measure(rounds: int, calls: int) -> tuple[dict[str, Pairs], dict[str, list[float]]]:
    """Everything, one after the other."""
    found = await sdk(rounds, calls)
    found = {f"AsyncOpenAI, {name}": pairs for name, pairs in found.items()}
    found["httpx2 send, MockTransport"] = await http(rounds, calls)
    found["unknown host, installed"] = await unknown_host(rounds, calls)
    if RateLimitRegistry().listening:
        raise RuntimeError("an OpenTelemetry SDK was loaded: these are not the figures without one")
    rates = registry_rates(7)
    found["httpx2 send, told to OpenTelemetry"] = await told(rounds, calls)
    return found, rates


def main() -> int:
    """Prints the tables; returns 1 where the acceptance is missed."""
    arguments = argparse.ArgumentParser(description="CPU time that tidegate adds to a call")
    arguments.add_argument("--rounds", type=int, default=80, help="rounds of four blocks each (default 80)")
    arguments.add_argument("--calls", type=int, default=50, help="calls of a block (default 50)")
    given = arguments.parse_args()
    pairs, rates = asyncio.run(measure(max(4, given.rounds), max(1, given.calls)))
    table("CPU per call: median [quartiles]", PAIR_HEADER, [each.row(name) for name, each in pairs.items()])
    rows = [[name, *(f"{each:,.0f}" for each in (s.low, s.median, s.high))] for name, s in _spreads(rates)]
    table("registry.try_admit + settle, per CPU second", ("", "low", "median", "high"), rows)
    checks = [Check("unknown host: us", statistics.median(pairs["unknown host, installed"].added), MOST_UNKNOWN_HOST)]
    for name, each in pairs.items():
        if name.startswith("AsyncOpenAI"):
            added = statistics.median(each.added)
            checks.append(Check(f"{name}: us", added, MOST_ADDED))
            checks.append(Check(f"{name}: %", 100 * added / statistics.median(each.plain), 100 * MOST_ADDED_SHARE))
    figures = {name: each.figures() for name, each in pairs.items()}
    return conclude("overhead", {**figures, "registry_per_second": rates}, checks)


def _spreads(rates: dict[str, list[float]]) -> list[tuple[str, Any]]:
    return [(name, spread(values)) for name, values in rates.items()]


if __name__ == "__main__":
    raise SystemExit(main())
