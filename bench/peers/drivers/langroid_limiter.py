"""langroid's RateLimiter, wired as langroid 0.69.16 wires it in `openai_gpt.py`, with its own retries around it.

Its two modules are loaded by themselves: they need nothing of the rest of the package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai

from bench.peers.drivers.modules import alone
from bench.peers.drivers.sdk import client_of, request
from bench.peers.drivers.work import Call, Work, play

limiting = alone("langroid", "langroid/language_models/rate_limiter.py")
retrying = alone("langroid", "langroid/language_models/utils.py")


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """Switched on, everything else at its default."""
    limiter = limiting.RateLimiter(limiting.RateLimitConfig(enabled=True))
    async with client_of(work) as client:

        async def send(number: int, prompt: str) -> object:
            await limiter.acquire_async()
            try:
                raw = await client.chat.completions.with_raw_response.create(**request(work, number, prompt))
                limiter.observe_response(headers=raw.headers)
                completion = raw.parse()
            except openai.OpenAIError as error:
                headers = limiting.rate_limit_error_headers(error)
                if headers is not None:
                    limiter.observe_rate_limit_error(headers)
                raise
            limiter.observe_success(tokens_used=completion.usage.total_tokens if completion.usage else None)
            return completion

        yield retrying.async_retry_with_exponential_backoff(send)


if __name__ == "__main__":
    play(peer)
