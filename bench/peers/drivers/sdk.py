"""The plain SDK, as the peers use it that wrap its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from bench.peers.drivers.work import Work


@asynccontextmanager
async def client_of(work: Work, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client for the work."""
    async with openai.AsyncOpenAI(base_url=work.base_url, api_key=work.api_key, **options) as client:
        yield client


def request(work: Work, number: int, prompt: str) -> dict[str, Any]:
    """The arguments of one call; `user` tells the provider its number."""
    return {"model": work.model, "messages": work.messages(prompt), "user": str(number)}
