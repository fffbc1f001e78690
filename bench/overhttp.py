"""A scenario over real HTTP: the simulator in a process of its own, and a real SDK, wrapped or plain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import openai

from bench.measures import Run, measured
from bench.scenarios import Row
from tidegate.admission.registry import RateLimitRegistry
from tidegate.settings import Settings
from tidegate.testing import Call, SimulatorProcess

ROW = "x-row"
"""The header by which the simulator tells calls apart."""

PATIENCE, GRACE = 4.0, 10.0
"""Ideals, and seconds on top of them, after which a run is given up; the calls without an answer are lost then."""

Ask = Callable[[int, Call], Awaitable[object]]


def client_of(row: Row, simulator: SimulatorProcess, sent: list[int]) -> Any:
    """The row's SDK as a program would make it, but that each request, as it leaves the queue, notes its number."""

    async def note(request: Any) -> None:
        if ROW in request.headers:
            sent.append(int(request.headers[ROW]))

    hooks = {"request": [note]}
    if row.sdk == "openai":
        http_client = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
        return openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="k", http_client=http_client)
    theirs = anthropic.DefaultAsyncHttpxClient(event_hooks=hooks)
    if row.sdk == "anthropic":
        return anthropic.AsyncAnthropic(base_url=simulator.url, api_key="k", http_client=theirs)
    return anthropic.AsyncAnthropicBedrock(
        base_url=simulator.bedrock_url,
        aws_access_key="AKIABENCH",
        aws_secret_key="s",
        aws_region="us-east-1",
        http_client=theirs,
    )


def asking(row: Row, seed: int, client: Any) -> Ask:
    """How the row's calls are made with `client`."""
    models = row.asked(seed)

    def said(number: int, call: Call) -> dict[str, Any]:
        content = f"{number} ".ljust(row.chars(call), "x")
        made: dict[str, Any] = {"model": models[number], "messages": [{"role": "user", "content": content}]}
        if call.max_tokens is not None:
            made["max_tokens"] = call.max_tokens
        return {**made, "extra_headers": {ROW: str(number)}}

    async def message(number: int, call: Call) -> object:
        return await client.messages.create(**said(number, call))

    async def chat(number: int, call: Call) -> object:
        return await client.chat.completions.create(**said(number, call))

    async def stream(number: int, call: Call) -> object:
        chunks = await client.chat.completions.create(
            **said(number, call), stream=True, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in chunks]

    if row.sdk != "openai":
        return message
    return stream if row.stream else chat


async def _ask_all(row: Row, seed: int, ask: Ask, patience: float) -> dict[str, int]:
    """Makes all calls by the row's callers, who take them in order; returns the lost ones by exception."""
    left: Iterator[tuple[int, Call]] = iter(enumerate(row.calls(seed)))
    losses: dict[str, int] = {}
    ended = 0

    async def caller() -> None:
        nonlocal ended
        for number, call in left:
            try:
                await ask(number, call)
            except (openai.OpenAIError, anthropic.AnthropicError) as error:
                losses[type(error).__name__] = losses.get(type(error).__name__, 0) + 1
            ended += 1

    callers = [asyncio.ensure_future(caller()) for _ in range(min(row.callers, row.count))]
    _, late = await asyncio.wait(callers, timeout=patience)
    for each in late:
        each.cancel()
    for outcome in await asyncio.gather(*callers, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    if ended < row.count:
        losses["never ended"] = row.count - ended
    return losses


async def _run(row: Row, seed: int, ideal: float, wrapped: bool, bare: float | None) -> Run:
    with SimulatorProcess(row.seeded(seed)) as simulator:
        sent: list[int] = []
        client = client_of(row, simulator, sent)
        if wrapped:
            RateLimitRegistry(Settings(scopes=row.scopes)).wrap(client)
        if row.sdk != "bedrock":
            # The first request of a process loads what the others find loaded.
            await client.models.list()
        simulator.reset()
        began, spent = time.monotonic(), time.process_time()
        losses = await _ask_all(row, seed, asking(row, seed, client), PATIENCE * ideal + GRACE)
        makespan, cpu = time.monotonic() - began, time.process_time() - spent
        truth = simulator.truth()
        await client.close()
    return measured(row, seed, truth, sent, makespan=makespan, cpu=cpu, losses=losses, bare=bare)


def run(row: Row, seed: int, *, wrapped: bool = True) -> Run:
    """One row at one seed; where it is measured against the plain SDK, that goes first."""
    ideal = row.ideal(seed).makespan
    bare = None
    if wrapped and row.against_plain:
        # Its makespan begins, like ours, with the first admission.
        bare = asyncio.run(_run(row, seed, ideal, False, None)).makespan
    return asyncio.run(_run(row, seed, max(ideal, bare or 0.0), wrapped, bare))
