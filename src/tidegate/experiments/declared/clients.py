"""Clients of declared questions: they fill the templates, and send them through the provider's official SDK."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from tidegate.errors import CannotLoad
from tidegate.experiments.declared.prompt import BatchModelClient, ModelClient, Prompt
from tidegate.experiments.declared.schema import QuestionSpec, Template


def _openai(key: str | None, base_url: str | None) -> ModelClient:
    from tidegate.experiments.declared.openai_client import OpenAI

    return OpenAI(key, base_url)


def _anthropic(key: str | None, base_url: str | None) -> ModelClient:
    from tidegate.experiments.declared.anthropic_client import Anthropic

    return Anthropic(key, base_url)


def _google(key: str | None, base_url: str | None) -> ModelClient:
    from tidegate.experiments.declared.google_client import Google

    return Google(key, base_url)


SDKS: dict[str, tuple[str, str, Callable[[str | None, str | None], ModelClient]]] = {
    "openai": ("openai", "openai", _openai),
    "azure": ("openai", "openai", _openai),
    "compatible": ("openai", "openai", _openai),
    "anthropic": ("anthropic", "anthropic", _anthropic),
    "google": ("google.genai", "google-genai", _google),
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
        self._client: ModelClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, values: Mapping[str, Any]) -> str:
        """Return the answer to the question with these values. Raise `MissingField`, `NoText`, and the SDK's errors."""
        return await self._get_client()(self._prompt(values))

    def body(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of the request with these values. Raise `MissingField`."""
        return self._batch_client().body(self._prompt(values))

    def text(self, body: Any) -> str:
        """Return the text of an answer's body. Raise `NoText`."""
        return self._batch_client().text(self._spec.model, body)

    def sdk(self) -> Any:
        """Return the client of the SDK in this event loop."""
        return self._batch_client().sdk

    def _batch_client(self) -> BatchModelClient:
        client = self._get_client()
        assert isinstance(client, BatchModelClient), "a declaration of batches names no other provider"
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
        """Close the client's connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            client, self._client = self._client, None
            await client.close()

    def _get_client(self) -> ModelClient:
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
