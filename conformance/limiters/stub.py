"""The server behind each limiter: it answers chat completions with their usage, after a random latency."""

from __future__ import annotations

import asyncio

from conformance.limiters.ideals import Latency
from conformance.never_worse.stub import Handler, Reply, Request, chat

USAGE = {"prompt_tokens": 2, "completion_tokens": 50, "total_tokens": 52}
"""As LiteLLM estimates a call before it is answered, so the tokens that it reserves are those that it counts."""


def handler(latency: Latency) -> Handler:
    """Return the behaviour of the stub."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency())
        return Reply(body={**chat(), "usage": USAGE})

    return handle
