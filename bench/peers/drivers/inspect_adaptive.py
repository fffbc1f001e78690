"""Inspect AI's adaptive connections, its default: a model's `generate`, as a solver calls it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inspect_ai.model import GenerateConfig, get_model

from bench.peers.drivers.work import Call, Work, play


class Unanswered(Exception):
    """The model's output is an error."""


@asynccontextmanager
async def peer(work: Work) -> AsyncIterator[Call]:
    """The OpenAI provider over chat completions; it retries for as long as it must."""
    model = get_model(
        f"openai/{work.model}", base_url=work.base_url, api_key=work.api_key, responses_api=False, memoize=False
    )

    async def call(number: int, prompt: str) -> object:
        output = await model.generate(prompt, config=GenerateConfig(extra_body={"user": str(number)}))
        if output.error:
            raise Unanswered(output.error)
        return output

    yield call


if __name__ == "__main__":
    play(peer)
