"""Client of chat completions through openai's SDK: OpenAI itself, and any compatible server."""

from __future__ import annotations

from typing import Any

import openai

from tidegate.admission.registry import registry
from tidegate.experiments.declared.prompt import NoText, Prompt

KEYLESS = "none"
"""Placeholder key for a server that needs none: the SDK requires one."""


class OpenAI:
    """Governed client without SDK retries: the runner retries, and retries inside a slot would be invisible."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        made = openai.AsyncOpenAI(api_key=key or KEYLESS, base_url=base_url, max_retries=0)
        self._client = registry().wrap(made)

    async def __call__(self, prompt: Prompt) -> str:
        """Return the text of the first choice."""
        system: list[Any] = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        messages: list[Any] = [*system, *prompt.messages]
        # Parameters go into the body as the file states them, even if this SDK has no name for them.
        answer: Any = await self._client.chat.completions.create(
            model=prompt.model, messages=messages, extra_body=dict(prompt.parameters)
        )
        choice = answer.choices[0] if answer.choices else None
        if choice is None or not choice.message.content:
            raise NoText(prompt.model, choice.finish_reason if choice is not None else None)
        return str(choice.message.content)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """Return the body of the request, as a Batch API takes it."""
        system = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        return {"model": prompt.model, "messages": [*system, *prompt.messages], **prompt.parameters}

    def text(self, model: str, body: Any) -> str:
        """Return the text of the first choice of an answer's body."""
        choices = body.get("choices")
        choice = choices[0] if choices else {}
        text = (choice.get("message") or {}).get("content")
        if not text:
            raise NoText(model, choice.get("finish_reason"))
        return str(text)

    @property
    def sdk(self) -> Any:
        """Return the client of the SDK."""
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
