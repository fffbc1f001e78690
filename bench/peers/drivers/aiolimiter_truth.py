"""aiolimiter, told what the provider enforces; every attempt passes it.

Options: `attempts`, and `shortest` and `longest`, the seconds between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import openai
from aiolimiter import AsyncLimiter

from bench.peers.drivers.sdk import client_of, request
from bench.peers.drivers.work import Call, Work, play


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """One limiter for each limit of requests or tokens, and a semaphore for slots."""
    options = work.options
    slots = [asyncio.Semaphore(int(each["limit"])) for each in work.limits if each["unit"] == "slots"]
    limiters = [
        (each["unit"] == "tokens", AsyncLimiter(each["limit"], each["window"]))
        for each in work.limits
        if each["unit"] != "slots"
    ]
    async with client_of(work, max_retries=0) as client:

        async def send(number: int, prompt: str) -> object:
            async with AsyncExitStack() as held:
                for slot in slots:
                    await held.enter_async_context(slot)
                for of_tokens, limiter in limiters:
                    await limiter.acquire(work.sizes[number] if of_tokens else 1)
                return await client.chat.completions.create(**request(work, number, prompt))

        async def call(number: int, prompt: str) -> object:
            for attempt in range(options["attempts"] - 1):
                try:
                    return await send(number, prompt)
                except (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError):
                    await asyncio.sleep(min(options["longest"], options["shortest"] * 2**attempt))
            return await send(number, prompt)

        yield call


if __name__ == "__main__":
    play(peer)
