"""A semaphore and tenacity, as scripts have them; options `at_once`, `attempts`, `shortest`, `longest` (seconds)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import tenacity

from bench.peers.drivers.sdk import client_of, request
from bench.peers.drivers.work import Call, Work, play


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """The slot is held through the back-off: the decorated function is called inside the semaphore."""
    options = work.options
    slots = asyncio.Semaphore(options["at_once"])
    async with client_of(work, max_retries=0) as client:

        @tenacity.retry(
            wait=tenacity.wait_random_exponential(min=options["shortest"], max=options["longest"]),
            stop=tenacity.stop_after_attempt(options["attempts"]),
            reraise=True,
        )
        async def send(number: int, prompt: str) -> object:
            return await client.chat.completions.create(**request(work, number, prompt))

        async def call(number: int, prompt: str) -> object:
            async with slots:
                return await send(number, prompt)

        yield call


if __name__ == "__main__":
    play(peer)
