"""Clients of declared questions: they fill the templates, and send them through the provider's official SDK."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from tidegate.admission.registry import registry
from tidegate.errors import CannotLoad, UnusableAnswer
from tidegate.experiments.declared.schema import QuestionSpec, Template


class NoText(UnusableAnswer):
    """Error for an answer without text; `reason` is the provider's finish reason."""

    def __init__(self, model: str, reason: object) -> None:
        self.reason = reason
        super().__init__(f"answer of {model} unusable: it has no text; its finish reason is {reason or 'unknown'}")


class Prompt(NamedTuple):
    """Question as it is sent; roles are `user` and `assistant`."""

    model: str
    system: str | None
    messages: Sequence[Mapping[str, str]]
    parameters: Mapping[str, Any]


class UnsentRequest(NamedTuple):
    """Request as a client would send it, without its credential; `family` names the SDK as `providers.adopt` does."""

    url: str
    family: str
    body: Mapping[str, Any]


KEYLESS = "none"
"""Placeholder key for a server that needs none: the SDK requires one."""

MAX_TOKENS = 1024
"""Maximum output tokens, which Anthropic requires, where the experiment states none. Source: Anthropic's own examples
(anthropic 2.11, README)."""


class PostingClient(ABC):
    """Governed client without SDK retries: the runner retries, and retries inside a slot would be invisible.

    Bodies are posted as the file states them, even if this SDK has no name for a parameter. So a Batch API takes the
    same ones.
    """

    path: str
    family: str

    def __init__(self, sdk: Any) -> None:
        self.sdk = registry().wrap(sdk)

    def request(self, prompt: Prompt) -> UnsentRequest:
        return UnsentRequest(str(self.sdk.base_url).rstrip("/") + self.path, self.family, self.body(prompt))

    async def __call__(self, prompt: Prompt) -> str:
        """Return the text of the answer. Raise the SDK's errors, and `NoText`."""
        answer = await self.sdk.post(self.path, body=self.body(prompt), cast_to=object)
        return self.text(prompt.model, answer)

    @abstractmethod
    def body(self, prompt: Prompt) -> dict[str, Any]: ...

    @abstractmethod
    def text(self, model: str, body: Any) -> str:
        """Return the text of an answer's body. Raise `NoText`."""

    async def close(self) -> None:
        await self.sdk.close()


class OpenAI(PostingClient):
    """Client of the SDK of openai, also for compatible servers."""

    path = "/chat/completions"
    family = "openai"

    def __init__(self, key: str | None, base_url: str | None) -> None:
        import openai

        super().__init__(openai.AsyncOpenAI(api_key=key or KEYLESS, base_url=base_url, max_retries=0))

    def body(self, prompt: Prompt) -> dict[str, Any]:
        system = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        return {"model": prompt.model, "messages": [*system, *prompt.messages], **prompt.parameters}

    def text(self, model: str, body: Any) -> str:
        choices = body.get("choices")
        choice = choices[0] if choices else {}
        text = (choice.get("message") or {}).get("content")
        if not text:
            raise NoText(model, choice.get("finish_reason"))
        return str(text)


class Anthropic(PostingClient):
    """Client of the SDK of anthropic."""

    path = "/v1/messages"
    family = "anthropic"

    def __init__(self, key: str | None, base_url: str | None) -> None:
        import anthropic

        super().__init__(anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0))

    def body(self, prompt: Prompt) -> dict[str, Any]:
        body = {"model": prompt.model, "messages": list(prompt.messages), "max_tokens": MAX_TOKENS}
        return body | ({} if prompt.system is None else {"system": prompt.system}) | dict(prompt.parameters)

    def text(self, model: str, body: Any) -> str:
        text = "".join(block.get("text", "") for block in body.get("content") or [] if block.get("type") == "text")
        if not text:
            raise NoText(model, body.get("stop_reason"))
        return text


ROLES = {"user": "user", "assistant": "model"}

