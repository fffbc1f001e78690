"""Messages through Anthropic's SDK."""

from __future__ import annotations

from typing import Any

import anthropic

from tidegate.admission.registry import registry
from tidegate.runner.declared.prompt import NoText, Prompt

MAX_TOKENS = 1024
"""Anthropic wants to be told; 1024 is what its own examples say (anthropic 2.11, README)."""


class Anthropic:
    """A governed client. The runner repeats what fails, so that the SDK does not (its retries would hide in a slot)."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        made = anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0)
        self._client = registry().wrap(made)

    async def __call__(self, prompt: Prompt) -> str:
        """The text blocks of the answer, one after the other."""
        given: dict[str, Any] = {} if prompt.system is None else {"system": prompt.system}
        messages: list[Any] = list(prompt.messages)
        # As part of the body: what the file says is what is sent, whichever parameters this SDK has names for.
        answer: Any = await self._client.messages.create(
            model=prompt.model, messages=messages, max_tokens=MAX_TOKENS, extra_body=dict(prompt.parameters), **given
        )
        text = "".join(block.text for block in answer.content if block.type == "text")
        if not text:
            raise NoText(prompt.model, answer.stop_reason)
        return text

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()
