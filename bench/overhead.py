"""CPU time that tidegate adds to a call: whole SDK, bare HTTP client, unknown host, and the registry alone.

    python -m bench.overhead [--rounds 80] [--calls 50]

No OpenTelemetry SDK is in the process, but for the last row, which tells one, in memory, of every call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any

import httpx2

import tidegate
from bench import loopback, rates
from bench.common import PAIR_HEADER, Block, Check, Pairs, conclude, paired, spread, table
from bench.loopback import PROMPT, sequential, unpatched
from tidegate.admission.registry import RateLimitRegistry

MOST_ADDED_SHARE = 0.04
MOST_ADDED = 80.0
MOST_UNKNOWN_HOST = 3.0
"""Microseconds a call that is none of ours may cost."""

LEAST_RATE = 150_000.0
MOST_WALL = 1.05
MOST_ALONE = 5.0
"""Microseconds a call that sharing may cost a process that is alone at its key."""

MOST_SHARED, MOST_FOREIGN = 40.0, 30.0
"""Microseconds that a call may cost more where other processes have the key, and that a call of another one costs."""

MOST_GROWTH = 1.25
"""What an admission may cost with 1,000 waiting, times what it does with 10."""

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
    from tidegate.transports.patches import Patches

    stack = httpx._stacks[httpx2.Client]
    return lambda target: Patches().put(target, "send", stack.asend)


async def measure(rounds: int, calls: int) -> tuple[dict[str, Pairs], list[float]]:
    """CPU of everything that answers, one after the other, and the wall time of an unlimited run."""
    found = {f"AsyncOpenAI, {name}": pairs for name, pairs in (await loopback.cpu(rounds, calls)).items()}
    wall = await loopback.wall(3)
    found["httpx2 send, MockTransport"] = await http(rounds, calls)
    found["unknown host, installed"] = await unknown_host(rounds, calls)
    if RateLimitRegistry().listening:
        raise RuntimeError("an OpenTelemetry SDK was loaded: these are not the figures without one")
    found["httpx2 send, told to OpenTelemetry"] = await told(rounds // 2, calls)
    return found, wall


def judged(
    pairs: dict[str, Pairs],
    by_row: dict[str, list[float]],
    by_depth: dict[int, list[float]],
    wall: list[float],
    alone: list[float],
    shared: tuple[list[float], list[float]],
) -> list[Check]:
    """What is asked."""
    own, foreign = map(statistics.median, shared)
    checks = [
        Check("sharing, alone at the key: us", statistics.median(alone), MOST_ALONE),
        Check("sharing, own call: us", own, MOST_SHARED),
        Check("sharing, call of another process: us", foreign, MOST_FOREIGN),
    ]
    checks += [Check("unknown host: us", statistics.median(pairs["unknown host, installed"].added), MOST_UNKNOWN_HOST)]
    for name, each in pairs.items():
        if name.startswith("AsyncOpenAI"):
            added = statistics.median(each.added)
            checks.append(Check(f"{name}: us", added, MOST_ADDED))
            checks.append(Check(f"{name}: %", 100 * added / statistics.median(each.plain), 100 * MOST_ADDED_SHARE))
    checks.append(
        Check(f"unlimited, {loopback.AT_ONCE} at once: wall, times plain", statistics.median(wall), MOST_WALL)
    )
    for name in ("no headers", "two quotas"):
        checks.append(Check(f"try_admit + settle a second, {name}", statistics.median(by_row[name]), LEAST_RATE, True))
    few, many = (statistics.median(figures) for figures in by_depth.values())
    return [*checks, Check("admission, 1,000 waiting: times that with 10", many / few, MOST_GROWTH)]


def main() -> int:
    """Prints the tables; returns 1 where the acceptance is missed."""
    arguments = argparse.ArgumentParser(description="CPU time that tidegate adds to a call")
    arguments.add_argument("--rounds", type=int, default=80, help="rounds of four blocks each (default 80)")
    arguments.add_argument("--calls", type=int, default=50, help="calls of a block (default 50)")
    given = arguments.parse_args()
    by_row, by_depth, alone = rates.rates(7), rates.admissions(7), rates.alone(80)
    shared = rates.shared(80)
    pairs, wall = asyncio.run(measure(max(8, given.rounds), max(1, given.calls)))
    table("CPU per call: median [quartiles]", PAIR_HEADER, [each.row(name) for name, each in pairs.items()])
    rows = [[name, *(f"{each:,.0f}" for each in (s.low, s.median, s.high))] for name, s in _spreads(by_row)]
    table("registry.try_admit + settle, per CPU second", ("", "low", "median", "high"), rows)
    rows = [[f"{waiting:,} waiting", str(spread(figures))] for waiting, figures in by_depth.items()]
    table("CPU us an admission from the line", ("", "median [quartiles]"), rows)
    names = ("alone at the key", "own call, two processes", "call of another process")
    rows = [[name, str(spread(each))] for name, each in zip(names, (alone, *shared), strict=True)]
    table("CPU us a call that sharing adds", ("", "median [quartiles]"), rows)
    checks = judged(pairs, by_row, by_depth, wall, alone, shared)
    figures: dict[str, object] = {name: each.figures() for name, each in pairs.items()}
    figures |= {
        "us_of_sharing_alone": alone,
        "us_of_sharing_own": shared[0],
        "us_of_sharing_foreign": shared[1],
        "registry_per_second": by_row,
        "us_an_admission": by_depth,
        "wall_times_plain": wall,
    }
    return conclude("overhead", figures, checks)


def _spreads(rates: dict[str, list[float]]) -> list[tuple[str, Any]]:
    return [(name, spread(values)) for name, values in rates.items()]


if __name__ == "__main__":
    raise SystemExit(main())