GOOGLE_URL = "https://generativelanguage.googleapis.com"
"""Default address. Source: google-genai, `_api_client.py`."""


class Google:
    """Governed client; google-genai retries nothing by default."""

    def __init__(self, key: str | None, base_url: str | None) -> None:
        from google import genai
        from google.genai import types

        self._base_url = base_url or GOOGLE_URL
        options = types.HttpOptions(base_url=base_url) if base_url is not None else None
        self._client = registry().wrap(genai.Client(api_key=key, vertexai=False, http_options=options))

    async def __call__(self, prompt: Prompt) -> str:
        from google.genai import types

        contents: Any = [
            {"role": ROLES[each["role"]], "parts": [{"text": each["content"]}]} for each in prompt.messages
        ]
        config = types.GenerateContentConfig(system_instruction=prompt.system, **prompt.parameters)
        answer = await self._client.aio.models.generate_content(model=prompt.model, contents=contents, config=config)
        if not answer.text:
            first = answer.candidates[0] if answer.candidates else None
            raise NoText(prompt.model, first.finish_reason if first is not None else answer.prompt_feedback)
        return answer.text

    def request(self, prompt: Prompt) -> UnsentRequest:
        path = f"/v1beta/models/{prompt.model}:generateContent"
        body = {
            "contents": [each["content"] for each in prompt.messages],
            "system_instruction": prompt.system or "",
            "generation_config": prompt.parameters,
        }
        return UnsentRequest(self._base_url.rstrip("/") + path, "gemini", body)

    async def close(self) -> None:
        await self._client.aio.aclose()
        self._client.close()


SDKS: dict[str, tuple[str, str, type[OpenAI | Anthropic | Google]]] = {
    "openai": ("openai", "openai", OpenAI),
    "azure": ("openai", "openai", OpenAI),
    "compatible": ("openai", "openai", OpenAI),
    "anthropic": ("anthropic", "anthropic", Anthropic),
    "google": ("google.genai", "google-genai", Google),
}
"""Module, package and client factory of each provider."""


class LazyClient:
    """One question and its client, which is created on first use and again in each event loop."""

    def __init__(self, question: QuestionSpec, source: str) -> None:
        module, package, self._make = SDKS[question.provider]
        if not _installed(module):
            raise CannotLoad(source, f"the SDK of provider {question.provider} is missing; pip install {package}")
        self._spec = question
        self._system = Template(question.system) if question.system is not None else None
        self._messages = [(each.role, Template(each.content)) for each in question.conversation]
        self._client: OpenAI | Anthropic | Google | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, values: Mapping[str, Any]) -> str:
        """Return the answer to the question with these values. Raise `MissingField`, `NoText`, and the SDK's errors."""
        return await self._get_client()(self._prompt(values))

    def body(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of the request with these values. Raise `MissingField`."""
        return self._batch_client().body(self._prompt(values))

    def request(self, values: Mapping[str, Any]) -> UnsentRequest:
        """Return the request with these values, which is not sent. Raise `MissingField`."""
        return self._get_client().request(self._prompt(values))

    def text(self, body: Any) -> str:
        """Return the text of an answer's body. Raise `NoText`."""
        return self._batch_client().text(self._spec.model, body)

    def sdk(self) -> Any:
        return self._batch_client().sdk

    def _batch_client(self) -> PostingClient:
        client = self._get_client()
        assert isinstance(client, PostingClient), "a declaration of batches names no other provider"
        return client

    def _prompt(self, values: Mapping[str, Any]) -> Prompt:
        question = self._spec
        return Prompt(
            question.model,
            self._system.filled(values) if self._system is not None else None,
            [{"role": role, "content": content.filled(values)} for role, content in self._messages],
            question.parameters,
        )

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            client, self._client = self._client, None
            await client.close()

    def _get_client(self) -> OpenAI | Anthropic | Google:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            question = self._spec
            key = os.environ.get(question.credential) if question.credential is not None else None
            self._client, self._loop = self._make(key, question.address(os.environ)), loop
        return self._client


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
