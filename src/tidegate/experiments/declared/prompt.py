"""Prompt of a declared question, and the client that sends it: the same for every SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tidegate.errors import UnusableAnswer


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


class ModelClient(Protocol):
    """Client of one SDK: it answers prompts with texts. It raises the SDK's errors, and `NoText`."""

    async def __call__(self, prompt: Prompt) -> str:
        """Return the text of the answer."""

    async def close(self) -> None:
        """Close the connections."""


@runtime_checkable
class BatchModelClient(ModelClient, Protocol):
    """Client of a provider with a Batch API."""

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """Return the body of the request, as a Batch API takes it."""
        ...

    def text(self, model: str, body: Any) -> str:
        """Return the text of an answer's body. Raise `NoText`."""
        ...

    @property
    def sdk(self) -> Any:
        """Return the client of the SDK."""
        ...
