"""Chat completions through openai's SDK: OpenAI itself, and any server that speaks the same."""

from __future__ import annotations

from typing import Any

import openai

from tidegate.admission.registry import registry
from tidegate.runner.declared.prompt import NoText, Prompt

KEYLESS = "none"
"""What is sent where a server wants no key: the SDK wants one."""


class OpenAI:
    """A governed client. The runner repeats what fails, so that the SDK does not (its retries would hide in a slot)."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        made = openai.AsyncOpenAI(api_key=key or KEYLESS, base_url=base_url, max_retries=0)
        self._client = registry().wrap(made)

    async def __call__(self, prompt: Prompt) -> str:
        """The text of the first choice."""
        system: list[Any] = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        messages: list[Any] = [*system, *prompt.messages]
        # As part of the body: what the file says is what is sent, whichever parameters this SDK has names for.
        answer: Any = await self._client.chat.completions.create(
            model=prompt.model, messages=messages, extra_body=dict(prompt.parameters)
        )
        choice = answer.choices[0] if answer.choices else None
        if choice is None or not choice.message.content:
            raise NoText(prompt.model, choice.finish_reason if choice is not None else None)
        return str(choice.message.content)

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()
