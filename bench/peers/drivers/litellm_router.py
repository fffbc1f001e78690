"""LiteLLM's Router before one deployment; option `retries`, with the Router's own back-off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import litellm

from bench.peers.drivers.work import Call, Work, play


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """No `rpm` is given: with it the Router refuses calls by itself instead of letting them wait."""
    litellm.suppress_debug_info = True
    there = {"model": f"openai/{work.model}", "api_base": work.base_url, "api_key": work.api_key}
    router = litellm.Router(
        model_list=[{"model_name": work.model, "litellm_params": there}], num_retries=work.options["retries"]
    )

    async def call(number: int, prompt: str) -> object:
        return await router.acompletion(model=work.model, messages=work.messages(prompt), user=str(number))

    yield call


if __name__ == "__main__":
    play(peer)
