"""The same SDK client, wrapped by tidegate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.peers.drivers.sdk import client_of, request
from bench.peers.drivers.work import Call, Work, play
from tidegate.admission.registry import RateLimitRegistry


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """Calls as a script makes them, through a registry that knows nothing yet."""
    async with client_of(work) as client:
        RateLimitRegistry().wrap(client)

        async def call(number: int, prompt: str) -> object:
            return await client.chat.completions.create(**request(work, number, prompt))

        yield call


if __name__ == "__main__":
    play(peer)
