"""Client of Gemini through google-genai."""

from __future__ import annotations

from typing import Any

from google import genai
from google.genai import types

from tidegate.admission.registry import registry
from tidegate.experiments.declared.prompt import NoText, Prompt

ROLES = {"user": "user", "assistant": "model"}


class Google:
    """Governed client; google-genai retries nothing by default."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        options = types.HttpOptions(base_url=base_url) if base_url is not None else None
        self._client = registry().wrap(genai.Client(api_key=key, vertexai=False, http_options=options))

    async def __call__(self, prompt: Prompt) -> str:
        """Return the text of the first candidate."""
        contents: Any = [
            {"role": ROLES[each["role"]], "parts": [{"text": each["content"]}]} for each in prompt.messages
        ]
        config = types.GenerateContentConfig(system_instruction=prompt.system, **prompt.parameters)
        answer = await self._client.aio.models.generate_content(model=prompt.model, contents=contents, config=config)
        if not answer.text:
            first = answer.candidates[0] if answer.candidates else None
            raise NoText(prompt.model, first.finish_reason if first is not None else answer.prompt_feedback)
        return answer.text

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aio.aclose()
        self._client.close()
