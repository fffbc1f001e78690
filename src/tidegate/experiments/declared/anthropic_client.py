"""Client of Anthropic's Messages API through its SDK."""

from __future__ import annotations

from typing import Any

import anthropic

from tidegate.admission.registry import registry
from tidegate.experiments.declared.prompt import NoText, Prompt

MAX_TOKENS = 1024
"""Maximum output tokens, which Anthropic requires, where the experiment states none. Raising it reserves more of an
output quota. Source: Anthropic's own examples (anthropic 2.11, README)."""


class Anthropic:
    """Governed client without SDK retries: the runner retries, and retries inside a slot would be invisible."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        made = anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0)
        self._client = registry().wrap(made)

    async def __call__(self, prompt: Prompt) -> str:
        """Return the joined text blocks of the answer."""
        given: dict[str, Any] = {} if prompt.system is None else {"system": prompt.system}
        messages: list[Any] = list(prompt.messages)
        # Parameters go into the body as the file states them, even if this SDK has no name for them.
        answer: Any = await self._client.messages.create(
            model=prompt.model, messages=messages, max_tokens=MAX_TOKENS, extra_body=dict(prompt.parameters), **given
        )
        text = "".join(block.text for block in answer.content if block.type == "text")
        if not text:
            raise NoText(prompt.model, answer.stop_reason)
        return text

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """Return the body of the request, as a Batch API takes it."""
        system = {} if prompt.system is None else {"system": prompt.system}
        return {"model": prompt.model, "messages": list(prompt.messages), "max_tokens": MAX_TOKENS, **system,
                **prompt.parameters}  # fmt: skip

    def text(self, model: str, body: Any) -> str:
        """Return the joined text blocks of an answer's body."""
        text = "".join(block.get("text", "") for block in body.get("content") or [] if block.get("type") == "text")
        if not text:
            raise NoText(model, body.get("stop_reason"))
        return text

    @property
    def sdk(self) -> Any:
        """Return the client of the SDK."""
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
