"""A declared question as it is sent, and the client that sends it: the same for every SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.errors import UnusableAnswer


class NoText(UnusableAnswer):
    """An answer that holds no text; `reason` is what the provider says of its end."""

    def __init__(self, model: str, reason: object) -> None:
        self.reason = reason
        super().__init__(f"the answer of {model} holds no text: it ended by {reason or 'nothing that is known'}")


class Prompt(NamedTuple):
    """A question as it is sent: roles are `user` and `assistant`."""

    model: str
    system: str | None
    messages: Sequence[Mapping[str, str]]
    parameters: Mapping[str, Any]


class ModelClient(Protocol):
    """One SDK's client: answers prompts with texts. Raises what the SDK raises, and `NoText`."""

    async def __call__(self, prompt: Prompt) -> str:
        """The text of the answer."""

    async def close(self) -> None:
        """Closes its connections."""
